"""Certificates of servers and clients, over real processes.

Arguments: the paths of ete-front, toy_worker, fake_worker and ete.
"""

import http.client
import os
import pathlib
import socket
import subprocess
import sys
import time
import unittest

from processes import Authority, Front, eventually, replace
from security_case import ETE, FRONT, Security


class Certificates(Security):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.root, "ours")
        self.certificate, self.key = self.authority.issue("server")

    def flags(self):
        return [f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]

    def refused_by(self, front, context):
        """Whether the handshake, or what follows it at once, fails."""
        front.tls = context
        try:
            return self.complete(front)[0] != 200
        except (OSError, http.client.HTTPException):
            return True

    def test_tls(self):
        front = Front(self.processes, FRONT, [self.toy()], *self.flags())
        front.tls = self.authority.context()
        front.wait_until_healthy()
        status, body = self.complete(front)
        self.assertEqual(status, 200)
        _, events = front.stream("/v1/completions", prompt="hello", seed=7, max_tokens=4)
        text = "".join(event["choices"][0]["text"] for event in events)
        self.assertEqual(text, body["choices"][0]["text"])
        self.assertTrue(self.refused_by(front, None))
        self.assertTrue(self.refused_by(front, Authority(self.root, "another").context()))
        code, said = self.run_client(front, "--tls-ca", self.authority.file)
        self.assertEqual((code, len(said)), (0, 5), said)
        chat = [ETE, "chat", "--address", front.listen, "--max-tokens", "4", "--tls-ca", self.authority.file]
        done = subprocess.run(chat, input="hello\n", capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, len(done.stdout), done.stderr), (0, 5, ""))
        self.assertEqual(self.run_client(front)[0], 1)
        self.assertEqual(self.run_client(front, "--tls-ca", str(self.root / "another-ca.pem"))[0], 1)
        self.assertEqual(self.health(front, "--tls-ca", self.authority.file), (0, "SERVING\n"))
        self.assertEqual(self.health(front), (1, ""))

    def test_on_inherited_sockets(self):
        token = self.token("ada")
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        for one in sockets:
            self.addCleanup(one.close)
        front = Front(self.processes, FRONT, [self.toy()], *self.flags(), f"--token-file={self.root}/tokens", sockets=sockets)
        front.tls = self.authority.context()
        front.wait_until_healthy()
        self.assertEqual(self.complete(front)[0], 401)
        self.assertEqual(self.complete(front, self.bearer(token))[0], 200)
        trust, show = ["--tls-ca", self.authority.file], ["--token", self.secret(token)]
        code, said = self.run_client(front, *trust)
        self.assertEqual(code, 1)
        self.assertIn("UNAUTHENTICATED", said)
        self.assertEqual(self.run_client(front, *show)[0], 1)
        code, said = self.run_client(front, *trust, *show)
        self.assertEqual((code, len(said)), (0, 5), said)
        for flags in (trust, trust + show):
            self.assertEqual(self.health(front, *flags), (0, "SERVING\n"))
        self.assertEqual(self.health(front, *show), (1, ""))
        self.assertTrue(self.refused_by(front, None))

    def test_mutual_tls(self):
        another = Authority(self.root, "another")
        ours, others = self.authority.issue("client"), another.issue("client")
        front = Front(self.processes, FRONT, [self.toy()], *self.flags(), f"--tls-client-ca={self.authority.file}")
        front.tls = self.authority.context(*ours)
        front.wait_until_healthy()
        self.assertEqual(self.complete(front)[0], 200)
        self.assertTrue(self.refused_by(front, self.authority.context()))
        self.assertTrue(self.refused_by(front, self.authority.context(*others)))
        self.assertTrue(any(event["reason"].startswith("TLS: ") for event in front.events("refused")))
        show = lambda pair: ["--tls-ca", self.authority.file, "--tls-cert", pair[0], "--tls-key", pair[1]]
        self.assertEqual(self.run_client(front, *show(ours))[0], 0)
        self.assertEqual(self.health(front, *show(ours)), (0, "SERVING\n"))
        self.assertEqual(self.health(front, *show(others)), (1, ""))
        self.assertEqual(self.run_client(front, "--tls-ca", self.authority.file)[0], 1)
        self.assertEqual(self.run_client(front, *show(others))[0], 1)

    def serial(self, port):
        context = self.authority.context()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                return connection.getpeercert()["serialNumber"]

    def test_certificates_are_read_again(self):
        front = Front(self.processes, FRONT, [self.toy()], *self.flags())
        front.tls = self.authority.context()
        front.wait_until_healthy()
        grpc_port = int(front.listen.rsplit(":", 1)[1])
        before = self.serial(front.port)
        self.assertEqual(self.serial(grpc_port), before)
        replace((self.certificate, self.key), self.authority.issue("renewed"))
        for port in (front.port, grpc_port):
            self.assertTrue(eventually(lambda: self.serial(port) != before, 20), port)
        self.assertEqual(self.complete(front)[0], 200)

    def put(self, path, content):
        """In one step, as far as a reader can tell."""
        replacement = self.root / "replacement"
        replacement.write_bytes(content)
        os.replace(replacement, path)

    def stays(self, port, before, seconds=1.5):
        """Servers look at their files at most every half second, when somebody connects."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.assertEqual(self.serial(port), before)
            time.sleep(0.1)

    def files_that_cannot_be_used(self, ports, server):
        """Each keeps what the port shows, and a good pair is taken up after it, its certificate first."""
        before = self.serial(ports[0])
        other = pathlib.Path(self.authority.issue("other")[0]).read_bytes()
        good = pathlib.Path(self.certificate).read_bytes()
        first = good[: good.index(b"-----END")]
        for name, new in (("nonsense", b"nonsense"), ("empty", b""), ("cut off", first), ("its second", good + first),
                          ("of another key", other)):  # fmt: skip
            with self.subTest(name):
                told = self.processes.log(server).count("the TLS files stay as they were")
                self.put(self.certificate, new)
                for port in ports:
                    self.stays(port, before)
                told = self.processes.log(server).count("the TLS files stay as they were") - told
                self.assertEqual(told, len(ports))
        pathlib.Path(self.certificate).unlink()
        for port in ports:
            self.stays(port, before, 1)
        certificate, key = self.authority.issue("renewed")
        os.replace(certificate, self.certificate)
        for port in ports:
            self.stays(port, before, 1)
        os.replace(key, self.key)
        for port in ports:
            self.assertTrue(eventually(lambda: self.serial(port) != before))

    def test_files_that_cannot_be_used_change_nothing(self):
        front = Front(self.processes, FRONT, [self.toy()], *self.flags())
        front.tls = self.authority.context()
        front.wait_until_healthy()
        self.files_that_cannot_be_used((front.port, int(front.listen.rsplit(":", 1)[1])), "front")
        self.assertEqual(self.complete(front)[0], 200)
        self.assertEqual(self.run_client(front, "--tls-ca", self.authority.file)[0], 0)

    def test_files_that_cannot_be_used_change_nothing_at_a_worker(self):
        port = int(self.worker(*self.flags(), f"--tls-client-ca={self.authority.file}").rsplit(":", 1)[1])
        self.assertTrue(eventually(lambda: "listening at" in self.processes.log("worker")))
        self.files_that_cannot_be_used((port,), "worker")

    def test_authorities_of_clients_are_read_again(self):
        another = Authority(self.root, "another")
        ours, others = self.authority.issue("client"), another.issue("client")
        trusted = self.root / "trusted"
        trusted.write_bytes(pathlib.Path(self.authority.file).read_bytes())
        front = Front(self.processes, FRONT, [self.toy()], *self.flags(), f"--tls-client-ca={trusted}")
        front.tls = self.authority.context(*ours)
        front.wait_until_healthy()

        def let_in(pair):
            shown = ("--tls-ca", self.authority.file, "--tls-cert", pair[0], "--tls-key", pair[1])
            at_http = not self.refused_by(front, self.authority.context(*pair))
            return [at_http, self.health(front, *shown) == (0, "SERVING\n")]

        for nonsense in (b"nonsense", b""):
            self.put(trusted, nonsense)
            time.sleep(2.5)
            self.assertEqual(let_in(ours), [True, True])
            self.assertEqual(let_in(others), [False, False])
        both = pathlib.Path(another.file).read_bytes() + pathlib.Path(self.authority.file).read_bytes()
        self.put(trusted, both)
        self.assertTrue(eventually(lambda: let_in(others) == [True, True]))
        self.assertEqual(let_in(ours), [True, True])
        self.put(trusted, pathlib.Path(another.file).read_bytes())
        self.assertTrue(eventually(lambda: let_in(ours) == [False, False]))
        self.assertEqual(let_in(others), [True, True])

    def test_wrong_files_are_refused(self):
        _, other_key = self.authority.issue("other")
        for certificate, key, named in ((self.certificate, other_key, other_key), (self.key, self.key, self.key),
                                        ("/none", self.key, "/none")):  # fmt: skip
            process = subprocess.run([FRONT, "--worker=unix:/none", f"--listen=unix:{self.root}/front",
                                      f"--tls-cert={certificate}", f"--tls-key={key}"], capture_output=True, text=True,
                                     timeout=30)  # fmt: skip
            self.assertEqual(process.returncode, 1)
            self.assertIn(named, process.stderr)


class CertificatesOfWorkers(Security):
    def test_mutual_tls(self):
        authority = Authority(self.root, "ours")
        server, client = authority.issue("worker"), authority.issue("front")
        address = self.worker(f"--tls-cert={server[0]}", f"--tls-key={server[1]}", f"--tls-client-ca={authority.file}")
        front = Front(self.processes, FRONT, [address], f"--worker-tls-ca={authority.file}")
        self.assertFalse(eventually(front.healthy, 3))
        self.processes.end("front")
        another = Authority(self.root, "another")
        stranger = another.issue("front")
        for trusted, shown in ((authority, stranger), (another, client)):
            front = Front(self.processes, FRONT, [address], f"--worker-tls-ca={trusted.file}",
                          f"--worker-tls-cert={shown[0]}", f"--worker-tls-key={shown[1]}")  # fmt: skip
            self.assertFalse(eventually(front.healthy, 3))
            self.processes.end("front")
        front = Front(self.processes, FRONT, [address], f"--worker-tls-ca={authority.file}",
                      f"--worker-tls-cert={client[0]}", f"--worker-tls-key={client[1]}").wait_until_healthy()  # fmt: skip
        self.assertEqual(self.complete(front, prompt=[1, 2, 3])[0], 200)

    def test_what_a_front_shows_and_trusts_is_read_again(self):
        """Its files hold for the next connection, and those that cannot be used change nothing."""
        authority, another = Authority(self.root, "ours"), Authority(self.root, "another")
        server, shown = authority.issue("worker"), authority.issue("front")
        trusted = self.root / "trusted"
        trusted.write_bytes(pathlib.Path(authority.file).read_bytes())
        flags = lambda pair, its: (f"--tls-cert={pair[0]}", f"--tls-key={pair[1]}", f"--tls-client-ca={its.file}")
        address = self.worker(*flags(server, authority))
        front = Front(self.processes, FRONT, [address], f"--worker-tls-ca={trusted}", f"--worker-tls-cert={shown[0]}",
                      f"--worker-tls-key={shown[1]}").wait_until_healthy()  # fmt: skip

        def restart_worker(pair, its):
            self.processes.end("worker")
            self.assertTrue(eventually(lambda: not front.healthy()))
            time.sleep(1.5)  # it looks at its files while it is not connected
            self.worker(*flags(pair, its), address=address)

        kept = pathlib.Path(shown[0]).read_bytes()
        pathlib.Path(shown[0]).write_bytes(b"nonsense")
        trusted.write_bytes(b"")
        restart_worker(server, authority)
        self.assertTrue(eventually(front.healthy))
        self.assertEqual(self.complete(front, prompt=[1, 2, 3])[0], 200)
        self.assertIn("the TLS files stay as they were", self.processes.log("front"))
        pathlib.Path(shown[0]).write_bytes(kept)

        restart_worker(another.issue("worker"), another)
        self.assertFalse(eventually(front.healthy, 2))
        replace(shown, another.issue("front"))
        trusted.write_bytes(pathlib.Path(another.file).read_bytes())
        self.assertTrue(eventually(front.healthy))
        self.assertEqual(self.complete(front, prompt=[1, 2, 3])[0], 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
