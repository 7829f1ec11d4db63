"""The servers under systemd's protocols: readiness, watchdog, sockets. Arguments: root of the sources, folder of programs."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from deployed import BIN, ROOT

STORY = ROOT / "models" / "story-8m"


class Manager:
    """What systemd is to a service: a socket for its messages, and listening sockets that it inherits."""

    def __init__(self, directory):
        self.path = Path(directory, "notify")
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages.bind(str(self.path))

    def start(self, words, sockets=(), watchdog=None):
        kept = [os.dup(one.fileno()) for one in sockets]

        def become_service():
            high = [os.dup2(fd, 100 + index, inheritable=False) for index, fd in enumerate(kept)]
            for index, fd in enumerate(high):
                os.dup2(fd, 3 + index, inheritable=True)

        env = {**os.environ, "NOTIFY_SOCKET": str(self.path)}
        if watchdog:
            env["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
        server = subprocess.Popen([str(word) for word in words], env=env, preexec_fn=become_service, close_fds=False,
                                  stderr=subprocess.PIPE)
        for fd in kept:
            os.close(fd)
        return server

    def next(self, timeout=60):
        ready, _, _ = select.select([self.messages], [], [], timeout)
        return dict(line.split("=", 1) for line in self.messages.recv(4096).decode().splitlines()) if ready else None

    def wait_for(self, key, seconds=60):
        seen = []
        end = time.monotonic() + seconds
        while message := self.next(max(end - time.monotonic(), 0)):
            if key in message:
                return message, seen
            seen.append(message)
        raise AssertionError(f"no {key} in {seconds} s; there were {seen}")


class ServiceManagerTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.manager = Manager(directory.name)
        self.addCleanup(self.manager.messages.close)
        self.listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.listener.close)
        self.listener.bind(str(self.directory / "worker.sock"))
        self.listener.listen()

    def worker(self, **more):
        server = self.manager.start([BIN / "ete-worker", "--model", STORY, "--device", "cpu", "--listen", "fd:3"],
                                    [self.listener], **more)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server

    def health(self, address, timeout="5"):
        return subprocess.run([BIN / "ete", "health", "--address", address, "--timeout", timeout], capture_output=True,
                              text=True, timeout=60)

    def test_a_worker_tells_of_its_load_and_its_end(self):
        server = self.worker()
        ready, before = self.manager.wait_for("READY")
        self.assertIn("serving", ready["STATUS"])
        self.assertTrue(any("loading" in message["STATUS"] for message in before), before)
        self.assertTrue(all(int(message["EXTEND_TIMEOUT_USEC"]) > 0 for message in before), before)
        answer = self.health(f"unix:{self.directory / 'worker.sock'}")
        self.assertEqual((answer.returncode, answer.stdout), (0, "SERVING\n"), answer.stderr)
        server.send_signal(signal.SIGTERM)
        self.manager.wait_for("STOPPING")
        self.assertEqual(server.wait(30), 0)

    def test_the_socket_outlives_the_worker(self):
        first = self.worker()
        self.manager.wait_for("READY")
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(30), 0)
        # Who connects now waits for the next.
        asked = subprocess.Popen([BIN / "ete", "health", "--address", f"unix:{self.directory / 'worker.sock'}",
                                  "--timeout", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.2)
        self.assertIsNone(asked.poll())
        self.worker()
        said, error = asked.communicate(timeout=90)
        self.assertIn((said, error.split(": ")[-1]), [("SERVING\n", ""), ("", "NOT_SERVING\n")])

    def test_the_watchdog_hears_of_a_worker_that_lives_and_of_none_that_is_stopped(self):
        server = self.worker(watchdog=1)
        self.manager.wait_for("READY")
        for _ in range(3):
            self.manager.wait_for("WATCHDOG")
        server.send_signal(signal.SIGSTOP)
        while self.manager.next(timeout=2) is not None:
            pass
        server.send_signal(signal.SIGCONT)
        self.manager.wait_for("WATCHDOG")

    def test_a_front_takes_both_sockets(self):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        for one in sockets:
            self.addCleanup(one.close)
        grpc, http = [one.getsockname()[1] for one in sockets]
        server = self.manager.start([BIN / "ete-front", "--listen", "fd:3", "--http", "fd:4", "--worker",
                                     f"unix:{self.directory / 'worker.sock'}"], sockets, watchdog=1)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        ready, _ = self.manager.wait_for("READY")
        self.assertIn(f"127.0.0.1:{grpc}", ready["STATUS"])
        self.manager.wait_for("WATCHDOG")
        answer = self.health(f"127.0.0.1:{grpc}")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("NOT_SERVING", answer.stderr)
        with socket.create_connection(("127.0.0.1", http), timeout=30) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 503"))
        server.send_signal(signal.SIGTERM)
        self.manager.wait_for("STOPPING")
        self.assertEqual(server.wait(30), 0)

    def test_what_is_no_listening_socket_is_refused(self):
        connected, other = socket.socketpair()
        with connected, other:
            for text, sockets in (("fd:3", [connected]), ("fd:77", []), ("fd:2", []), ("fd:x", [])):
                server = self.manager.start([BIN / "ete-worker", "--model", "random:tiny", "--listen", text], sockets)
                _, error = server.communicate(timeout=60)
                self.assertEqual(server.returncode, 2, text)
                self.assertIn(f'"{text}"'.encode(), error)
        self.assertIsNone(self.manager.next(timeout=0))

    def test_one_socket_is_not_taken_twice(self):
        server = self.manager.start([BIN / "ete-front", "--listen", "fd:3", "--http", "fd:3", "--worker", "unix:/none"],
                                    [self.listener])
        _, error = server.communicate(timeout=60)
        self.assertEqual(server.returncode, 2)
        self.assertIn(b"one socket serves one of them", error)

    def test_ete_serve_takes_none(self):
        for flags in (["--listen", "fd:3"], ["--listen", f"unix:{self.directory}/front", "--http", "fd:3"]):
            server = self.manager.start([BIN / "ete", "serve", "--model", STORY, *flags], [self.listener])
            _, error = server.communicate(timeout=60)
            self.assertEqual(server.returncode, 2)
            self.assertIn(b"ete-front takes it", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
