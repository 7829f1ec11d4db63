"""`ete token`. Argument: the path of ete."""

import hashlib
import os
import pathlib
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
        self.check_failure(link, "a", 1, f"{self.path}:3: the name a is there twice")
        self.assertEqual((self.path.read_text(), sorted(os.listdir(self.directory))), (kept, ["link", "tokens"]))

    def test_several_at_a_time(self):
        link = pathlib.Path(self.directory, "elsewhere", "link")
        link.parent.mkdir()
        link.symlink_to("../tokens")
        said = [self.end(process) for process in [start((self.path, link)[i % 2], f"n{i}") for i in range(20)]]
        kept = {line.split()[1] for line in self.path.read_text().splitlines()}
        self.assertEqual(kept, {hashlib.sha256(token.encode()).hexdigest() for token in said})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
