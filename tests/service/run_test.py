"""`ete run` over real processes: text, json, signals, broken pipes, killed processes. Standard library only.

Arguments: the path of ete and the root of the sources.
"""

import array
import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ETE, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
LLAMA = str(SOURCE / "tests" / "golden" / "models" / "llama_gqa")
TINY = ["--model", "random:tiny", "--device", "cpu"]
# Paced copies make a token take long enough to be interrupted between two of them; drawn ones are text now and then.
SLOW = ["--model", "random:tiny", "--device", "cpu", "--resident-layers", "0", "--link-limit", "20M",
        "--ignore-eos", "--temperature", "1", "--seed", "1", "--max-tokens", "4000"]  # fmt: skip
TIMEOUT = 120
GONE_WITHIN = 5


def golden(name):
    data = pathlib.Path(LLAMA, "golden.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return list(array.array("i", data[8 + length + begin : 8 + length + end]))


class RunTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.tmp = directory.name
        self.env = {**os.environ, "TMPDIR": self.tmp}

    def run_ete(self, *arguments, **more):
        return subprocess.run([ETE, "run", *arguments], capture_output=True, env=self.env, timeout=TIMEOUT, **more)

    @contextlib.contextmanager
    def started(self, *arguments, **more):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.env, **more}
        process = subprocess.Popen([ETE, "run", *arguments], **options)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def json_of(self, *arguments, **more):
        result = self.run_ete("--json", *arguments, **more)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertEqual(result.stdout.count(b"\n"), 1)
        return json.loads(result.stdout)

    def servers(self):
        """Process ids by program of servers whose sockets lie in our directory."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                arguments = path.read_bytes().split(b"\0")
                if any(self.tmp.encode() in argument for argument in arguments[1:]):
                    found[os.path.basename(arguments[0]).decode()] = int(path.parent.name)
        return found

    def check_nothing_left(self):
        end = time.monotonic() + GONE_WITHIN
        while self.servers() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.servers(), {})

    def check_clean(self):
        self.check_nothing_left()
        self.assertEqual(os.listdir(self.tmp), [])

    def check_failure(self, result, code, *mentions):
        error = result.stderr.decode()
        self.assertEqual(result.returncode, code, error)
        self.assertEqual(error.count("\n"), 1, error)
        for mention in mentions:
            self.assertIn(mention, error)
        self.check_clean()


class Session(RunTest):
    """--session: a conversation that goes on in other processes."""

    def check_second_turn(self, model):
        model = str(SOURCE / "tests" / "golden" / "models" / model)
        arguments = ["--model", model, "--device", "cpu", "--kv-type", "f32", "--max-tokens", "6", "--ignore-eos"]
        session = ["--session", os.path.join(self.tmp, "talk")]
        first = self.json_of(*arguments, *session, "--tokens", ",".join(map(str, range(5, 25))))
        self.assertEqual(first["timings"]["reused_tokens"], 0)
        self.assertEqual(os.listdir(self.tmp), ["talk"])
        second = self.json_of(*arguments, *session, "--tokens", "10,11,12")
        self.assertEqual(second["prompt_ids"], first["prompt_ids"] + first["ids"] + [10, 11, 12])
        self.assertEqual(second["timings"]["reused_tokens"], 20 + 6)
        whole = self.json_of(*arguments, "--tokens", ",".join(map(str, second["prompt_ids"])))
        self.assertEqual(second["ids"], whole["ids"])
        third = self.json_of(*arguments, *session, "--tokens", "13")
        self.assertEqual(third["timings"]["reused_tokens"], len(second["prompt_ids"]) + 6)
        self.assertEqual(os.listdir(self.tmp), ["talk"])

    def test_attention(self):
        self.check_second_turn("llama_gqa")

    def test_recurrent_state(self):
        self.check_second_turn("qwen3_5")

    def check_goes_on_alone(self, model):
        """Two runs with nothing between them are one: the second draws its first id from logits that were kept."""
        model = str(SOURCE / "tests" / "golden" / "models" / model)
        arguments = ["--model", model, "--device", "cpu", "--kv-type", "f32", "--ignore-eos"]
        session = ["--session", os.path.join(self.tmp, "talk")]
        tokens = ["--tokens", ",".join(map(str, range(5, 25)))]
        whole = self.json_of(*arguments, *tokens, "--max-tokens", "10")
        first = self.json_of(*arguments, *session, *tokens, "--max-tokens", "4")
        second = self.json_of(*arguments, *session, "", "--max-tokens", "6")
        self.assertEqual(second["timings"]["reused_tokens"], 20 + 4)
        self.assertEqual(first["ids"] + second["ids"], whole["ids"])

    def test_goes_on_alone(self):
        self.check_goes_on_alone("llama_gqa")
        os.remove(os.path.join(self.tmp, "talk"))
        self.check_goes_on_alone("qwen3_5")

    def test_text_goes_on_without_another_bos(self):
        session = ["--session", os.path.join(self.tmp, "talk")]
        first = self.json_of(*TINY, *session, "hello, here is a beginning", "--max-tokens", "3")
        second = self.json_of(*TINY, *session, "you", "--max-tokens", "3")
        self.assertEqual(second["prompt_ids"], first["prompt_ids"] + first["ids"] + [*b"you"])
        self.assertGreater(second["timings"]["reused_tokens"], 0)

    def refused(self, contents, *mentions):
        path = os.path.join(self.tmp, "talk")
        pathlib.Path(path).write_bytes(contents)
        result = self.run_ete(*TINY, "--session", path, "hello", "--max-tokens", "3")
        error = result.stderr.decode()
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(error.count("\n"), 1, error)
        for mention in [path, *mentions]:
            self.assertIn(mention, error)
        self.assertEqual(pathlib.Path(path).read_bytes(), contents)
        self.check_nothing_left()
        self.assertEqual(os.listdir(self.tmp), ["talk"])

    def test_files_that_are_refused_stay_as_they_are(self):
        path = os.path.join(self.tmp, "talk")
        self.json_of(*TINY, "--session", path, "hello", "--max-tokens", "3")
        good = pathlib.Path(path).read_bytes()
        self.refused(good[:-1] + bytes([good[-1] ^ 1]), "damaged")
        self.refused(good[:-40], "its header tells of")
        self.refused(good[:60], "60 bytes")
        self.refused(b"", "0 bytes")
        self.refused(b"x" * (3 << 20), "ETESESSN")
        pathlib.Path(path).unlink()
        self.json_of("--model", LLAMA, "--device", "cpu", "--session", path, "--tokens", "5,6", "--max-tokens", "2")
        self.refused(pathlib.Path(path).read_bytes(), "another model")

    def test_places_where_no_file_can_be(self):
        self.check_failure(self.run_ete(*TINY, "--session", self.tmp, "hello"), 2, "--session", "not a regular file")
        missing = os.path.join(self.tmp, "none", "talk")
        self.check_failure(self.run_ete(*TINY, "--session", missing, "hello"), 1, "--session", missing)

    def test_link_stays_one(self):
        real, path = os.path.join(self.tmp, "real"), os.path.join(self.tmp, "talk")
        os.symlink("real", path)
        os.symlink("loop", os.path.join(self.tmp, "loop"))
        self.json_of(*TINY, "--session", path, "hello", "--max-tokens", "3")
        first = pathlib.Path(real).read_bytes()
        self.json_of(*TINY, "--session", path, "you", "--max-tokens", "3")
        self.assertTrue(os.path.islink(path))
        self.assertNotEqual(pathlib.Path(real).read_bytes(), first)
        result = self.run_ete(*TINY, "--session", os.path.join(self.tmp, "loop"), "hello")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"loop: not a regular file", result.stderr)

    def test_signal_while_the_server_does_not_answer(self):
        path = os.path.join(self.tmp, "talk")
        pathlib.Path(path).write_bytes(bytes(1000))
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(os.path.join(self.tmp, "silent"))
            silent.listen()
            address = f"unix:{self.tmp}/silent"
            with self.started("--address", address, "--session", path, "hello") as process:
                connection, _ = silent.accept()
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=5)
                self.assertEqual(process.returncode, 128 + signal.SIGTERM)
                connection.close()

    def test_without_a_cache(self):
        path = os.path.join(self.tmp, "talk")
        result = self.run_ete(*TINY, "--session", path, "hello", "--max-tokens", "1", "--prefix-cache", "0")
        self.assertEqual(result.stdout, b"")
        self.check_failure(result, 2, "--session", "--prefix-cache 0", "auto, or a size")

    def test_server_without_a_cache(self):
        path, control = os.path.join(self.tmp, "talk"), os.path.join(self.tmp, "front")
        server = subprocess.Popen([ETE, "serve", *TINY, "--listen", f"unix:{control}", "--prefix-cache", "0"],
                                  stderr=subprocess.DEVNULL, env=self.env)  # fmt: skip
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        plain = ["--address", f"unix:{control}", "hello", "--max-tokens", "1"]
        end = time.monotonic() + TIMEOUT
        while self.run_ete(*plain).returncode != 0:
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(server.poll())
            time.sleep(0.1)
        result = self.run_ete(*plain, "--session", path)
        error = result.stderr.decode()
        self.assertEqual((result.returncode, result.stdout), (1, b""), error)
        self.assertEqual(error.count("\n"), 1, error)
        for mention in ("--session", path, "--prefix-cache 0", "auto, or a size"):
            self.assertIn(mention, error)
        self.assertFalse(os.path.exists(path))


class Text(RunTest):
    def test_streams_text_and_ends_with_a_newline(self):
        document = self.json_of(*TINY, "hello", "--max-tokens", "8")
        result = self.run_ete(*TINY, "hello", "--max-tokens", "8")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertEqual(result.stdout, document["text"].encode() + b"\n")
        self.check_clean()

    def test_json(self):
        document = self.json_of(*TINY, "hello", "--max-tokens", "5", "--context", "128")
        keys = ["prompt_ids", "ids", "text", "finish_reason", "timings", "plan"]
        self.assertEqual(list(document), keys)
        self.assertEqual(document["prompt_ids"], [256, *b"hello"])
        self.assertEqual(len(document["ids"]), 5)
        self.assertEqual(document["finish_reason"], "length")
        self.assertEqual(document["plan"]["context"], 128)
        self.assertGreater(document["timings"]["prefill_ms"], 0)
        self.check_clean()

    def test_prompt_from_stdin(self):
        document = self.json_of(*TINY, "-", "--max-tokens", "1", input=b"h\xc3\xa9\n")
        self.assertEqual(document["prompt_ids"], [256, *b"h\xc3\xa9\n"])

    def test_prompts_that_name_commands_or_look_like_flags(self):
        for arguments, text in [(["serve"], b"serve"), (["--", "--json"], b"--json"), ([""], b"")]:
            with self.subTest(text=text):
                document = self.json_of(*TINY, "--max-tokens=1", *arguments)
                self.assertEqual(document["prompt_ids"], [256, *text])

    def test_empty_path(self):
        self.check_failure(self.run_ete("--model", "", "hello"), 2, "--model")

    def test_bad_text(self):
        self.check_failure(self.run_ete(*TINY, b"a\xff"), 2, "PROMPT", "1")
        self.check_failure(self.run_ete(*TINY, "-", input=b"a\xff"), 1, "stdin")

    def test_seed(self):
        sampled = [*TINY, "hello", "--max-tokens", "20", "--temperature", "1"]
        first = self.json_of(*sampled, "--seed", "18446744073709551615")
        self.assertEqual(self.json_of(*sampled, "--seed", "18446744073709551615")["ids"], first["ids"])
        self.assertNotEqual(self.json_of(*sampled, "--seed", "7")["ids"], first["ids"])

    def test_stop(self):
        sampled = [*TINY, "hello", "--ignore-eos", "--max-tokens", "40", "--temperature", "1", "--seed", "1"]
        whole = self.json_of(*sampled)["text"]
        stop = next(c for c in whole[5:] if c.isascii())
        document = self.json_of(*sampled, "--stop", "never-there", "--stop", stop)
        self.assertEqual(document["finish_reason"], "stop_string")
        self.assertEqual(document["text"], whole[: whole.index(stop)])

    def test_json_of_a_schema(self):
        schema = pathlib.Path(self.tmp, "schema")
        schema.write_text(
            json.dumps({"properties": {"n": {"enum": [1, 2]}, "s": {"type": "string", "maxLength": 9}}, "required": ["n", "s"]})
        )
        story = ["--model", str(SOURCE / "models" / "story-8m"), "--device", "cpu", "--temperature", "1", "--seed", "3"]
        document = self.json_of(*story, "--json-schema", str(schema), "Once")
        value = json.loads(document["text"])
        self.assertEqual((list(value), document["finish_reason"]), (["n", "s"], "grammar"))
        rules = pathlib.Path(self.tmp, "rules")
        rules.write_text('root ::= " there" [ ]? "!"')
        self.assertIn(self.run_ete(*story, "--grammar", str(rules), "Once").stdout, (b" there!\n", b" there !\n"))
        rules.write_text("root ::= root")
        result = self.run_ete(*story, "--grammar", str(rules), "Once")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"--grammar: rule root is left-recursive", result.stderr)
        result = self.run_ete(*story, "--grammar", str(rules), "--json-schema", str(schema), "Once")
        self.assertEqual(result.returncode, 2)
        self.check_grammar_file(self.tmp + "/none", 1, "cannot be read")
        self.check_grammar_file(self.tmp, 2, "accepted: a regular file or a pipe")
        rules.write_bytes(bytes((1 << 20) + 1))
        self.check_grammar_file(str(rules), 2, "1048577 bytes", "at most 1048576 bytes (1 MiB)")

    def check_grammar_file(self, path, code, *mentions):
        for flag in ("--grammar", "--json-schema"):
            result = self.run_ete(*TINY, flag, path, "Once")
            self.assertEqual((result.returncode, result.stdout), (code, b""))
            for mention in (f"{flag} {path}: ", *mentions):
                self.assertIn(mention, result.stderr.decode())

    def test_golden_ids_without_a_tokenizer(self):
        prompt = golden("p1.ids")
        document = self.json_of(
            "--model", LLAMA, "--device", "cpu", "--kv-type", "f32", "--max-tokens", "24",
            "--tokens", ",".join(map(str, prompt)),
        )  # fmt: skip
        self.assertEqual(document["prompt_ids"], prompt)
        self.assertEqual(document["ids"], golden("p1.greedy_ids"))
        self.assertEqual(document["text"], "")
        self.check_clean()
        result = self.run_ete("--model", LLAMA, "--tokens", "1,2", "--max-tokens", "3")
        self.assertEqual((result.returncode, result.stdout), (0, b"\n"))
        self.assertIn(b"--json", result.stderr)

    def test_text_for_a_model_without_a_tokenizer(self):
        self.check_failure(self.run_ete("--model", LLAMA, "hello"), 2, "tokenizer")

    def test_progress_on_a_terminal(self):
        controller, terminal = pty.openpty()
        result = subprocess.run(
            [ETE, "run", *SLOW[:-1], "1", "--chunk", "64", "hello " * 50], stdout=subprocess.PIPE, stderr=terminal,
            env=self.env, timeout=TIMEOUT,
        )  # fmt: skip
        os.close(terminal)
        drawn = b""
        with contextlib.suppress(OSError):
            while piece := os.read(controller, 4096):
                drawn += piece
        os.close(controller)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(drawn, rb"\[#*\.*\] \d+%")
        done = [int(percent) for percent in re.findall(rb"(\d+)% of a prompt of 30[01] tokens", drawn)]
        # Of those that wait to be drawn only the newest is.
        self.assertTrue(any(0 < percent < 100 for percent in done), drawn)
        self.assertEqual(done, sorted(done))
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-80:])

    def test_default_model_answers(self):
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        if not list(cache.glob("edge-transformer-engine/SmolLM2-135M-Instruct.Q4_1.gguf")):
            self.skipTest("scripts/fetch_default_model.sh has not fetched the default model")
        result = self.run_ete("The capital of France is", "--max-tokens", "16")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertIn("Paris", result.stdout.decode())

    def test_default_model_is_missing(self):
        self.env["XDG_CACHE_HOME"] = self.tmp
        self.check_failure(self.run_ete("hello"), 1, "--model", self.tmp, "scripts/fetch_default_model.sh")
        for command in ["serve", "inspect", "bench"]:
            with self.subTest(command):
                result = subprocess.run([ETE, command], capture_output=True, env=self.env, timeout=TIMEOUT)
                self.check_failure(result, 1, "--model", self.tmp, "scripts/fetch_default_model.sh")


class Failures(RunTest):
    def test_model_that_cannot_be_opened_is_told_at_once(self):
        begin = time.monotonic()
        result = self.run_ete("--model", "/nonexistent.gguf", "hello")
        self.assertLess(time.monotonic() - begin, 10)
        self.check_failure(result, 1, "/nonexistent.gguf: no such file")

    def test_a_tokenizer_that_cannot_be_served_is_named_by_its_model(self):
        directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(directory.cleanup)
        model = pathlib.Path(directory.name, "model")
        shutil.copytree(SOURCE / "models/story-8m", model)
        (model / "tokenizer.json").write_text("{}")
        result = self.run_ete("--model", model, "--device", "cpu", "hello")
        self.check_failure(result, 1, f"ete run: {model}: tokenizer.json: decoder is null")

    def test_flag_that_the_engine_refuses_is_a_usage_error(self):
        self.check_failure(self.run_ete(*TINY, "hello", "--kernels", "wgmma"), 2, "--kernels", "wgmma")

    def test_request_that_the_server_refuses_names_the_field(self):
        self.check_failure(self.run_ete(*TINY, "--tokens", "1,320"), 2, "--tokens[1]", "320")

    def test_nobody_at_the_address(self):
        self.check_failure(self.run_ete("hello", "--address", f"unix:{self.tmp}/none"), 1, "UNAVAILABLE")

    def read_some(self, process):
        self.assertNotEqual(os.read(process.stdout.fileno(), 1), b"")

    def test_signals(self):
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            with self.subTest(signal=number), self.started(*SLOW, "hello") as process:
                self.read_some(process)
                process.send_signal(number)
                process.communicate(timeout=TIMEOUT)
                self.assertEqual(process.returncode, 128 + number)
                self.check_clean()

    def test_run_killed_at_once_leaves_no_server(self):
        for milliseconds in range(2, 42, 2):
            with self.started(*TINY, "hello") as process:
                time.sleep(milliseconds / 1000)
                process.kill()
                process.communicate()
        self.check_nothing_left()

    def test_flag_that_does_nothing_is_told(self):
        result = self.run_ete(*TINY, "hello", "--max-tokens", "1", "--slots", "3")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"--slots has nothing to act on", result.stderr)

    def test_signal_while_loading(self):
        with self.started(*SLOW, "hello") as process:
            while "ete-worker" not in self.servers():
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 130)
            self.check_clean()

    def test_signal_while_stdout_takes_no_more(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        with self.started(*TINY, "hello", "--max-tokens", "20", stdout=writer) as process:
            while "ete-front" not in self.servers():
                self.assertIsNone(process.poll())
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=5)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM)
            self.check_clean()
        os.close(reader)
        os.close(writer)

    def test_started_without_standard_descriptors(self):
        command = 'exec "$0" "$@" <&- >&-'
        result = subprocess.run(
            ["sh", "-c", command, ETE, "run", *TINY, "hello", "--max-tokens", "3"],
            stderr=subprocess.PIPE, env=self.env, timeout=TIMEOUT,
        )  # fmt: skip
        self.assertEqual(result.stderr, b"ete run: cannot write to stdout: Bad file descriptor\n")
        self.assertEqual(result.returncode, 1)
        self.check_clean()

    def test_closed_stdout(self):
        with self.started(*SLOW, "hello") as process:
            self.read_some(process)
            process.stdout.close()
            process.stdout = None
            _, error = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 1)
            self.assertEqual(error, b"ete run: cannot write to stdout: Broken pipe\n")
            self.check_clean()

    def test_server_that_is_killed(self):
        for program in ["ete-worker", "ete-front"]:
            with self.subTest(program=program), self.started(*SLOW, "hello") as process:
                self.read_some(process)
                os.kill(self.servers()[program], signal.SIGKILL)
                begin = time.monotonic()
                _, error = process.communicate(timeout=TIMEOUT)
                self.assertLess(time.monotonic() - begin, 5)
                self.assertEqual(process.returncode, 1)
                self.assertEqual(error.decode(), f"ete run: {program} ended with signal 9 (Killed)\n")
                self.check_clean()

    def test_killed_run_leaves_no_process_and_the_next_one_removes_its_directory(self):
        with self.started(*SLOW, "hello") as process:
            self.read_some(process)
            self.assertEqual(set(self.servers()), {"ete-worker", "ete-front"})
            process.kill()
            process.communicate()
        self.check_nothing_left()
        (left,) = os.listdir(self.tmp)
        self.assertEqual(os.stat(f"{self.tmp}/{left}").st_mode & 0o777, 0o700)
        self.assertEqual(self.run_ete(*TINY, "hello", "--max-tokens=1").returncode, 0)
        self.check_clean()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
