"""`ete serve` on a small model, paced so that a generation can be interrupted."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import grpc
from ete.v1 import engine_pb2, engine_pb2_grpc

START_TIMEOUT = 120
READY = re.compile(r"ready at \S+, worker at (unix:\S+)")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.02)


class Front:
    """A front of its own beside a worker that runs already."""

    def __init__(self, ete, worker, address, *options):
        self.address = address
        program = pathlib.Path(ete).with_name("ete-front")
        command = [program, "--worker", worker, "--listen", address, "--drain-grace", "1", *options]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_until(self._listens, START_TIMEOUT, f"a front at {address}")
        except BaseException:
            self.stop()
            raise

    def _listens(self):
        family = socket.AF_UNIX if self.address.startswith("unix:") else socket.AF_INET
        with socket.socket(family) as probe:
            host, _, port = self.address.partition(":")
            return probe.connect_ex(port if family == socket.AF_UNIX else (host, int(port))) == 0

    def stop(self):
        self._process.terminate()
        self._process.wait(timeout=30)


class LiveServer:
    # Some 25 tokens a second. Nothing is reused between requests, so that the same request has the same bits.
    PACED = ["--device", "cpu", "--resident-layers", "0", "--link-limit", "400M", "--prefix-cache", "0"]

    def __init__(self, ete, model, temporary):
        self.address = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [ete, "serve", "--model", model, "--listen", self.address, *self.PACED],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": temporary},
        )
        self._worker_address = None
        self._log = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            wait_until(
                lambda: self._worker_address or self._process.poll() is not None, START_TIMEOUT, "ete serve is ready"
            )
            if self._worker_address is None:
                raise AssertionError("ete serve ended:\n" + "".join(self._log))
            self._channel = grpc.insecure_channel(self._worker_address)
            self._engine = engine_pb2_grpc.EngineStub(self._channel)
        except BaseException:
            self.stop()
            raise

    @property
    def worker_address(self):
        return self._worker_address

    def _read(self):
        for line in self._process.stderr:
            self._log.append(line)
            if match := READY.search(line):
                self._worker_address = match[1]

    def sessions(self):
        status = self._engine.GetStatus(engine_pb2.GetStatusRequest(), timeout=10, wait_for_ready=True)
        return status.sessions + status.queued

    def kill_worker(self):
        """Whether there was one."""
        for child in pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            name = pathlib.Path(f"/proc/{child}/comm")
            if name.exists() and name.read_text().strip() == "ete-worker":
                os.kill(int(child), signal.SIGKILL)
                return True
        return False

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join()
