"""Servers as processes, with flags of the test's own, and what a client of theirs needs. Standard library only."""

import http.client
import json
import os
import pathlib
import signal
import ssl
import subprocess
import tempfile
import time

from http_servers import free_port


def eventually(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Processes:
    """Processes in a directory of their own; close() ends all of them."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.root = pathlib.Path(self.directory.name)
        self.running = {}

    def start(self, name, command, sockets=(), log=None):
        """What it prints goes to the file `log`, else to one of that name. It inherits the sockets."""
        log = open(log or self.root / f"{name}.log", "a")
        self.running[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log,
                                              pass_fds=[one.fileno() for one in sockets])  # fmt: skip
        log.close()
        return self.running[name]

    def log(self, name):
        path = self.root / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def end(self, name, how=signal.SIGTERM):
        process = self.running.pop(name)
        process.send_signal(how)
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def close(self):
        for name in list(self.running):
            self.end(name)
        self.directory.cleanup()


class Front:
    """ete-front with HTTP beside workers that the test starts."""

    def __init__(self, processes, front, workers, *flags, sockets=(), name="front", log=None, grace=1):
        """sockets: two that listen, for gRPC and for HTTP, which it inherits; none: it makes its own. grace: in seconds."""
        self.processes = processes
        self.name = name
        grpc_port, self.port = [one.getsockname()[1] for one in sockets] or (free_port(), free_port())
        self.listen = f"127.0.0.1:{grpc_port}"
        at = [f"fd:{one.fileno()}" for one in sockets] or [self.listen, f"127.0.0.1:{self.port}"]
        self.tls = None  # an ssl.SSLContext of the client
        self.headers = {}
        processes.start(name, [front, f"--workers={','.join(workers)}", f"--listen={at[0]}", f"--http={at[1]}",
                               "--log-format=json", f"--drain-grace={grace}", *flags], sockets, log)  # fmt: skip

    def connection(self, timeout=60):
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connection()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, self.headers if headers is None else headers)
            response = connection.getresponse()
            return response.status, response.read().decode(), response.headers
        finally:
            connection.close()

    def post(self, path, **body):
        status, text, _ = self.ask("POST", path, body)
        return status, json.loads(text)

    def healthy(self):
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def wait_until_healthy(self):
        if not eventually(self.healthy, 60):
            raise RuntimeError("the front is not healthy: " + self.processes.log(self.name))
        return self

    def events(self, message, **fields):
        """The lines of the log, which are JSON every one, with this message and these fields."""
        lines = [json.loads(line) for line in self.processes.log(self.name).splitlines()]
        assert all({"time", "level", "process", "message"} <= set(line) for line in lines)
        return [line for line in lines if line["message"] == message and fields.items() <= line.items()]

    def stream(self, path, **body):
        """The events of a stream as they come: (connection, iterator)."""
        connection = self.connection()
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(), self.headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()

        def events():
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: "):])
            connection.close()

        return connection, events()


class Authority:
    """Certificates of an authority of the test's own, made by openssl."""

    def __init__(self, root, name):
        self.root = root
        self.name = name
        self.file = self.path("ca.pem")
        self.openssl("req", "-x509", *self.new_key("ca"), "-out", self.file, "-subj", f"/CN={name}", "-days", "2")

    def path(self, name):
        return str(self.root / f"{self.name}-{name}")

    def new_key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self.path(f"{name}.key")]

    @staticmethod
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def issue(self, name):
        """(certificate, key) for this machine."""
        request, extensions = self.path(f"{name}.csr"), self.path("extensions")
        certificate = self.path(f"{name}.pem")
        pathlib.Path(extensions).write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.openssl("req", *self.new_key(name), "-out", request, "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.path("ca.key"), "-out", certificate,
                     "-set_serial", str(time.time_ns()), "-days", "2", "-extfile", extensions)  # fmt: skip
        return certificate, self.path(f"{name}.key")

    def context(self, certificate=None, key=None):
        """A client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate:
            context.load_cert_chain(certificate, key)
        return context


def replace(old, new):
    """Both files at once, as far as a reader of either can tell."""
    for source, target in zip(new, old):
        os.replace(source, target)
