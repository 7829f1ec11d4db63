"""`ete token`. Argument: the path of ete."""

import fcntl
import hashlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import unittest

ETE = sys.argv[1]
TIMEOUT = 60


def start(path, name):
    command = [ETE, "token", "--file", path, "--name", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Token(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = pathlib.Path(directory.name, "tokens")

    def end(self, process):
        token, error = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, error), (0, ""))
        return token.strip()

    def check_failure(self, path, name, code, mention):
        process = start(path, name)
        said, error = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, said, error), (code, "", f"ete token: --file {mention}\n"))

    def test_what_is_no_file(self):
        for path in (self.directory, "/dev/zero"):
            self.check_failure(path, "a", 2, f"{path}: not a regular file")

    def test_what_it_replaces(self):
        link = pathlib.Path(self.directory, "link")
        link.symlink_to("tokens")
        self.end(start(link, "a"))
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.path.chmod(0o640)
        self.end(start(link, "b"))
        self.assertEqual((link.is_symlink(), self.path.stat().st_mode & 0o777), (True, 0o640))
        kept = self.path.read_text()
        self.assertEqual([line.split()[0] for line in kept.splitlines()], ["a", "b"])
        refused = start(link, "a").communicate(timeout=TIMEOUT)
        self.assertEqual(refused, ("", f'ete token: --name: "a" is at {self.path}:1 already; accepted: a name that is not there\n'))
        self.assertEqual((self.path.read_text(), sorted(os.listdir(self.directory))), (kept, ["link", "tokens", "tokens.lock"]))

    def test_a_token_that_nobody_was_told_takes_no_name(self):
        with open("/dev/full", "w") as full:
            process = subprocess.run([ETE, "token", "--file", self.path, "--name", "a"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((process.returncode, process.stderr), (1, "ete token: cannot write to stdout: No space left on device\n"))
        self.assertFalse(self.path.exists())
        self.end(start(self.path, "a"))

    def test_a_file_that_another_adds_to(self):
        link = pathlib.Path(self.directory, "link")
        link.symlink_to("tokens")
        self.end(start(link, "a"))
        kept = self.path.read_text()
        lock = pathlib.Path(self.directory, "tokens.lock")
        self.assertEqual(lock.stat().st_mode & 0o777, 0o600)
        with lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for number in (signal.SIGINT, None):
                process = start(link, "b")
                self.addCleanup(process.kill)
                self.assertTrue(select.select([process.stderr], [], [], TIMEOUT)[0], "it waits without a word")
                self.assertEqual(process.stderr.readline(), f"ete token: waits for {lock}, which another ete token holds\n")
                self.assertEqual(sorted(os.listdir(self.directory)), ["link", "tokens", "tokens.lock"])
                if number is not None:
                    process.send_signal(number)
                    process.communicate(timeout=TIMEOUT)
                    self.assertEqual(process.returncode, -number)
        self.end(process)
        self.assertEqual([line.split()[0] for line in self.path.read_text().splitlines()], ["a", "b"])
        self.assertTrue(self.path.read_text().startswith(kept))

    def test_who_may_only_read_the_directory_holds_nobody_up(self):
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        fcntl.flock(directory, fcntl.LOCK_EX)
        self.end(start(self.path, "a"))

    def test_a_lock_that_is_none(self):
        lock = pathlib.Path(self.directory, "tokens.lock")
        lock.symlink_to("elsewhere")
        self.check_failure(self.path, "a", 1, f"{self.path}: cannot open {lock}: Too many levels of symbolic links")
        self.assertEqual(os.listdir(self.directory), ["tokens.lock"])

    def test_several_at_a_time(self):
        link = pathlib.Path(self.directory, "elsewhere", "link")
        link.parent.mkdir()
        link.symlink_to("../tokens")
        processes = [start((self.path, link)[i % 2], f"n{i}") for i in range(20)]
        said = [process.communicate(timeout=TIMEOUT)[0].strip() for process in processes]
        self.assertEqual({process.returncode for process in processes}, {0})
        kept = {line.split()[1] for line in self.path.read_text().splitlines()}
        self.assertEqual(kept, {hashlib.sha256(token.encode()).hexdigest() for token in said})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
