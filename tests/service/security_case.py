"""A test case with servers, tokens and clients of its own. Standard library only.

The program's arguments begin with the paths of ete-front, toy_worker, fake_worker and ete.
"""

import json
import subprocess
import sys
import unittest

from http_servers import TEMPLATE, free_port
from processes import Front, Processes

FRONT, TOY_WORKER, FAKE_WORKER, ETE = sys.argv[1:5]


class Security(unittest.TestCase):
    def setUp(self):
        self.processes = Processes()
        self.addCleanup(self.processes.close)
        self.root = self.processes.root
        (self.root / "template").write_text(TEMPLATE)

    def toy(self, step_ms=1):
        self.processes.start("toy", [TOY_WORKER, str(self.root / "worker"), "toy", "4096", str(step_ms),
                                     str(self.root / "template")])  # fmt: skip
        return f"unix:{self.root}/worker"

    def token(self, name, *flags):
        """A new one, which the file holds from now on."""
        made = subprocess.run([ETE, "token", "--file", str(self.root / "tokens"), "--name", name, *flags],
                              capture_output=True, text=True, check=True)  # fmt: skip
        return made.stdout.strip()

    def secret(self, token, name="secret"):
        path = self.root / name
        path.touch(0o600)
        path.write_text(token + "\n")
        return str(path)

    def with_tokens(self, *flags, step_ms=1):
        front = Front(self.processes, FRONT, [self.toy(step_ms)], f"--token-file={self.root}/tokens", *flags)
        return front.wait_until_healthy()

    @staticmethod
    def bearer(token):
        return {"Authorization": f"Bearer {token}"}

    def complete(self, front, headers=None, **fields):
        body = {"prompt": "hello", "seed": 7, "max_tokens": 4, **fields}
        status, text, _ = front.ask("POST", "/v1/completions", body, headers)
        return status, json.loads(text)

    def run_client(self, front, *flags):
        """ete run, as a client of gRPC: (exit code, what it printed)."""
        done = subprocess.run([ETE, "run", "--address", front.listen, "--max-tokens", "4", "--seed", "7", *flags, "hello"],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def health(self, front, *flags):
        """ete health: (exit code, what it printed)."""
        done = subprocess.run([ETE, "health", "--address", front.listen, *flags], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    def worker(self, *flags, address=None):
        """fake_worker is ete-worker with an engine that answers at once; its model has no tokenizer."""
        address = address or f"127.0.0.1:{free_port()}"
        self.processes.start("worker", [FAKE_WORKER, "--model=fake", f"--listen={address}", "--log-format=json", *flags])
        return address
