"""Each command of the README is run, with the small model. Arguments: the root of the sources, the folder of the programs."""

import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from deployed import BIN, ROOT

STORY = str(ROOT / "models" / "story-8m")
README = (ROOT / "README.md").read_text()
CHECKS = "".join((ROOT / ".ci" / name).read_text() for name in ("run", "full"))
TIMEOUT = 300


def commands():
    for block in re.findall(r"^```\n(.*?)^```", README, re.M | re.S):
        for line in block.replace("\\\n", "").splitlines():
            yield from line.split("; ")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(dir="/tmp")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.env = {**os.environ, "TMPDIR": cls.directory.name}
        os.mkdir(os.path.join(cls.directory.name, "build"))
        cls.ports = dict(zip(("50051", "8080"), free_ports(2)))

    def split(self, command):
        """At ports that are free."""
        for there, here in self.ports.items():
            command = command.replace(f"127.0.0.1:{there}", f"127.0.0.1:{here}")
        return shlex.split(command)

    def words(self, command):
        """Of this build's ete, with the small model; short, where the README's takes long."""
        command = command.replace("build/release/bin", str(BIN)).replace("--sessions 1,4,16", "--sessions 1")
        words = self.split(command)
        words = [STORY if word == "PATH" else word for word in words]
        starts_one = words[1] in ("run", "chat", "serve", "bench") and "--address" not in words
        if starts_one and "--model" not in words:
            words += ["--model", STORY]
        if starts_one or words[1] == "inspect":
            words += ["--device", "cpu"]
        if words[1] == "bench":
            words += ["--steps", "2", "--repeats", "1", "--prompt", "16"]
        return words

    def run_ete(self, command):
        ran = subprocess.run(self.words(command), capture_output=True, timeout=TIMEOUT, env=self.env, cwd=self.directory.name)
        self.assertEqual(ran.returncode, 0, f"{command}: {ran.stderr.decode()}")
        self.assertTrue(ran.stdout.strip(), command)

    def chat(self, command):
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                os.chdir(self.directory.name)
                words = self.words(command)
                os.execve(words[0], words, {**self.env, "TERM": "xterm"})
            finally:
                os._exit(127)
        seen = b""
        while b"> " not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"/quit\r")
        while True:
            try:
                if not os.read(terminal, 4096):
                    break
            except OSError:
                break
        os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def serve(self, command, listens_for_grpc):
        words = self.words(command)
        if not listens_for_grpc:
            words += ["--listen", f"unix:{self.directory.name}/front"]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=self.env)
        for line in server.stderr:
            if "ready at" in line:
                return server
        self.fail(f"{command} ends with {server.wait()}")

    def end(self, server):
        server.terminate()
        server.stderr.read()
        self.assertEqual(server.wait(60), 0)
        server.stderr.close()

    def curl(self, command):
        _, url, *rest = self.split(command)
        options = dict(zip(rest[::2], rest[1::2]))
        self.assertLessEqual(set(options), {"-d", "-H"}, command)
        data = options.get("-d")
        request = urllib.request.Request(url, data=data and data.encode())
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            text = reply.read().decode()
        if '"stream": true' in command:
            self.assertTrue(text.endswith("data: [DONE]\n\n"), text)
        else:
            self.assertTrue(json.loads(text), command)

    def test_each_command(self):
        checked = []
        server = None
        for command in commands():
            with self.subTest(command):
                if command.startswith("scripts/"):
                    self.assertRegex(CHECKS, rf"{re.escape(command)}\b")
                elif " serve " in command:
                    if server:
                        self.end(server)
                    server = self.serve(command, "--listen" in command)
                elif command.startswith("curl "):
                    self.curl(command)
                elif command.endswith(" chat"):
                    self.chat(command)
                else:
                    self.run_ete(command)
                checked.append(command)
        if server:
            self.end(server)
        self.assertGreater(len(checked), 12)


    def test_the_client_that_pip_installs_is_tried_by_the_checks(self):
        install = re.search(r"`pip (install \./clients/\w+)`", README).group(1)
        self.assertIn(f'pip" {install}', CHECKS)

    def test_the_benchmark_knows_each_engine_that_the_documents_name(self):
        script = ROOT / "scripts" / "bench_against.py"
        pages = README + (ROOT / "docs" / "compare.md").read_text()
        named = set(re.findall(r"scripts/bench_against\.py ([\w.-]+)", pages))
        listed = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(named, set(re.search(r"\{(.*?)\}", listed.stdout).group(1).split(",")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
