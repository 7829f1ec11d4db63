"""Every client through the same cases, against a live `ete serve`, or with --target against a server that runs already.

Arguments: --root (of the sources), --ete (the program), --work (a folder for builds), --all (a client whose toolchain
is missing fails instead of being skipped), and names of clients; none: all. --target ADDRESS: that server, reached with
--root-cert, --server-name and --token-file as the examples have them.
"""

import argparse
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import gateway
import grpc
import languages
import live_server
from ete.v1 import generation_pb2, generation_pb2_grpc

TIMEOUT = 120
PROMPT = "Once upon a time"
SEED, TOKENS = 7, 40
README_TOKENS = 32
AFTER, PUSHBACK = "retry-after-ms", "grpc-retry-pushback-ms"
LONG = ["--seed", "7", "--max-tokens", "3000"]  # minutes


def text_of_ete_run(ete, model, tokens):
    command = [ete, "run", "--json", "--model", model, "--device", "cpu", "--temperature", "1", "--seed", str(SEED)]
    done = subprocess.check_output([*command, "--max-tokens", str(tokens), PROMPT], timeout=TIMEOUT)
    return json.loads(done)["text"].encode()


class World:
    """What all tests share."""

    def __init__(self, options):
        self.folder = tempfile.TemporaryDirectory(dir="/tmp")
        folder = pathlib.Path(self.folder.name)
        model = str(options.root / "models/story-8m")
        self.text = text_of_ete_run(options.ete, model, TOKENS)
        self.readme_text = text_of_ete_run(options.ete, model, README_TOKENS)
        self.server = live_server.LiveServer(options.ete, model, self.folder.name)
        self.gateway = gateway.Gateway(self.server.address, folder)
        self.token_file = folder / "token"
        self.token_file.write_text(gateway.TOKEN + "\n")
        self.logprobs = self._logprobs()
        self.sealed = self._sealed_front(options.ete, folder)
        self.unix = self._front(options.ete, f"unix:{folder}/front.sock")

    def _front(self, ete, address, *more):
        return live_server.Front(ete, self.server.worker_address, address, *more)

    def _sealed_front(self, ete, folder):
        """With certificate and tokens of its own: nothing between it and a client."""
        certificate, key = self.gateway.certificates.server
        tokens = folder / "tokens"
        made = subprocess.check_output([ete, "token", "--file", tokens, "--name", "client"], timeout=TIMEOUT)
        self.sealed_token_file = folder / "sealed-token"
        self.sealed_token_file.write_bytes(made)
        address = f"127.0.0.1:{live_server.free_port()}"
        return self._front(ete, address, "--tls-cert", certificate, "--tls-key", key, "--token-file", tokens)

    def _logprobs(self):
        """As the examples print them."""
        request = generation_pb2.GenerateRequest(text=PROMPT)
        request.sampling.seed, request.stopping.max_tokens, request.logprobs.top = SEED, TOKENS, 2
        lines = []
        with grpc.insecure_channel(self.server.address) as channel:
            for reply in generation_pb2_grpc.GenerationStub(channel).Generate(request, timeout=TIMEOUT):
                for token in reply.piece.logprobs:
                    others = (f" {id}:{value:.4f}" for id, value in zip(token.top_ids, token.top_logprobs))
                    lines.append(f"logprob {token.id} {token.logprob:.4f}" + "".join(others))
        return lines

    def close(self):
        self.sealed.stop()
        self.unix.stop()
        self.gateway.stop()
        self.server.stop()
        self.folder.cleanup()


class Example:
    """Mixed into a TestCase for each client, which has language, folder and world."""

    def run_example(self, address, prompt, *options):
        command = [*self.language.generate(self.folder), *map(str, options), address, prompt]
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT)

    def assert_text(self, done, text):
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(done.stdout, text)

    def assert_error(self, done, code, field="-"):
        said = done.stderr.decode()
        self.assertRegex(said, rf"(?m)^error code={code} field={re.escape(field)} .")
        self.assertEqual(done.returncode, 1, said)


