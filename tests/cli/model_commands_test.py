"""What `ete` does with a model without serving it: logits, bench, inspect, pack. Standard library only.

Arguments: those of command_case.py.
"""

import array
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

from command_case import ETE, GOLDEN, LLAMA, TIMEOUT, CommandLineTest, ete

# What the goldens judge: nothing is rounded.
EXACT = ["--device", "cpu", "--math", "exact", "--kv-type", "f32"]


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, info in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        values = array.array({"F32": "f", "I32": "i"}[info["dtype"]])
        values.frombytes(data[8 + length + begin : 8 + length + end])
        tensors[name] = (info["dtype"], info["shape"], values)
    return tensors


class Logits(CommandLineTest):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.out = self.directory / "out.safetensors"
        self.golden = read_safetensors(LLAMA + "/golden.safetensors")

    def logits(self, ids, *flags):
        tokens = ",".join(map(str, ids))
        result = ete("logits", "--model", LLAMA, "--tokens", tokens, "--out", str(self.out), *EXACT, *flags)
        self.assertEqual((result.returncode, result.stdout), (0, b""), result.stderr)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["out.safetensors"])
        return read_safetensors(self.out)

    def check_close(self, actual, expected):
        self.assertEqual(len(actual), len(expected))
        limit = 1e-4 * max(map(abs, expected))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(actual, expected)), limit)

    def test_all_rows_and_greedy(self):
        for i in range(3):
            ids = self.golden[f"p{i}.ids"][2]
            tensors = self.logits(ids, "--greedy", "24")
            self.assertEqual(tensors["logits"][:2], ("F32", [len(ids), 320]))
            self.check_close(tensors["logits"][2], self.golden[f"p{i}.logits"][2])
            self.assertEqual(tensors["greedy_ids"], ("I32", [24], self.golden[f"p{i}.greedy_ids"][2]))

    def test_last(self):
        ids = self.golden["p1.ids"][2]
        tensors = self.logits(ids, "--last")
        self.assertEqual(list(tensors), ["logits"])
        self.assertEqual(tensors["logits"][1], [1, 320])
        self.check_close(tensors["logits"][2], self.golden["p1.logits"][2][-320:])

    def test_one_by_one(self):
        ids = self.golden["p1.ids"][2]
        for flags, rows in [([], len(ids)), (["--last"], 1)]:
            tensors = self.logits(ids, "--one-by-one", "--greedy", "3", *flags)
            self.assertEqual(tensors["logits"][1], [rows, 320])
            self.check_close(tensors["logits"][2], self.golden["p1.logits"][2][-320 * rows :])
            self.assertEqual(tensors["greedy_ids"][2], self.golden["p1.greedy_ids"][2][:3])

    def test_one_token(self):
        tensors = self.logits([1], "--greedy", "1")
        best = max(range(320), key=lambda id: tensors["logits"][2][id])
        self.assertEqual(list(tensors["greedy_ids"][2]), [best])

    def test_refusals_leave_the_file_alone(self):
        self.out.write_bytes(b"old")
        base = ["logits", "--model", LLAMA, "--out", str(self.out), *EXACT]
        cases = [
            (["--tokens", "1,320"], "--tokens: 320"),
            (["--tokens", "1,2,3", "--context", "2"], "--tokens: 3 ids"),
            (["--tokens", "1,2,3", "--context", "4", "--greedy", "3"], "--greedy: 3"),
        ]
        for flags, mention in cases:
            with self.subTest(flags=flags):
                self.check_failure(ete(*base, *flags), 2, mention)
        result = ete("logits", "--model", "/nonexistent", "--tokens", "1", "--out", str(self.out))
        self.check_failure(result, 1, "/nonexistent")
        result = ete("logits", "--model", LLAMA, "--tokens", "1", "--out", "/nonexistent/x", *EXACT)
        self.check_failure(result, 1, "/nonexistent/x")
        self.assertEqual(self.out.read_bytes(), b"old")
        self.assertEqual(len(list(self.directory.iterdir())), 1)

    def test_greedy_fills_the_context(self):
        tensors = self.logits([1, 2, 3], "--context", "4", "--greedy", "2")
        self.assertEqual(tensors["greedy_ids"][1], [2])


