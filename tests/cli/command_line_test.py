"""`ete` from outside: exit codes, messages, tokenize. Standard library only.

Arguments: those of command_case.py.
"""

import json
import os
import subprocess
import sys
import unittest

from command_case import ETE, GOLDEN, LLAMA, SERVICE, TIMEOUT, CommandLineTest, ete

SERVICE_COMMANDS = {"chat", "health", "run", "serve", "token", "tokenize"}


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


class Usage(CommandLineTest):
    def test_help_and_version(self):
        commands = {"logits", "inspect", "bench", "pack"} | (SERVICE_COMMANDS if SERVICE else set())
        result = ete("--help")
        self.assertEqual(result.returncode, 0)
        text = result.stdout.decode()
        listed = {line.split()[0] for line in text.split("Subcommands:")[1].splitlines() if line.strip()}
        self.assertEqual(listed, commands)
        for command in commands:
            result = ete(command, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn({"health": b"--address", "token": b"--file"}.get(command, b"--model"), result.stdout)
            self.assertEqual(result.stderr, b"")
        result = ete("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout.decode(), r"^ete \d+\.\d+\.\d+\n$")

    def test_help_that_is_lost(self):
        for arguments in (["--help"], ["logits", "--help"], ["--version"]):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([ETE, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT)
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"cannot write to stdout", result.stderr)

    @unittest.skipUnless(SERVICE, "built without services")
    def test_a_socket_in_no_directory(self):
        for flags in (["--listen=unix:/none/s"], ["--listen=unix:ete-front", "--http=unix:/none/s"]):
            flag = flags[-1].partition("=")[0]
            result = ete("serve", "--model=/none", "--device=cpu", *flags)
            self.check_failure(result, 1, f"{flag}: unix:/none/s: there is no such directory")

    def test_usage_errors(self):
        cases = [
            ([], "subcommand"),
            (["nonsense"], "nonsense"),
            (["logits", "--tokens", "1", "--out", "x"], "--model"),
            (["inspect", "--model", ""], "--model"),
            (["bench", "--model", ""], "--model"),
            (["inspect", "--model", LLAMA, "--wrong"], "--wrong"),
            (["inspect", "--model", LLAMA, "--slots", "1"], "--slots"),
            (["inspect", "--model", LLAMA, "--kernels", "sse"], "--kernels"),
            (["inspect", "--model", "random:nonsense"], "nonsense"),
            (["logits", "--model", LLAMA, "--tokens", "1"], "--out"),
            (["logits", "--model", LLAMA, "--out", "x"], "--tokens"),
            (["logits", "--model", LLAMA, "--tokens", "1", "--out", ""], "--out"),
            (["bench", "--model", LLAMA, "--plot", ""], "--plot"),
            (["bench", "--model", LLAMA, "--plot", "x.png"], '--plot: "x.png" is not accepted: the picture is SVG'),
            # A name that is wrong is told before what is missing for it.
            (["pack", "--modle", LLAMA], '"--modle" is no option of ete pack; ete pack --help lists them'),
            (["logits", "--model", LLAMA, "--token", "1"], '"--token" is no option of ete logits'),
            (["--wrong"], '"--wrong" is no option of ete; ete --help lists them'),
            (["inspect", "--model", LLAMA, "more"], '"more" is one argument too many'),
            (["pack", "--model", LLAMA, "--format", "int8", "--out", ""], '--out: "" is not accepted'),
            (["pack", "--model", LLAMA, "--format", "", "--out", "x"], '--format: "" is not accepted: int8 or int4'),
            (["pack", "--model", LLAMA, "--format", "int8", "--out", "x", "--threads", "0"], '--threads: "0" is not accepted'),
            (["inspect", "--model", LLAMA, "--a\x1b[31mb"], '"--a [31mb"'),
        ]
        for bad in ["", ",", "1,", "1,,2", "1 2", "x", "1,-2", "2147483648", "0x1", "1.0"]:
            cases.append((["logits", "--model", LLAMA, "--out", "x", "--tokens=" + bad], "--tokens"))
        for bad in ["0", "-1", "x", "99999999999"]:
            cases.append((["logits", "--model", LLAMA, "--out", "x", "--tokens", "1", "--greedy=" + bad], "--greedy"))
        if SERVICE:
            cases += self.service_cases()
        for arguments, mention in cases:
            with self.subTest(arguments=arguments):
                self.check_failure(ete(*arguments), 2, mention)

    def service_cases(self):
        run = ["run", "--model", LLAMA]
        cases = [
            (run, "PROMPT"),
            ([*run, "text", "--tokens", "1"], "--tokens"),
            ([*run, "text", "more"], "more"),
            (["run", "text", "--address", "nonsense"], "--address"),
            (["run", "text", "--address", "unix:/x", "--model", LLAMA], "--model"),
            (["run", "text", "--address", "unix:/x", "--slots", "2"], "--slots"),
            ([*run, "text", "--chat", "--session", "x"], "--chat"),
            ([*run, "--tokens", "1", "--chat"], "--chat"),
            (["serve", "--model", ""], "--model"),
            (["serve", "--model", LLAMA, "--listen", "0.0.0.0:50051"], "--insecure-listen-anywhere"),
            (["serve", "--model", LLAMA, "--listen", "127.0.0.1:0"], "--listen"),
            (["serve", "--model", LLAMA, "--exit-with-parent"], "--exit-with-parent"),
            (["serve", "--model", LLAMA, "--http-origin", "https://a"], "--http"),
            (["serve", "--model", LLAMA, "--http", "127.0.0.1:1", "--http-origin", "https://a/"], "--http-origin"),
            (["tokenize"], "--model"),
            (["token", "--file", "", "--name", "a"], '--file: "" is not accepted'),
            (["token", "--file", "x", "--name", "a b"], '--name: "a b" is not accepted: letters, digits'),
            (["token", "--file", "x", "--name", ""], '--name: "" is not accepted'),
            (["token", "--file", "x", "--name", "a", "--concurrent", "0"], '--concurrent: "0" is not accepted'),
            ([*run, "text", "--temperature", "1e39"], "a number from 0 to 3.4e38"),
            (["tokenize", "--model", LLAMA, "--decode", "--special"], "--special"),
            (["tokenize", "--model", LLAMA, "--decode", "--no-bos"], "--no-bos"),
        ]
        bad_values = {
            "--temperature": ["-1", "nan", "inf", "x", "1e39", ""],
            "--top-k": ["-1", "1.5", "4294967296"],
            "--top-p": ["0", "1.1", "-1", "1e-60"],
            "--min-p": ["-0.1", "1.1"],
            "--repeat-penalty": ["0", "-1"],
            "--seed": ["-1", "18446744073709551616", "x"],
            "--max-tokens": ["-1", "2147483648"],
            "--stop": ["", "x" * 1025],
        }
        for flag, values in bad_values.items():
            cases += [([*run, "text", flag + "=" + value], flag) for value in values]
        cases.append(([*run, "text", *["--stop=a"] * 65], "--stop"))
        cases += [([*run, flag, "text"], f'nothing stands right behind "{flag}"') for flag in ("--stop=", "--model=")]
        # What only looks like an option is a value, or an option that is none.
        cases.append(([*run, "text", "--stop", "--x=", "--top-p", "7"], '--top-p: "7" is not accepted'))
        cases.append(([*run, "--x=", "text"], '"--x=" is no option of ete run'))
        cases.append(([*run, "--stop", "", "text"], '--stop: "" is not accepted: 1 to 1024 bytes'))
        return cases


@unittest.skipUnless(SERVICE, "built without services")
class Tokenize(CommandLineTest):
    def tokenizer(self, name, *flags, lines):
        stdin = "".join(json.dumps(line) + "\n" for line in lines).encode()
        result = ete("tokenize", "--model", str(GOLDEN / "tokenizers" / name), *flags, stdin=stdin)
        self.assertEqual(result.returncode, 0, result.stderr)
        # Not splitlines(): text may hold U+0085 and U+2028.
        return [json.loads(line) for line in result.stdout.decode().split("\n") if line]

    def test_closed_stdin(self):
        command = [ETE, "tokenize", "--model", str(GOLDEN / "tokenizers" / "bpe_smollm2")]
        closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
        self.check_failure(subprocess.run(closed, capture_output=True, timeout=TIMEOUT), 1, "Bad file descriptor")

    def test_stdin_that_cannot_be_read(self):
        root = os.open("/", os.O_RDONLY)
        self.addCleanup(os.close, root)
        command = [ETE, "tokenize", "--model", "random:tiny"]
        result = subprocess.run(command, stdin=root, capture_output=True, timeout=TIMEOUT)
        self.check_failure(result, 1, "stdin", "Is a directory")

    def test_line_that_is_too_long(self):
        self.check_failure(ete("tokenize", "--model", "random:tiny", stdin=bytes(65 << 20)), 1, "64 MiB")

    def test_empty_path(self):
        self.check_failure(ete("tokenize", "--model", ""), 2, "--model")

    def test_golden_vectors(self):
        for directory in sorted((GOLDEN / "tokenizers").iterdir()):
            if not directory.is_dir():
                continue
            with self.subTest(tokenizer=directory.name):
                vectors = read_lines(directory / "vectors.jsonl")
                texts = [vector["text"] for vector in vectors]
                plain = self.tokenizer(directory.name, "--special", "--no-bos", lines=texts)
                with_bos = self.tokenizer(directory.name, "--special", lines=texts)
                self.assertEqual(len(plain), len(vectors))
                for vector, ids, bos_ids in zip(vectors, plain, with_bos):
                    differs = "ids_tokenizer_json" in vector
                    self.assertEqual(ids, {"ids": vector["ids_tokenizer_json" if differs else "ids"]})
                    if not differs:
                        self.assertEqual(bos_ids, {"ids": vector["ids_with_bos"]})

    def test_golden_decodes(self):
        for directory in sorted((GOLDEN / "tokenizers").iterdir()):
            if not directory.is_dir():
                continue
            with self.subTest(tokenizer=directory.name):
                vectors = read_lines(directory / "decode.jsonl")
                answers = self.tokenizer(directory.name, "--decode", lines=[v["ids"] for v in vectors])
                for vector, answer in zip(vectors, answers, strict=True):
                    expected = vector.get("decoded_tokenizer_json", vector["decoded"])
                    self.assertEqual(answer["text"], expected)
                    self.assertEqual(set(answer), {"text", "bytes_hex"})

    def test_special_tokens_are_text_unless_asked(self):
        text = "<|endoftext|>"
        self.assertEqual(self.tokenizer("bpe_gpt2", "--special", lines=[text]), [{"ids": [1400]}])
        (answer,) = self.tokenizer("bpe_gpt2", lines=[text])
        self.assertNotIn(1400, answer["ids"])
        self.assertGreater(len(answer["ids"]), 1)

    def test_bytes_of_half_a_character(self):
        model = ["tokenize", "--model", "random:tiny"]
        result = ete(*model, "--no-bos", stdin=b'"h\\u00e9"\n')
        self.assertEqual(result.stdout, b'{"ids":[104,195,169]}\n', result.stderr)
        result = ete(*model, "--decode", stdin=b"[104,195]\n[]\n")
        expected = '{"text":"h\ufffd","bytes_hex":"68c3"}\n{"text":"","bytes_hex":""}\n'
        self.assertEqual(result.stdout.decode(), expected, result.stderr)

    def test_what_it_prints_decodes(self):
        encoded = ete("tokenize", "--model", "random:tiny", "--no-bos", stdin=b'"Hello"\n""\n')
        decoded = ete("tokenize", "--model", "random:tiny", "--decode", stdin=encoded.stdout)
        self.assertEqual(decoded.returncode, 0, decoded.stderr)
        self.assertEqual([json.loads(line)["text"] for line in decoded.stdout.splitlines()], ["Hello", ""])

    def test_bad_lines(self):
        encode = [b"abc", b"", b"1", b'["a"]', b'"a" "b"', b'"\\ud800"', b'"\\udc00x"', b'"\xff"', b'"a']
        decode = [b"abc", b"", b'"a"', b"[-1]", b"[1.5]", b'["1"]', b"[2147483648]", b"1", b"[1"]
        decode += [b"{}", b'{"ids":1}', b'{"ids":[-1]}', b'{"ids":[1],"text":"a"}', b'{"id":[1]}']
        for flags, good, bad_lines in [([], b'"a"\n', encode), (["--decode"], b"[1]\n", decode)]:
            for bad in bad_lines:
                with self.subTest(flags=flags, line=bad):
                    result = ete("tokenize", "--model", "random:tiny", *flags, stdin=good + bad + b"\n" + good)
                    self.assertEqual(result.returncode, 1)
                    self.assertEqual(result.stdout.count(b"\n"), 1)
                    self.assertIn(b"line 2 of stdin", result.stderr)
                    self.assertEqual(result.stderr.count(b"\n"), 1)

    def test_no_tokenizer(self):
        self.check_failure(ete("tokenize", "--model", LLAMA), 1, LLAMA, "tokenizer")
        self.check_failure(ete("tokenize", "--model", "/nonexistent"), 1, "/nonexistent")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
