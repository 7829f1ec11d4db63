#!/usr/bin/env python3
"""Decode, 512-token prefill, 16 streams at once and resident memory of `ete serve` beside another engine, interleaved.

    python3 -m venv .venv
    .venv/bin/pip install llama-cpp-python
    .venv/bin/python scripts/bench_against.py llama.cpp
    .venv/bin/pip install torch transformers gguf ctranslate2
    .venv/bin/python scripts/bench_against.py transformers
    .venv/bin/python scripts/bench_against.py ctranslate2

llama.cpp reads the GGUF file itself. The others read Hugging Face's layout, which is made of the same file once, in float32,
below --work, and ours then reads that too. Each round measures ours, then theirs, then ours, ...: the ratio is taken round
by round, so that it holds when the machine's speed drifts. Ours is measured through front and worker (gRPC or HTTP,
sampling, detokenizing included), the other in process without any of that.
"""
import argparse
import concurrent.futures
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PREFILL = 512
DECODE = 128
STREAMS, STREAM_PROMPT, STREAM_DECODE = 16, 32, 64


def resident_mb(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def prompt_ids(length, salt):
    """Ids of ordinary text pieces, different in every round so that no cache can help."""
    return [1000 + (i * 7919 + salt * 104729) % 20000 for i in range(length)]


def stream_prompts(salt):
    return [prompt_ids(STREAM_PROMPT, salt * 100 + i) for i in range(STREAMS)]


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def streams_rate(generate):
    """Tokens a second of all streams together, behind the first of each; generate(count) makes so many for each."""
    first = seconds(lambda: generate(1))
    return STREAMS * (STREAM_DECODE - 1) / (seconds(lambda: generate(STREAM_DECODE)) - first)


class Ours:
    def __init__(self, ete, model, threads, flags):
        self.ete = ete
        self.folder = tempfile.TemporaryDirectory(prefix="ete-bench-")
        self.address = f"unix:{self.folder.name}/front.sock"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.http = f"127.0.0.1:{free.getsockname()[1]}"
        self.server = subprocess.Popen(
            [ete, "serve", "--model", model, "--listen", self.address, "--http", self.http, "--threads", str(threads),
             "--device", "cpu", *flags], stderr=subprocess.PIPE, text=True)
        line = ""
        for line in self.server.stderr:
            if "ready" in line.lower():
                break
            if line.startswith("ete-worker: "):
                sys.exit(line)
        else:
            sys.exit(f"ete serve did not become ready: {line}")

    def worker_pid(self):
        children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(self.server.pid)], capture_output=True, text=True)
        for line in children.stdout.splitlines():
            pid, name = line.split(None, 1)
            if "ete-worker" in name:
                return int(pid)
        sys.exit("ete serve has no worker")

    def generate(self, ids, count):
        command = [self.ete, "run", "--address", self.address, "--json", "--temperature", "0", "--max-tokens", str(count),
                   "--ignore-eos", "--draft-tokens", "0", "--tokens", ",".join(map(str, ids))]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["timings"]

    def measure(self, salt):
        timings = self.generate(prompt_ids(PREFILL, salt), DECODE)
        return timings["prefill_tokens_per_second"], timings["decode_tokens_per_second"]

    def post(self, ids, count):
        body = {"prompt": ids, "max_tokens": count, "temperature": 0, "ignore_eos": True, "draft_tokens": 0}
        request = urllib.request.Request(f"http://{self.http}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            if json.load(reply)["usage"]["completion_tokens"] != count:
                sys.exit("ete serve generated another number of tokens")

    def streams(self, salt):
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            return streams_rate(lambda count: list(pool.map(lambda ids: self.post(ids, count), stream_prompts(salt))))

    def memory(self):
        return resident_mb(self.worker_pid())

    def close(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(timeout=20)
        self.folder.cleanup()


class LlamaCpp:
    package = "llama-cpp-python"

    def __init__(self, model, threads):
        import llama_cpp
        self.llama = llama_cpp.Llama(model_path=model, n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads,
                                     n_gpu_layers=0, verbose=False)

    def measure(self, salt):
        self.llama.reset()
        prefill = seconds(lambda: self.llama.eval(prompt_ids(PREFILL, salt)))
        decode = seconds(lambda: [self.llama.eval([1000 + step]) for step in range(DECODE)])
        return PREFILL / prefill, DECODE / decode


class Transformers:
    package = "transformers"

    def __init__(self, model, threads):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def step(self, ids, cache):
        with self.torch.inference_mode():
            out = self.model(self.torch.tensor(ids), past_key_values=cache, use_cache=True, logits_to_keep=1)
            return out.logits[:, -1].argmax(-1, keepdim=True).tolist(), out.past_key_values

    def generate(self, prompts, count):
        ids, cache = self.step(prompts, None)
        for _ in range(count - 1):
            ids, cache = self.step(ids, cache)

    def measure(self, salt):
        kept = []
        prefill = seconds(lambda: kept.extend(self.step([prompt_ids(PREFILL, salt)], None)))

        def decode(ids, cache):
            for _ in range(DECODE):
                ids, cache = self.step(ids, cache)
        return PREFILL / prefill, DECODE / seconds(lambda: decode(*kept))

    def streams(self, salt):
        return streams_rate(lambda count: self.generate(stream_prompts(salt), count))


class CTranslate2:
    package = "ctranslate2"

    def __init__(self, model, threads):
        import ctranslate2
        converted = pathlib.Path(f"{model}-ctranslate2-int8")
        if not converted.exists():
            ctranslate2.converters.TransformersConverter(model).convert(str(converted), quantization="int8")
        self.generator = ctranslate2.Generator(str(converted), compute_type="int8", intra_threads=threads)
        self.names = json.loads((converted / "vocabulary.json").read_text())

    def generate(self, prompts, count):
        self.generator.generate_batch([[self.names[one] for one in ids] for ids in prompts], max_length=count,
                                      min_length=count, include_prompt_in_result=False)

    def measure(self, salt):
        ids = [prompt_ids(PREFILL, salt)]
        prefill = seconds(lambda: self.generate(ids, 1))
        return PREFILL / prefill, (DECODE - 1) / (seconds(lambda: self.generate(ids, DECODE)) - prefill)

    def streams(self, salt):
        return streams_rate(lambda count: self.generate(stream_prompts(salt), count))


PEERS = {"llama.cpp": LlamaCpp, "transformers": Transformers, "ctranslate2": CTranslate2}


def peer_loop(connection, kind, model, threads):
    peer = kind(model, threads)
    connection.send(None)
    while (call := connection.recv()) is not None:
        connection.send((getattr(peer, call[0])(call[1]), resident_mb(os.getpid())))


class Theirs:
    """In a process of its own, whose memory is then the engine's."""

    def __init__(self, kind, model, threads):
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=peer_loop, args=(other, kind, model, threads), daemon=True)
        self.process.start()
        self.connection.recv()
        self.rss = 0

    def call(self, name, salt):
        self.connection.send((name, salt))
        result, self.rss = self.connection.recv()
        return result

    def close(self):
        self.connection.send(None)
        self.process.join()


def hugging_face_layout(gguf, work):
    """The GGUF file's weights in float32, as transformers reads them."""
    folder = work / pathlib.Path(gguf).stem
    if not (folder / "tokenizer_config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        where, name = os.path.split(os.path.abspath(gguf))
        read = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
        weights = read.state_dict()
        if hasattr(read.config, "quantization_config"):
            del read.config.quantization_config
        plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        plain.load_state_dict(weights)
        plain.save_pretrained(folder)
        AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)
    return str(folder)


def spread(values):
    return f"{statistics.median(values):8.2f}  [{min(values):.2f} to {max(values):.2f}]"


def arguments():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "edge-transformer-engine"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--model", default=str(cache / "SmolLM2-135M-Instruct.Q4_1.gguf"), help="a GGUF file")
    parser.add_argument("--ete", default=str(ROOT / "build/release/bin/ete"))
    parser.add_argument("--work", default=str(ROOT / "build/peers"), help="where converted models are kept")
    parser.add_argument("--flags", default="", help="more flags for ete serve, as '--weights w8'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def main():
    options = arguments()
    kind = PEERS[options.peer]
    batches = hasattr(kind, "streams")
    model = options.model
    if kind is not LlamaCpp:
        with multiprocessing.Pool(1) as pool:  # torch's threads and memory end with it
            model = pool.apply(hugging_face_layout, (options.model, pathlib.Path(options.work)))
    theirs = Theirs(kind, model, options.threads)
    ours = Ours(options.ete, model, options.threads, shlex.split(options.flags))
    try:
        rows, many = [], []
        for salt in range(1, 2 + options.rounds):  # the first warms up
            rows.append((*ours.measure(salt), *theirs.call("measure", salt)))
            if batches:
                many.append((ours.streams(salt), theirs.call("streams", salt)))
        memory = ours.memory(), theirs.rss
    finally:
        ours.close()
        theirs.close()

    print(f"{options.rounds} rounds, {options.threads} threads, {kind.package} {importlib.metadata.version(kind.package)}")
    figures = [("prefill 512, tokens/s", [(r[0], r[2]) for r in rows[1:]]), ("decode, tokens/s", [(r[1], r[3]) for r in rows[1:]])]
    for name, pairs in figures + ([("16 streams, tokens/s", many[1:])] if batches else []):
        print(f"{name:24} ours {spread([a for a, _ in pairs])}   {options.peer} {spread([b for _, b in pairs])}"
              f"   ratio {spread([a / b for a, b in pairs])}")
    print(f"{'resident memory, MB':24} ours {memory[0]:8.1f}   {options.peer} {memory[1]:8.1f}   ratio {memory[0] / memory[1]:8.2f}")


if __name__ == "__main__":
    main()