class Bench(CommandLineTest):
    SMALL = ["bench", "--model", LLAMA, *EXACT, "--prompt", "20,40", "--sessions", "1,3", "--depth", "8", "--steps", "2"]

    def test_json(self):
        result = ete(*self.SMALL, "--json", "--resident-layers", "1", "--slots", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        for rate in ("link_in", "link_out", "link_in_beside_out", "link_out_beside_in", "device_copy", "host_read",
                     "multiply_adds_per_second"):
            self.assertGreater(document["ceilings"][rate], 0)
        figures = document["figures"]
        names = [(figure["name"], figure["sessions"]) for figure in figures]
        lengths = [(name + length, 1) for length in ("20", "40") for name in ("prefill ", "first token ")]
        self.assertEqual(names, lengths + [("decode", 1), ("decode", 3)])
        for figure in figures:
            self.assertFalse(figure["withheld"])
            self.assertLessEqual(figure["error"], figure["tolerance"])
            self.assertLessEqual(figure["lowest"], figure["value"])
            self.assertLessEqual(figure["value"], figure["highest"])
            self.assertGreater(figure["ceiling"], 0)
        self.assertTrue(0 <= figures[-1]["link_idle"] <= 1)

    def test_text(self):
        result = ete(*self.SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.decode().splitlines()
        self.assertTrue(any(line.startswith("ceilings") for line in lines))
        self.assertEqual(sum(line.startswith("decode ") for line in lines), 2)

    def test_plot(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "plot.svg"
            result = ete(*self.SMALL, "--resident-layers", "0", "--slots", "2", "--plot", str(path))
            self.assertEqual(result.returncode, 0, result.stderr)
            picture = xml.dom.minidom.parse(str(path)).documentElement
            boxes = [box.getAttribute("class") for box in picture.getElementsByTagName("rect")]
            # Each of four layers in three steps, and the copies that did not lie before them.
            self.assertGreaterEqual(len(boxes), 3 * 4 + 2 * 4)
            texts = [text.firstChild.data for text in picture.getElementsByTagName("text")]
            self.assertTrue(any(text.startswith("link idle") for text in texts))
            self.assertIn("3 sessions", texts)
        self.check_failure(ete(*self.SMALL, "--plot", "/nonexistent/x.svg"), 1, "--plot /nonexistent/x.svg: No such file")
        self.check_failure(ete(*self.SMALL, "--plot", "/"), 1, "--plot /: Is a directory")

    def test_refusals(self):
        lengths = "accepted: at most 4096"
        for flags, *mentions in [
            (["--sessions", "1,,2"], "--sessions", "1,,2", "from 1 to 1024"),
            (["--sessions", "0"], "--sessions", "from 1 to 1024"),
            (["--sessions", "4,100000"], "--sessions", "4,100000", "from 1 to 1024"),
            (["--prompt", "5000"], "--prompt: 5000 ids", "accepted: 1 to 4096"),
            (["--prompt", "99999999999"], "--prompt", "99999999999", "from 1 to 2147483647"),
            (["--depth", "5000"], "--depth 5000", lengths),
            (["--depth", "0"], "--depth", "from 1 to 2147483647"),
            (["--steps", "none"], "--steps", "none", "from 1 to 2147483647"),
            (["--steps", "2147483647"], "--steps 2147483647", lengths),
            (["--repeats", "2147483647"], "--repeats 2147483647", lengths),
            (["--repeats", "2147483648"], "--repeats", "2147483648", "from 1 to 2147483647"),
            (["--max-sessions", "100000"], "--max-sessions", "100000", "1 to 1024"),
            (["--max-sessions", "99999999999"], "--max-sessions", "99999999999", "from 1 to"),
            (["--threads", "100000"], "--threads", "100000", "1 to 1024"),
            (["--chunk", "100000"], "--chunk", "100000", "1 to 16384"),
            (["--context", "100000"], "--context", "100000", "1 to 4096"),
            (["--slots", "100000"], "--slots", "100000", "2 to 1024"),
            (["--resident-layers", "100000"], "--resident-layers", "100000", "-1 to 4"),
            (["--link-limit", "1"], "--link-limit", "at least 1M"),
            (["--host-share", "2"], "--host-share", "from 0 to 1"),
            (["--prefix-cache", "1M"], "--prefix-cache: 1048576", "accepted: 0, auto"),
        ]:
            with self.subTest(flags=flags):
                self.check_failure(ete("bench", "--model", LLAMA, "--device", "cpu", *flags), 2, *mentions)
        # What the engine calls --max-sessions was given as --sessions.
        flags = ["--device", "cpu", "--sessions", "1000", "--kv", "device", "--vram-budget", "100M"]
        self.check_failure(ete("bench", "--model", LLAMA, *flags), 1, "--sessions 1000 (as --max-sessions)")


class Inspect(CommandLineTest):
    def test_json(self):
        result = ete("inspect", "--model", LLAMA, "--json", "--context", "128")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count(b"\n"), 1)
        document = json.loads(result.stdout)
        self.assertEqual(document["architecture"], "LlamaForCausalLM")
        self.assertEqual(document["config"]["hidden_size"], 128)
        self.assertEqual(document["plan"]["context"], 128)
        (tensors,) = document["tensors"]
        self.assertEqual(tensors["type"], "f32")
        # Embedding, head, final norm, and of each layer 7 matrices and 2 norms.
        self.assertEqual(tensors["count"], 3 + 4 * 9)
        header = json.loads(self.header(LLAMA + "/model.safetensors"))
        sizes = [t["data_offsets"][1] - t["data_offsets"][0] for n, t in header.items() if n != "__metadata__"]
        self.assertEqual(tensors["bytes"], sum(sizes))
        verdicts = {entry["key"]: entry["verdict"] for entry in document["capabilities"]}
        self.assertEqual(verdicts["hidden_size"], "wired")
        self.assertLessEqual(set(verdicts.values()), {"wired", "harmless", "accepted"})

    def header(self, path):
        data = pathlib.Path(path).read_bytes()
        return data[8 : 8 + struct.unpack("<Q", data[:8])[0]]

    def test_text(self):
        result = ete("inspect", "--model", LLAMA)
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ["LlamaForCausalLM", "f32: 39 tensors", "wired: hidden_size = 128"]:
            self.assertIn(part, result.stdout.decode())

    def test_refusals_name_the_field(self):
        for directory in sorted((GOLDEN / "refuse").iterdir()):
            expect = json.loads((directory / "expect.json").read_text())
            if expect.get("accept_if_matches"):
                continue
            with self.subTest(model=directory.name):
                result = ete("inspect", "--model", str(directory))
                self.check_failure(result, 1, str(directory))
                message = result.stderr.decode().lower().replace(str(directory).lower(), "")
                self.assertTrue(any(m.lower() in message for m in expect["mention_any"]), message)

    def test_weights_without_their_directory(self):
        result = ete("inspect", "--model", LLAMA + "/model.safetensors")
        self.check_failure(result, 1, "model.safetensors", "the directory of config.json and safetensors weights")

    def test_closed_stdout(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([ETE, "inspect", "--model", LLAMA], stdout=writer, timeout=TIMEOUT)
        os.close(writer)
        self.assertNotEqual(result.returncode, 0)


class Pack(CommandLineTest):
    def test_packs_once(self):
        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "packed")
            result = ete("pack", "--model", LLAMA, "--format", "int8", "--out", out, "--json")
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            report = json.loads(result.stdout)
            self.assertTrue(all(t["relative_rms"] < 0.03 for t in report["tensors"] if t["quantised"]))
            self.assertEqual(ete("inspect", "--model", out, *EXACT[:2]).returncode, 0)
            again = ete("pack", "--model", LLAMA, "--format", "int8", "--out", out)
            self.check_failure(again, 2, out, "is not an empty directory")
            self.assertEqual(os.listdir(directory), ["packed"])

    def test_leaves_nothing_when_it_is_ended(self):
        def end_soon():  # the signal waits until the command asks for it
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)

        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "packed")
            result = ete("pack", "--model", LLAMA, "--format", "int8", "--out", out, preexec_fn=end_soon)
            self.assertEqual(result.returncode, 128 + signal.SIGTERM, result.stderr.decode())
            self.assertEqual(os.listdir(directory), [])

    def test_refuses(self):
        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "packed")
            for arguments, mention in [
                (["--model", LLAMA, "--format", "int3", "--out", out], "--format"),
                (["--model", LLAMA, "--format", "int8"], "--out"),
            ]:
                self.check_failure(ete("pack", *arguments), 2, mention)
            quantised = str(GOLDEN / "models" / "llama_gqa_w8a16")
            result = ete("pack", "--model", quantised, "--format", "int8", "--out", out)
            self.check_failure(result, 1, "quantised already")
            nowhere = os.path.join(directory, "none", "packed")
            result = ete("pack", "--model", LLAMA, "--format", "int8", "--out", nowhere)
            self.check_failure(result, 1, nowhere)
            self.assertEqual(os.listdir(directory), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
