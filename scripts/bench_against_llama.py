#!/usr/bin/env python3
"""Decode, 512-token prefill and resident memory of `ete serve` beside llama.cpp on the same file, interleaved.

    python3 -m venv .venv && .venv/bin/pip install llama-cpp-python
    .venv/bin/python scripts/bench_against_llama.py [--model FILE.gguf] [--threads 2] [--rounds 7]

Each round measures ours, then llama.cpp, then ours, ...: the ratio is taken round by round, so that it holds when the
machine's speed drifts. Ours is measured through front and worker (gRPC, sampling, detokenizing included), llama.cpp in
process without any of that.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PREFILL = 512
DECODE = 128


def resident_mb(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def prompt_ids(length, salt):
    """Ids of ordinary text pieces, different in every round so that no cache can help."""
    return [1000 + (i * 7919 + salt * 104729) % 20000 for i in range(length)]


class Ours:
    def __init__(self, ete, model, threads):
        self.ete = ete
        self.folder = tempfile.TemporaryDirectory(prefix="ete-bench-")
        self.address = f"unix:{self.folder.name}/front.sock"
        self.server = subprocess.Popen(
            [ete, "serve", "--model", model, "--listen", self.address, "--threads", str(threads), "--device", "cpu"],
            stderr=subprocess.PIPE, text=True)
        for line in self.server.stderr:
            if "ready" in line.lower():
                break
        else:
            sys.exit("ete serve did not become ready")

    def worker_pid(self):
        children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(self.server.pid)], capture_output=True, text=True)
        for line in children.stdout.splitlines():
            pid, name = line.split(None, 1)
            if "ete-worker" in name:
                return int(pid)
        sys.exit("ete serve has no worker")

    def generate(self, ids, count):
        command = [self.ete, "run", "--address", self.address, "--json", "--temperature", "0", "--max-tokens", str(count),
                   "--ignore-eos", "--tokens", ",".join(map(str, ids))]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["timings"]

    def measure(self, salt):
        timings = self.generate(prompt_ids(PREFILL, salt), DECODE)
        return timings["prefill_tokens_per_second"], timings["decode_tokens_per_second"]

    def memory(self):
        return resident_mb(self.worker_pid())

    def close(self):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(timeout=20)
        self.folder.cleanup()


def llama_loop(connection, model, threads):
    import llama_cpp
    llama = llama_cpp.Llama(model_path=model, n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads,
                            n_gpu_layers=0, verbose=False)
    connection.send(llama_cpp.__version__)
    while (salt := connection.recv()) is not None:
        llama.reset()
        start = time.perf_counter()
        llama.eval(prompt_ids(PREFILL, salt))
        prefill = PREFILL / (time.perf_counter() - start)
        start = time.perf_counter()
        for step in range(DECODE):
            llama.eval([1000 + step])
        connection.send((prefill, DECODE / (time.perf_counter() - start), resident_mb(os.getpid())))


class Llama:
    def __init__(self, model, threads):
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=llama_loop, args=(other, model, threads), daemon=True)
        self.process.start()
        self.version = self.connection.recv()

    def measure(self, salt):
        self.connection.send(salt)
        prefill, decode, self.rss = self.connection.recv()
        return prefill, decode

    def close(self):
        self.connection.send(None)
        self.process.join()


def spread(values):
    return f"{statistics.median(values):8.2f}  [{min(values):.2f} to {max(values):.2f}]"


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "edge-transformer-engine"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(cache / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--ete", default=str(ROOT / "build/release/bin/ete"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    llama = Llama(options.model, options.threads)
    ours = Ours(options.ete, options.model, options.threads)
    try:
        ours.measure(1), llama.measure(1)
        rows = []
        for salt in range(2, 2 + options.rounds):
            rows.append((*ours.measure(salt), *llama.measure(salt)))
        memory = ours.memory(), llama.rss
    finally:
        ours.close()
        llama.close()

    print(f"{options.rounds} rounds, {options.threads} threads, llama-cpp-python {llama.version}")
    for name, mine, theirs in (("prefill 512, tokens/s", 0, 2), ("decode, tokens/s", 1, 3)):
        print(f"{name:24} ours {spread([r[mine] for r in rows])}   llama.cpp {spread([r[theirs] for r in rows])}"
              f"   ratio {spread([r[mine] / r[theirs] for r in rows])}")
    print(f"{'resident memory, MB':24} ours {memory[0]:8.1f}   llama.cpp {memory[1]:8.1f}   ratio {memory[0] / memory[1]:8.2f}")


if __name__ == "__main__":
    main()
