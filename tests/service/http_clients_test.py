"""OpenAI's HTTP API over real processes: what clients send and read, byte by byte, and when. Standard library only.

Arguments: the paths of ete-front and toy_worker.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import unittest

from http_case import FRONT, TOY_WORKER, HttpTest
from http_servers import Servers
from processes import eventually


class Transport(HttpTest):
    def said(self, request):
        """The statuses that come, and whether the server hangs up before the client does."""
        with socket.create_connection(("127.0.0.1", self.servers.port), timeout=10) as connection:
            connection.sendall(request)
            received = b""
            connection.settimeout(2)
            try:
                while part := connection.recv(65536):
                    received += part
                closed = True
            except TimeoutError:
                closed = False
        return re.findall(rb"HTTP/1\.[01] (\d+) ", received), closed

    def test_one_host_line(self):
        for hosts in ("", "Host: a\r\nHost: b\r\n", "Host: a\r\nhost: a\r\n"):
            request = f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode()
            self.assertEqual(self.said(request * 2), ([b"400"], True), hosts)
        self.assertEqual(self.said(b"GET /health HTTP/1.0\r\n\r\n"), ([b"200"], True))

    def test_encoded_bodies(self):
        for coding, status in (("gzip", 415), ("br", 415), ("gzip, identity", 415), ("identity", 200), ("Identity", 200)):
            body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
            found, text, _ = self.servers.ask("POST", "/v1/completions", body, {"Content-Encoding": coding})
            self.assertEqual(found, status, coding)
            if status == 415:
                self.assertIn(f'Content-Encoding: "{coding}"', json.loads(text)["error"]["message"])

    def test_empty_lines_before_a_request(self):
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        self.assertEqual(self.said(b"\r\n" + request + b"\r\n\r\n" + request), ([b"200", b"200"], False))

    def test_a_client_of_http_1_0_is_not_told_to_go_on(self):
        head = b"POST /tokenize HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n"
        self.assertEqual(self.said(head), ([], False))
        self.assertEqual(self.said(head + b'{"prompt": "x"}'), ([b"200"], True))


class OpenFiles(unittest.TestCase):
    """A client takes a descriptor of the front's. 150 of them beside limits of 100."""

    def servers(self, limits):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
            script.write(f'#!/bin/sh\n{limits}\nexec {FRONT} "$@"\n')
        self.addCleanup(os.unlink, script.name)
        os.chmod(script.name, 0o700)
        servers = Servers(script.name, TOY_WORKER)
        self.addCleanup(servers.close)
        return servers

    def crowd(self, servers):
        clients = contextlib.ExitStack()
        self.addCleanup(clients.close)
        for _ in range(150):
            clients.enter_context(socket.create_connection(("127.0.0.1", servers.port), 10))
        return clients

    def log(self, servers):
        return (servers.root / "log").read_text()

    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        servers = self.servers("ulimit -Hn 1000; ulimit -Sn 100")
        self.crowd(servers)
        self.assertEqual(servers.get("/health")[0], 200)

    def test_where_they_run_out_the_log_says_it_once(self):
        servers = self.servers("ulimit -n 100")
        clients = self.crowd(servers)
        self.assertTrue(eventually(lambda: "new clients wait" in self.log(servers)))
        time.sleep(1)
        self.assertEqual(self.log(servers).count("new clients wait"), 1)
        self.assertIn("the limit of open files and sockets is 100", self.log(servers))
        clients.close()
        self.assertEqual(servers.get("/health")[0], 200)


class Clients(unittest.TestCase):
    """Clients that go, do not read, or are many. A token takes 20 ms."""

    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        cls.addClassCleanup(cls.servers.close)

    def stream(self, **body):
        request = json.dumps({"prompt": "x", "max_tokens": 90_000, "stream": True, **body})
        client = socket.create_connection(("127.0.0.1", self.servers.port), 60)
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n{request}".encode()
        )
        return client

    def threads_of_worker(self):
        return len(os.listdir(f"/proc/{self.servers.worker.pid}/task"))

    def test_a_client_that_goes_frees_its_session(self):
        # The toy worker has a thread a session.
        before = self.threads_of_worker()
        clients = [self.stream() for _ in range(8)]
        for client in clients:
            self.assertIn(b"data: ", self.read_until(client, b"data: "))
        self.assertGreater(self.threads_of_worker(), before + 4)
        for client in clients:
            client.close()
        end = time.monotonic() + 30
        while self.threads_of_worker() > before + 4 and time.monotonic() < end:
            time.sleep(0.1)
        self.assertLessEqual(self.threads_of_worker(), before + 4)
        self.assertEqual(self.servers.get("/health")[0], 200)

    def read_until(self, client, mark):
        data = b""
        while mark not in data:
            piece = client.recv(4096)
            if not piece:
                break
            data += piece
        return data

    def test_many_idle_clients_cost_no_threads(self):
        threads = len(os.listdir(f"/proc/{self.servers.front.pid}/task"))
        memory = self.servers.front_memory()
        idle = [socket.create_connection(("127.0.0.1", self.servers.port), 60) for _ in range(512)]
        self.assertEqual(self.servers.get("/health")[0], 200)
        self.assertLessEqual(len(os.listdir(f"/proc/{self.servers.front.pid}/task")), threads + 2)
        self.assertLess(self.servers.front_memory() - memory, 64 << 20)
        for client in idle:
            client.close()

    def test_a_front_that_stops_ends_its_streams(self):
        servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        try:
            servers.front.send_signal(signal.SIGTERM)
            self.assertEqual(servers.front.wait(20), 0)
        finally:
            servers.close()

    def test_a_worker_that_dies_ends_the_stream_with_an_error(self):
        servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        try:
            connection = servers.connection()
            body = json.dumps({"prompt": "x", "max_tokens": 90_000, "stream": True})
            connection.request("POST", "/v1/completions", body)
            response = connection.getresponse()
            self.assertTrue(response.readline().startswith(b"data: {"))
            servers.worker.kill()
            last = response.read().decode().strip().split("\n\n")[-1]
            self.assertEqual(json.loads(last.removeprefix("data: "))["error"]["code"], "unavailable")
            connection.close()
        finally:
            servers.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
