"""Strangers, certificates, tokens and sockets, over real processes.

Arguments: the paths of ete-front, toy_worker, fake_worker and ete.
"""

import errno
import http.client
import json
import os
import pathlib
import socket
import ssl
import stat
import subprocess
import sys
import time
import unittest

from http_servers import TEMPLATE, free_port
from processes import Authority, Front, Processes, eventually, replace

FRONT, TOY_WORKER, FAKE_WORKER, ETE = sys.argv[1:5]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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


class Tokens(Security):
    def test_only_those_who_have_one_are_let_in(self):
        token = self.token("ada")
        front = self.with_tokens()
        for headers in ({}, self.bearer("ete-" + "0" * 64), self.bearer(token[:-1]), self.bearer(""),
                        {"Authorization": token}):  # fmt: skip
            for method, path in (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"),
                                 ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"), ("GET", "/v1/models"),
                                 ("GET", "/status"), ("GET", "/none")):  # fmt: skip
                status, text, answer = front.ask(method, path, {} if method == "POST" else None, headers)
                self.assertEqual((status, answer["WWW-Authenticate"]), (401, "Bearer"), text)
        self.assertEqual(front.ask("GET", "/health", headers={})[0], 200)
        self.assertEqual(self.complete(front, self.bearer(token))[0], 200)
        metrics = front.ask("GET", "/metrics", headers=self.bearer(token))[1]
        self.assertIn("ete_calls_refused_total 45", metrics.splitlines())
        refused = front.events("refused", reason="no token, or a wrong one")
        self.assertTrue(1 <= len(refused) < 10, refused)
        self.assertTrue(refused[0]["peer"].startswith("127.0.0.1:"))
        self.assertNotIn(token[:-1], self.processes.log("front"))
        self.assertNotIn(token, (self.root / "tokens").read_text())
        self.assertEqual(front.events("request ended")[0]["caller"], "ada")

    def test_grpc_too(self):
        token = self.token("ada")
        front = self.with_tokens()
        code, said = self.run_client(front)
        self.assertEqual(code, 1)
        self.assertIn("UNAUTHENTICATED", said)
        code, said = self.run_client(front, "--token", self.secret("ete-" + "0" * 64))
        self.assertEqual(code, 1)
        self.assertIn("UNAUTHENTICATED", said)
        code, said = self.run_client(front, "--token", self.secret(token), "--json")
        self.assertEqual(code, 0, said)
        code, said = self.run_client(front, "--token", self.secret(token), "--chat")
        self.assertEqual((code, len(said)), (0, 5), said)
        code, said = self.run_client(front, "--chat")
        self.assertEqual(code, 1)
        self.assertIn("UNAUTHENTICATED", said)
        open_to_all = pathlib.Path(self.secret(token, "open"))
        open_to_all.chmod(0o644)
        code, said = self.run_client(front, "--token", str(open_to_all))
        self.assertEqual(code, 1)
        self.assertIn("lets others read it", said)

    def chat(self, front, *flags):
        """ete chat, one message: (exit code, reply, what was complained about)."""
        done = subprocess.run([ETE, "chat", "--address", front.listen, "--max-tokens", "4", "--seed", "7", *flags],
                              input="hello\n", capture_output=True, text=True, timeout=60)  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def test_ete_chat_too(self):
        token = self.token("ada")
        front = self.with_tokens()
        self.assertIn("UNAUTHENTICATED", self.chat(front)[2])
        code, said, complaint = self.chat(front, "--token", self.secret(token))
        self.assertEqual((code, len(said), complaint), (0, 5, ""), said)

    def test_the_page_is_shown_to_anybody_and_its_calls_are_not(self):
        self.token("ada")
        front = self.with_tokens()
        self.assertEqual(front.ask("GET", "/", headers={})[0], 200)
        self.assertEqual(front.ask("GET", "/page/page.js", headers={})[0], 200)
        origin = {"Origin": f"http://127.0.0.1:{front.port}"}
        status, _, headers = front.ask("GET", "/status", headers=origin)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (401, origin["Origin"]))

    def test_limits(self):
        one, few = self.token("one", "--concurrent", "1"), self.token("few", "--tokens-per-minute", "20")
        front = self.with_tokens(step_ms=20)
        front.headers = self.bearer(one)
        connection, events = front.stream("/v1/completions", prompt="hello", max_tokens=1000)
        next(events)
        status, body = self.complete(front, self.bearer(one))
        self.assertEqual((status, body["error"]["code"]), (429, "resource_exhausted"))
        self.assertIn("1 requests running", body["error"]["message"])
        self.assertEqual(self.complete(front, self.bearer(few), max_tokens=16)[0], 200)
        status, text, headers = front.ask("POST", "/v1/completions", {"prompt": "hello"}, self.bearer(few))
        self.assertEqual(status, 429)
        message = json.loads(text)["error"]["message"]
        self.assertIn("20 tokens a minute", message)
        self.assertIn(f"try again in {headers['Retry-After']} s", message)
        connection.close()
        self.assertTrue(eventually(lambda: self.complete(front, self.bearer(one))[0] == 200))

    def test_a_limit_is_each_tokens_own(self):
        one, two = self.token("one", "--concurrent", "1"), self.token("two", "--concurrent", "1")
        few, less = (self.token(name, "--tokens-per-minute", "20") for name in ("few", "less"))
        front = self.with_tokens(step_ms=20)
        front.headers = self.bearer(one)
        connection, events = front.stream("/v1/completions", prompt="hello", max_tokens=1000)
        next(events)
        self.assertEqual(self.complete(front, self.bearer(one))[0], 429)
        self.assertEqual(self.complete(front, self.bearer(two))[0], 200)
        self.assertEqual(self.complete(front, self.bearer(few), max_tokens=16)[0], 200)
        self.assertEqual(self.complete(front, self.bearer(few))[0], 429)
        self.assertEqual(self.complete(front, self.bearer(less))[0], 200)
        connection.close()

    def test_choices_that_a_token_can_never_run_at_a_time(self):
        bearer = self.bearer(self.token("two", "--concurrent", "2"))
        front = self.with_tokens()
        self.assertEqual(self.complete(front, bearer, n=2)[0], 200)
        for more, param in (({"n": 3}, "n"), ({"n": 2, "prompt": ["a", "b"]}, "n"), ({"prompt": ["a", "b", "c"]}, "prompt")):
            with self.subTest(more):
                status, body = self.complete(front, bearer, **more)
                self.assertEqual((status, body["error"]["param"]), (400, param))
                self.assertIn("expected at most 2 together, as many as the token two may have running", body["error"]["message"])

    def test_a_changed_file_is_read_again(self):
        first = self.token("first")
        front = self.with_tokens()
        second = self.token("second")
        self.assertTrue(eventually(lambda: self.complete(front, self.bearer(second))[0] == 200))
        file = self.root / "tokens"
        kept = file.read_text()
        file.write_text("second nonsense\n")
        self.assertTrue(eventually(lambda: self.complete(front, self.bearer(first))[0] == 200
                                   and "the tokens stay as they were" in self.processes.log("front")))  # fmt: skip
        self.assertEqual(self.complete(front, self.bearer(second))[0], 200)
        self.assertNotIn("nonsense", self.processes.log("front"))
        file.write_text("".join(line for line in kept.splitlines(True) if line.startswith("second")))
        self.assertTrue(eventually(lambda: self.complete(front, self.bearer(first))[0] == 401))
        self.assertEqual(self.complete(front, self.bearer(second))[0], 200)

    def test_cached_prefixes_are_each_tokens_own(self):
        """The toy worker finds one position in its cache under the salt "reuse" and no other."""
        front = Front(self.processes, FRONT, [self.toy()]).wait_until_healthy()
        cached = self.complete(front, cache_salt="reuse")[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached, 1)
        self.processes.end("front")
        token = self.token("ada")
        front = Front(self.processes, FRONT, [f"unix:{self.root}/worker"], f"--token-file={self.root}/tokens")
        front.wait_until_healthy()
        usage = self.complete(front, self.bearer(token), cache_salt="reuse")[1]["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_wrong_files_are_refused(self):
        tokens = self.root / "tokens"
        for line, expected in (("ada", "tokens:1"), ("ada " + "0" * 64 + " concurrent=0", "concurrent=0"),
                               ("# none", "holds no token")):  # fmt: skip
            tokens.write_text(line + "\n")
            process = subprocess.run([FRONT, "--worker=unix:/none", f"--listen=unix:{self.root}/front",
                                      f"--token-file={tokens}"], capture_output=True, text=True, timeout=30)  # fmt: skip
            self.assertEqual(process.returncode, 1)
            self.assertIn(expected, process.stderr)

    def test_names_that_would_not_be_read_back(self):
        self.token("ada")
        kept = (self.root / "tokens").read_text()
        for name in ("#bob", "bo b", "", "ada", "b" * 65):
            made = subprocess.run([ETE, "token", "--file", str(self.root / "tokens"), "--name", name],
                                  capture_output=True, text=True, timeout=30)  # fmt: skip
            self.assertNotEqual(made.returncode, 0, name)
            self.assertIn("name", made.stderr)
            self.assertEqual(made.stdout, "")
        self.assertEqual((self.root / "tokens").read_text(), kept)
        self.assertEqual([path.name for path in sorted(self.root.glob("tokens*"))], ["tokens", "tokens.lock"])

    def test_addresses_that_others_reach(self):
        listen = [FRONT, "--worker=unix:/none", f"--listen=0.0.0.0:{free_port()}"]
        refused = subprocess.run(listen, capture_output=True, text=True, timeout=30)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--token-file", refused.stderr)
        self.token("ada")
        self.processes.start("open", [*listen, f"--token-file={self.root}/tokens"])
        self.assertTrue(eventually(lambda: "listening" in self.processes.log("open")))
        self.assertIn("in clear", self.processes.log("open"))


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
        with socket.create_connection(("127.0.0.1", port)) as plain:
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

    def test_files_that_cannot_be_used_change_nothing_for_http(self):
        front = Front(self.processes, FRONT, [self.toy()], *self.flags())
        front.tls = self.authority.context()
        front.wait_until_healthy()
        before = self.serial(front.port)
        other, _ = self.authority.issue("other")
        for new in (b"nonsense", pathlib.Path(other).read_bytes()):  # the second is not of the key
            told = self.processes.log("front").count("the TLS files stay as they were")
            replacement = self.root / "replacement"
            replacement.write_bytes(new)
            os.replace(replacement, self.certificate)
            end = time.monotonic() + 2  # it looks every half second
            while time.monotonic() < end:
                self.assertEqual(self.serial(front.port), before)
                time.sleep(0.1)
            self.assertGreater(self.processes.log("front").count("the TLS files stay as they were"), told)
        replace((self.certificate, self.key), self.authority.issue("renewed"))
        self.assertTrue(eventually(lambda: self.serial(front.port) != before))

    def test_wrong_files_are_refused(self):
        _, other_key = self.authority.issue("other")
        for certificate, key, named in ((self.certificate, other_key, other_key), (self.key, self.key, self.key),
                                        ("/none", self.key, "/none")):  # fmt: skip
            process = subprocess.run([FRONT, "--worker=unix:/none", f"--listen=unix:{self.root}/front",
                                      f"--tls-cert={certificate}", f"--tls-key={key}"], capture_output=True, text=True,
                                     timeout=30)  # fmt: skip
            self.assertEqual(process.returncode, 1)
            self.assertIn(named, process.stderr)


class WorkersOfTheirFront(Security):
    """fake_worker is ete-worker with an engine that answers at once; its model has no tokenizer."""

    def worker(self, *flags):
        address = f"127.0.0.1:{free_port()}"
        self.processes.start("worker", [FAKE_WORKER, "--model=fake", f"--listen={address}", "--log-format=json", *flags])
        return address

    def test_a_token(self):
        token = self.token("front")
        address = self.worker(f"--token-file={self.root}/tokens")
        front = Front(self.processes, FRONT, [address])
        self.assertTrue(eventually(lambda: "does not take the front's token" in self.health(front)))
        self.processes.end("front")
        front = Front(self.processes, FRONT, [address], f"--worker-token={self.secret(token)}").wait_until_healthy()
        status, body = self.complete(front, {"traceparent": PARENT}, prompt=[1, 2, 3])
        self.assertEqual(status, 200, body)
        opened = [json.loads(line) for line in self.processes.log("worker").splitlines()
                  if "session opened" in line]  # fmt: skip
        self.assertEqual(opened[0]["traceparent"], PARENT)
        ended = front.events("request ended", traceparent=PARENT)[0]
        self.assertTrue(opened[0]["request_id"].startswith(ended["request_id"]))
        self.assertNotIn(token, self.processes.log("worker") + self.processes.log("front"))

    @staticmethod
    def health(front):
        try:
            return front.ask("GET", "/health")[1]
        except OSError:
            return ""

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


class Sockets(Security):
    def mode(self, path):
        return stat.S_IMODE(os.stat(path).st_mode)

    def front_at_sockets(self, *flags):
        worker = f"unix:{self.root}/worker" if "toy" in self.processes.running else self.toy()
        self.processes.start("front", [FRONT, f"--worker={worker}", f"--listen=unix:{self.root}/grpc",
                                       f"--http=unix:{self.root}/http", f"--control=unix:{self.root}/control", *flags])  # fmt: skip
        self.assertTrue(eventually(lambda: "listening for HTTP" in self.processes.log("front")))

    def test_modes(self):
        self.front_at_sockets()
        for name in ("grpc", "http", "control"):
            self.assertEqual(self.mode(self.root / name), 0o600, name)
        self.processes.end("front")
        (self.root / "front.log").unlink()
        self.front_at_sockets("--socket-mode=660")
        self.assertEqual([self.mode(self.root / name) for name in ("grpc", "http", "control")], [0o660, 0o660, 0o600])

    def test_one_that_is_inherited_stays_as_it_is(self):
        path = self.root / "grpc"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o640)
            listener.listen()
            self.processes.start("front", [FRONT, f"--worker={self.toy()}", f"--listen=fd:{listener.fileno()}"], [listener])
            self.assertTrue(eventually(lambda: f"listening at unix:{path}" in self.processes.log("front")))
            self.assertEqual(self.mode(path), 0o640)
            self.assertEqual(self.processes.end("front"), 0)
            self.assertTrue(path.is_socket())

    def test_addresses_that_others_reach_when_they_are_inherited(self):
        with socket.create_server(("0.0.0.0", 0)) as listener:
            refused = subprocess.run([FRONT, "--worker=unix:/none", f"--listen=fd:{listener.fileno()}"],
                                     capture_output=True, text=True, timeout=30, pass_fds=[listener.fileno()])  # fmt: skip
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--token-file", refused.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to be another user")
    def test_other_users_are_kept_out(self):
        self.front_at_sockets()
        self.root.chmod(0o755)
        self.processes.start("worker2", [FAKE_WORKER, "--model=fake", f"--listen=unix:{self.root}/worker2"])
        self.assertTrue(eventually((self.root / "worker2").exists))
        for name in ("grpc", "http", "control", "worker2"):
            self.assertEqual(self.connects_as(0, self.root / name), 0, name)
            self.assertEqual(self.connects_as(65534, self.root / name), errno.EACCES, name)

    @staticmethod
    def connects_as(user, path):
        """0, or the error."""
        child = os.fork()
        if child == 0:
            error = errno.EIO
            try:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                with socket.socket(socket.AF_UNIX) as client:
                    error = client.connect_ex(str(path))
            finally:
                os._exit(error)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_tokens_are_asked_for_there_too(self):
        self.token("ada")
        self.front_at_sockets(f"--token-file={self.root}/tokens")
        run = [ETE, "run", "--max-tokens", "2", "hello", "--address", f"unix:{self.root}/grpc"]
        self.assertIn("UNAUTHENTICATED", subprocess.run(run, capture_output=True, text=True, timeout=60).stderr)


class Serve(Security):
    def test_ete_serve_passes_it_on(self):
        authority = Authority(self.root, "ours")
        certificate, key = authority.issue("server")
        token = self.token("ada")
        listen = f"127.0.0.1:{free_port()}"
        self.processes.start("serve", [ETE, "serve", "--model=random:tiny", f"--listen={listen}", "--device=cpu",
                                       f"--tls-cert={certificate}", f"--tls-key={key}",
                                       f"--token-file={self.root}/tokens"])  # fmt: skip
        self.assertTrue(eventually(lambda: "ready at" in self.processes.log("serve"), 60), self.processes.log("serve"))
        run = [ETE, "run", "--address", listen, "--max-tokens", "2", "hello", "--tls-ca", authority.file]
        self.assertEqual(subprocess.run(run, capture_output=True, timeout=60).returncode, 1)
        done = subprocess.run([*run, "--token", self.secret(token)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