class Target:
    """A server that somebody else runs, and how it is reached."""

    def __init__(self, given):
        self.address = given.target
        self.trust = [word for name in ("root_cert", "server_name") if (value := getattr(given, name)) is not None
                      for word in ("--" + name.replace("_", "-"), value)]  # fmt: skip
        self.token = [] if given.token_file is None else ["--token-file", given.token_file]

    def close(self):
        pass


class Elsewhere(Example):
    """Against a Target, of whose model nothing is known."""

    def ask(self, *options):
        return self.run_example(self.world.address, PROMPT, "--attempts", 1, *self.world.trust, *options)

    def test_text(self):
        done = self.ask(*self.world.token, "--seed", SEED, "--max-tokens", TOKENS)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertGreater(len(done.stdout), 0)
        self.assertRegex(done.stderr.decode(), r"(?m)^finish reason=\w+ pieces=\d+ prompt_tokens=\d+ generated_tokens=\d+$")

    def test_error_names_the_field(self):
        self.assert_error(self.ask(*self.world.token, "--top-p", 2), "INVALID_ARGUMENT", "sampling.top_p")

    def test_nothing_without_the_token(self):
        if not self.world.token:
            self.skipTest("no --token-file")
        self.assert_error(self.ask(), "UNAUTHENTICATED")


