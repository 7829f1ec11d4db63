"""Processes that the tests of the HTTP API start: a front beside a toy worker. Standard library only."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

TEMPLATE = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def child_of(parent, name):
    """The process id of the one that has this name."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = entry.read_text()
            if f"\nPPid:\t{parent}\n" in text and text.startswith(f"Name:\t{name}\n"):
                return int(entry.parent.name)
    raise AssertionError(f"there is no {name}")


class Servers:
    """ete-front with HTTP beside a toy worker, in a directory of their own; close() ends both."""

    def __init__(self, front, toy_worker, context=4096, step_ms=1, template=TEMPLATE, name="toy"):
        self.directory = tempfile.TemporaryDirectory(dir="/tmp")
        root = pathlib.Path(self.directory.name)
        (root / "template").write_text(template)
        self.root = root
        self.port = free_port()
        self.log = open(root / "log", "w+")
        worker = [toy_worker, str(root / "worker"), name, str(context), str(step_ms), str(root / "template")]
        self.worker = subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=self.log)
        self.front_command = [front, f"--worker=unix:{root}/worker", f"--listen=unix:{root}/front",
                              f"--http=127.0.0.1:{self.port}", "--drain-grace=1"]  # fmt: skip
        self.start_front()

    def start_front(self):
        self.front = subprocess.Popen(self.front_command, stderr=self.log)
        self.wait_until_healthy()

    def kill_front(self):
        self.front.kill()
        self.front.wait()

    def wait_until_healthy(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.front.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.log.seek(0)
        raise RuntimeError("the front is not healthy: " + self.log.read())

    def close(self):
        for process in (self.front, self.worker):
            process.send_signal(signal.SIGTERM)
        for process in (self.front, self.worker):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
        self.directory.cleanup()

    def connection(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connection()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text, response

    def get(self, path):
        status, text, _ = self.ask("GET", path)
        return status, json.loads(text)

    def post(self, path, body):
        status, text, _ = self.ask("POST", path, body)
        return status, json.loads(text)

    def events(self, path, body):
        status, text, response = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, text
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in text.decode().split("\n\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]", lines[-1]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def typed_events(self, path, body):
        """Of a stream whose events say what they are, and that none follows."""
        status, text, response = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, text
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = []
        for block in text.decode().split("\n\n"):
            if not block or block.startswith(":"):
                continue
            name, data = block.split("\n", 1)
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == "event: " + events[-1]["type"], block
        return events

    def front_memory(self):
        """Bytes that the front occupies."""
        pages = int(pathlib.Path(f"/proc/{self.front.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
