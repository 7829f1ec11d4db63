"""Strangers, tokens and sockets, over real processes.

Arguments: the paths of ete-front, toy_worker, fake_worker and ete.
"""

import errno
import json
import os
import pathlib
import socket
import stat
import subprocess
import sys
import unittest

from http_servers import free_port
from processes import Authority, Front, eventually
from security_case import ETE, FAKE_WORKER, FRONT, Security

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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


class WorkersOfTheirFront(Security):
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