class Conformance(Example):
    def start_example(self, *options):
        command = [*self.language.generate(self.folder), *map(str, options), self.world.server.address, PROMPT]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        watchdog = threading.Timer(TIMEOUT, process.kill)
        watchdog.start()

        def stop():
            watchdog.cancel()
            process.kill()
            process.communicate()

        self.addCleanup(stop)
        return process

    def delays(self, done):
        return [float(delay) for delay in re.findall(r"(?m)^retry attempt=\d+ delay=([\d.]+) ", done.stderr.decode())]

    def no_session(self):
        live_server.wait_until(lambda: self.world.server.sessions() == 0, 20, "the server has no session")

    def test_text_is_that_of_ete_run_and_comes_in_pieces(self):
        process = self.start_example("--seed", SEED, "--max-tokens", TOKENS)
        parts, times = [], []
        while part := os.read(process.stdout.fileno(), 65536):
            parts.append(part)
            times.append(time.monotonic())
        said = process.stderr.read().decode()
        self.assertEqual(process.wait(timeout=TIMEOUT), 0, said)
        self.assertEqual(b"".join(parts), self.world.text)
        self.assertGreater(len(parts), 5)
        self.assertGreater(times[-1] - times[0], 0.3)
        self.assertRegex(said, rf"(?m)^finish reason=LENGTH pieces=\d+ prompt_tokens=4 generated_tokens={TOKENS}$")

    def test_stop_string(self):
        stop = self.world.text.split()[8]
        done = self.run_example(
            self.world.server.address, PROMPT, "--seed", SEED, "--stop", "?!", "--stop", stop.decode()
        )
        self.assert_text(done, self.world.text[: self.world.text.index(stop)])
        self.assertIn(b"finish reason=STOP_STRING ", done.stderr)

    def test_logprobs(self):
        done = self.run_example(
            self.world.server.address, PROMPT, "--seed", SEED, "--max-tokens", TOKENS, "--logprobs", 2
        )
        self.assert_text(done, self.world.text)
        self.assertEqual(
            [line for line in done.stderr.decode().splitlines() if line.startswith("logprob")], self.world.logprobs
        )

    def test_progress(self):
        def ask(*options):
            options = ("--seed", SEED, "--max-tokens", 2, *options)
            done = self.run_example(self.world.server.address, PROMPT + " there was" * 600, *options)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            told = re.findall(r"(?m)^progress (\d+) of (\d+)$", done.stderr.decode())
            return done, [(int(processed), int(whole)) for processed, whole in told]

        done, told = ask("--progress")
        (whole,) = re.findall(rb"prompt_tokens=(\d+)", done.stderr)
        self.assertGreater(len(told), 1)
        self.assertEqual((told, {int(whole)}), (sorted(told), {one for _, one in told}))
        self.assertEqual(told[-1][0], int(whole))
        self.assertEqual(ask()[1], [])

    def test_error_names_the_field(self):
        done = self.run_example(self.world.server.address, PROMPT, "--top-p", 2)
        self.assert_error(done, "INVALID_ARGUMENT", "sampling.top_p")
        done = self.run_example(self.world.server.address, PROMPT, "--stop", "fine", "--stop", "")
        self.assert_error(done, "INVALID_ARGUMENT", "stopping.stop[1]")

    def test_any_text_both_ways(self):
        text = 'Grüße, 世界 🙂\n"\\ e\u0301'
        self.assert_text(self.run_example(self.world.gateway.plain, "!echo " + text), text.encode())

    def test_cancel_frees_the_session_while_the_connection_stays(self):
        process = self.start_example(*LONG, "--cancel-after", 3, "--linger", 60)
        said = b""
        while line := process.stderr.readline():
            said += line
            if line.startswith(b"error"):
                break
        self.assertIn(b"error code=CANCELLED ", said)
        self.no_session()
        self.assertIsNone(process.poll())

    def test_deadline(self):
        # Of the text something, although Java takes seconds to start on a busy machine.
        begin = time.monotonic()
        done = self.run_example(self.world.server.address, PROMPT, *LONG, "--deadline", 4)
        self.assert_error(done, "DEADLINE_EXCEEDED")
        self.assertGreater(len(done.stdout), 0)
        self.assertGreater(time.monotonic() - begin, 3.9)
        self.no_session()

    def test_tries_again_after_delays_that_double(self):
        done = self.run_example(self.world.gateway.plain, f"!fail 2 UNAVAILABLE - {self.id()}")
        self.assert_text(done, b"recovered")
        first, second = self.delays(done)
        self.assertTrue(0.159 <= first <= 0.241 and 0.319 <= second <= 0.481, (first, second))

    def test_tries_again_when_the_server_says(self):
        for code, metadata in (("RESOURCE_EXHAUSTED", AFTER), ("UNAVAILABLE", AFTER), ("UNAVAILABLE", PUSHBACK)):
            begin = time.monotonic()
            done = self.run_example(self.world.gateway.plain, f"!fail 2 {code} {metadata}=350 {self.id()}")
            self.assert_text(done, b"recovered")
            self.assertEqual(self.delays(done), [0.35, 0.35])
            self.assertGreater(time.monotonic() - begin, 0.7)

    def test_does_not_try_again_in_vain(self):
        for failure in (
            f"UNAVAILABLE {PUSHBACK}=-1",
            f"UNAVAILABLE {PUSHBACK}=soon",
            "RESOURCE_EXHAUSTED -",
            f"RESOURCE_EXHAUSTED {AFTER}=-1",
            f"RESOURCE_EXHAUSTED {AFTER}=99999999",
            "INTERNAL -",
        ):
            done = self.run_example(self.world.gateway.plain, f"!fail 1 {failure} {self.id()}")
            self.assert_error(done, failure.split()[0])
            self.assertEqual(self.delays(done), [])

    def test_gives_up(self):
        done = self.run_example(
            self.world.gateway.plain, f"!fail 9 UNAVAILABLE {AFTER}=20 {self.id()}", "--attempts", 3
        )
        self.assert_error(done, "UNAVAILABLE")
        self.assertEqual(len(self.delays(done)), 2)
        done = self.run_example(
            self.world.gateway.plain, f"!fail 9 UNAVAILABLE {AFTER}=60000 {self.id()}", "--deadline", 20
        )
        self.assert_error(done, "UNAVAILABLE")
        self.assertEqual(self.delays(done), [])

    def test_text_that_was_handed_out_is_not_repeated(self):
        done = self.run_example(self.world.gateway.plain, "!break")
        self.assert_error(done, "UNAVAILABLE")
        self.assertEqual((done.stdout, self.delays(done)), (b"so far", []))

    def test_tries_until_a_killed_worker_is_back(self):
        process = self.start_example("--seed", SEED, "--max-tokens", 2000)
        begin = os.read(process.stdout.fileno(), 1)
        self.assertTrue(self.world.server.kill_worker())
        rest, said = process.communicate(timeout=TIMEOUT)
        self.assertIn(b"error code=UNAVAILABLE ", said)
        common = min(len(begin + rest), len(self.world.text))
        self.assertEqual((begin + rest)[:common], self.world.text[:common])

        process = self.start_example("--seed", SEED, "--max-tokens", TOKENS, "--attempts", 12)
        self.keep_worker_away_until_noticed(process)
        text, said = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, text), (0, self.world.text), said.decode())

    def keep_worker_away_until_noticed(self, process):
        """At most 10 s; a server that waits for its worker leaves nothing to notice."""
        end = time.monotonic() + 10
        noticed = select.poll()
        noticed.register(process.stderr, select.POLLIN)
        while time.monotonic() < end and not noticed.poll(20):
            self.world.server.kill_worker()

    def test_unix_socket(self):
        done = self.run_example(self.world.gateway.unix, "!echo over a socket")
        if self.language.unix_sockets:
            self.assert_text(done, b"over a socket")
        else:
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"not Unix sockets", done.stderr)

    def test_the_front_s_unix_socket(self):
        if not self.language.unix_sockets:
            self.skipTest("its library has none")
        request = ["--seed", SEED, "--max-tokens", TOKENS]
        self.assert_text(self.run_example(self.world.unix.address, PROMPT, *request), self.world.text)

    def test_the_front_s_tls_and_token(self):
        certificates, front = self.world.gateway.certificates, self.world.sealed.address
        request = ["--seed", SEED, "--max-tokens", TOKENS, "--attempts", 1, "--server-name", "ete.test"]
        trusting = [*request, "--root-cert", certificates.authority[0]]
        token = ["--token-file", self.world.sealed_token_file]
        self.assert_text(self.run_example(front, PROMPT, *trusting, *token), self.world.text)
        self.assert_error(self.run_example(front, PROMPT, *trusting), "UNAUTHENTICATED")
        wrong = ["--token-file", self.world.token_file]
        self.assert_error(self.run_example(front, PROMPT, *trusting, *wrong), "UNAUTHENTICATED")
        stranger = [*request, "--root-cert", certificates.other_authority[0]]
        self.assert_error(self.run_example(front, PROMPT, *stranger, *token), "UNAVAILABLE")

    def test_tls(self):
        certificates = self.world.gateway.certificates
        trusting = ["--attempts", 1, "--root-cert", certificates.authority[0]]
        done = self.run_example(self.world.gateway.tls, "!echo sealed", *trusting, "--server-name", "ete.test")
        self.assert_text(done, b"sealed")
        self.assert_error(self.run_example(self.world.gateway.tls, "!echo sealed", *trusting), "UNAVAILABLE")
        stranger = ["--attempts", 1, "--root-cert", certificates.other_authority[0], "--server-name", "ete.test"]
        self.assert_error(self.run_example(self.world.gateway.tls, "!echo sealed", *stranger), "UNAVAILABLE")

    def test_client_certificate_and_token(self):
        certificates = self.world.gateway.certificates
        certificate, key = certificates.client
        known = ["--attempts", 1, "--root-cert", certificates.authority[0], "--server-name", "ete.test"]
        shown = [*known, "--cert", certificate, "--key", key]
        token = ["--token-file", self.world.token_file]
        request = ["--seed", SEED, "--max-tokens", TOKENS]
        done = self.run_example(self.world.gateway.mutual, PROMPT, *request, *shown, *token)
        self.assert_text(done, self.world.text)
        self.assert_error(self.run_example(self.world.gateway.mutual, PROMPT, *shown), "UNAUTHENTICATED")
        self.assert_error(self.run_example(self.world.gateway.mutual, PROMPT, *known, *token), "UNAVAILABLE")
        self.assertEqual(self.run_example(self.world.gateway.mutual, PROMPT, "--cert", certificate).returncode, 2)

    def test_a_token_is_not_sent_in_the_clear(self):
        done = self.run_example("0.0.0.0:9", PROMPT, "--token-file", self.world.token_file)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"0.0.0.0:9 is another machine", done.stderr)

    def test_addresses_are_checked(self):
        urls = ("http://127.0.0.1:50051", "https://localhost:50051")
        for address in ("nowhere", "127.0.0.1:", "127.0.0.1:70000", ":50051", "unix:", *urls):
            done = self.run_example(address, PROMPT)
            self.assertEqual(done.returncode, 2, (address, done))
            self.assertIn(b"address", done.stderr)

    def test_types_are_checked(self):
        if self.language.name not in ("python", "asyncio"):
            self.skipTest("the compiler checks them, or the language does not")
        for wrong, told in (
            ("5", "address 5: a str"),
            ("'a:1', retry=3", "retry 3: Retry is expected"),
            ("'a:1', retry=None", "retry None: Retry"),
            ("'a:1', tls=True", "tls True: None or Tls"),
            ("'a:1', token=b't'", "token b't': None or str"),
        ):
            module = "ete.aio" if self.language.name == "asyncio" else "ete"
            program = f"import {module}; {module}.Client({wrong})"
            command = ["env", f"PYTHONPATH={self.folder}", languages.SYSTEM_PYTHON, "-c", program]
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
            self.assertEqual(done.returncode, 1, wrong)
            self.assertIn(f"TypeError: {told}", done.stderr.decode())

    def test_readme(self):
        command = [*self.language.readme(self.folder), self.world.server.address]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout), (0, self.world.readme_text), done.stderr.decode())


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--ete", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--target", metavar="ADDRESS")
    parser.add_argument("--root-cert", metavar="FILE")
    parser.add_argument("--server-name", metavar="NAME")
    parser.add_argument("--token-file", metavar="FILE")
    parser.add_argument("-k", dest="pattern", action="append", help="only tests of this name, as unittest has it")
    parser.add_argument("clients", nargs="*")
    return parser.parse_args()


def prepare(given):
    """Builds what can be built: ([(language, folder)], names of what is missing)."""
    known = languages.languages(given.root / "clients")
    unknown = set(given.clients) - set(known)
    if unknown:
        sys.exit(f"clients_test: {', '.join(unknown)}: not among {', '.join(known)}")
    built, absent = [], []
    for name in given.clients or known:
        lacking = languages.missing(known[name])
        if lacking:
            print(f"clients_test: {name} is skipped: missing {lacking} (scripts/setup.sh --clients)", file=sys.stderr)
            absent.append(name)
            continue
        begin = time.monotonic()
        built.append((known[name], languages.build(known[name], given.root / "clients", given.work)))
        print(f"clients_test: {name} built in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return built, absent


def main():
    given = options()
    built, absent = prepare(given)
    if not built or (absent and given.all):
        sys.exit("clients_test: failed: " + (f"no toolchain for {', '.join(absent)}" if absent else "no client"))
    world, cases = (Target(given), Elsewhere) if given.target else (World(given), Conformance)
    try:
        loader = unittest.TestLoader()
        loader.testNamePatterns = [f"*{pattern}*" for pattern in given.pattern] if given.pattern else None
        suite = unittest.TestSuite()
        for language, folder in built:
            attributes = {"language": language, "folder": folder, "world": world}
            case = type(language.name, (cases, unittest.TestCase), attributes)
            suite.addTests(loader.loadTestsFromTestCase(case))
        result = unittest.TextTestRunner(verbosity=2).run(suite)
    finally:
        world.close()
    failed = len(result.failures) + len(result.errors)
    print(f"clients: {result.testsRun - failed} passed, {failed} failed, {len(absent)} skipped")
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
