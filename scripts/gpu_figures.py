#!/usr/bin/env python3
"""The figures of docs/gpu-figures.md: runs `ete bench` on a machine with a GPU, prints a table of each figure, the command
that makes it and what it is held against.

  scripts/gpu_figures.py [--ete build/release/bin/ete] [--only WORD] [--out FILE.md]

Device memory is what the driver reports for the whole GPU less what it reported before, so nothing else may use the GPU.
"""
import argparse
import dataclasses
import json
import subprocess
import sys
import threading
import time
from typing import Callable

HYBRID = "--model random:qwen3.5-9b"


def streamed(sessions: int, context: int, layers: str = "0", shape: str = "llama-8b") -> str:
    return (f"--model random:{shape}:w8 --resident-layers {layers} --max-sessions {sessions} --context {context} "
            "--threads 16")


@dataclasses.dataclass
class Line:
    what: str
    value: float
    bound: str  # ">= 0.93", or "" where there is none
    note: str = ""

    def holds(self) -> bool | None:
        if not self.bound:
            return None
        sign, limit = self.bound.split()
        return self.value >= float(limit) if sign == ">=" else self.value <= float(limit)


@dataclasses.dataclass
class Run:
    report: dict
    device_bytes: float  # most that the driver saw, less what it saw before

    def figure(self, name: str, sessions: int = 1) -> dict:
        for figure in self.report["figures"]:
            if figure["name"] == name and figure["sessions"] == sessions:
                if figure["withheld"]:
                    raise RuntimeError(f"{name} is withheld: error {figure['error']}")
                return figure
        raise RuntimeError(f"no figure {name} of {sessions} sessions")

    def rate(self, name: str, sessions: int = 1) -> float:
        return self.figure(name, sessions)["value"]


@dataclasses.dataclass
class Case:
    key: str
    arguments: str
    lines: Callable[[Run, dict], list[Line]]  # the run, and the runs before it by key


def spread(figure: dict) -> str:
    return (f"{figure['value']:.4g} {figure['unit']} [{figure['lowest']:.4g} to {figure['highest']:.4g}], "
            f"ceiling {figure['ceiling']:.4g} by {figure['ceiling_by']}")


def ratio(run: Run, name: str, bound: str, sessions: int = 1) -> Line:
    figure = run.figure(name, sessions)
    return Line(f"{name}, {sessions} sessions: part of the ceiling", figure["ratio"], bound, spread(figure))


def times_of_one(run: Run, sessions: int, bound: str) -> Line:
    return Line(f"decode, {sessions} sessions: tokens/s over {sessions} x one session",
                run.rate("decode", sessions) / (sessions * run.rate("decode")), bound,
                spread(run.figure("decode", sessions)))


def tokens(run: Run, name: str, bound: str) -> Line:
    return Line(f"{name}: tokens/s", run.rate(name), bound, spread(run.figure(name)))


def streaming(run: Run, _: dict) -> list[Line]:
    return [ratio(run, "decode", ">= 0.93"),
            Line("link idle, part of a step", run.figure("decode").get("link_idle", -1), "<= 0.04"),
            times_of_one(run, 16, ">= 0.90"), times_of_one(run, 64, ">= 0.75")]


def prompts(run: Run, _: dict) -> list[Line]:
    return ([ratio(run, f"prefill {length}", ">= 0.8") for length in (512, 2048, 8192)] +
            [tokens(run, "prefill 512", ">= 3000"), tokens(run, "prefill 2048", ">= 8000")])


def small_prompts(run: Run, _: dict) -> list[Line]:
    return [ratio(run, f"prefill {length}", ">= 0.8") for length in (512, 2048, 8192)]


def long_context(run: Run, before: dict) -> list[Line]:
    lines = [ratio(run, "decode", ">= 0.90")]
    if "kv-1k" in before:
        lines.append(Line("device bytes at 32k over those at 1k", run.report["plan"]["peak_device_bytes"] /
                          before["kv-1k"].report["plan"]["peak_device_bytes"], "<= 1"))
    return lines


def memory(budget: float) -> Callable[[Run, dict], list[Line]]:
    def lines(run: Run, before: dict) -> list[Line]:
        base = before["baseline"].device_bytes - before["baseline"].report["plan"]["peak_device_bytes"]
        used = run.device_bytes - base
        return [Line("device bytes by the driver, less context and kernels, over the budget",
                     used / (budget * 2**30), "<= 1", f"context and kernels {base / 2**20:.0f} MiB")]
    return lines


def shared(run: Run, before: dict) -> list[Line]:
    alone = before["streaming"]
    return [Line("decode, 1 session: times streaming alone", run.rate("decode") / alone.rate("decode"), ">= 1.4",
                 f"share {run.report['plan']['host_share']:.2f}; " + spread(run.figure("decode"))),
            Line("decode, 16 sessions: times streaming alone", run.rate("decode", 16) / alone.rate("decode", 16),
                 ">= 0.97", spread(run.figure("decode", 16)))]


def hybrid_half_gigabyte(run: Run, _: dict) -> list[Line]:
    return [ratio(run, "decode", ">= 0.93"), ratio(run, "prefill 2048", ">= 0.77")]


def resident(rate: str) -> Callable[[Run, dict], list[Line]]:
    return lambda run, _: [tokens(run, "decode", rate), ratio(run, "decode", "")]


CASES = [
    Case("baseline", "--model random:tiny --sessions 1 --prompt 64 --vram-budget 64M", lambda run, _: []),
    Case("streaming", f"{streamed(64, 1024)} --sessions 1,16,64 --prompt 64 --steps 16", streaming),
    Case("share", f"{streamed(16, 1024)} --sessions 1,16 --prompt 64 --steps 16 --host-share auto", shared),
    Case("prompts", f"{streamed(1, 8192)} --vram-budget 4G --sessions 1 --prompt 512,2048,8192 "
         "--steps 4", prompts),
    Case("memory-0.5", f"{streamed(1, 8192)} --vram-budget 0.5G --kv host --sessions 1 "
         "--prompt 512,2048,8192 --steps 4", lambda run, before: small_prompts(run, before) + memory(0.5)(run, before)),
    Case("kv-1k", f"{streamed(1, 1024, shape='qwen3-8b')} --kv host --vram-budget 2G --sessions 1 --prompt 64 "
         "--steps 8", lambda run, _: [ratio(run, "decode", "")]),
    Case("kv-32k", f"{streamed(1, 32832, shape='qwen3-8b')} --kv host --vram-budget 2G --sessions 1 --prompt 64 "
         "--depth 32768 --steps 8", long_context),
    *[Case(f"memory-{size}", f"{streamed(4, 1024, 'auto')} --vram-budget {size}G --sessions 4 "
           "--prompt 512 --steps 4", memory(size)) for size in (1, 3, 8)],
    Case("t1000", "--model random:qwen3.5-9b:w8 --link-limit 11.3G --kernels dp4a --vram-budget 3G --threads 4 "
         "--max-sessions 1 --context 1024 --sessions 1 --prompt 64 --steps 4 --repeats 1",
         lambda run, _: [tokens(run, "decode", ">= 1.41"), ratio(run, "decode", "")]),
    Case("9b-0.6", f"{HYBRID}:w8 --vram-budget 0.6G --resident-layers 0 --slots 2 --kv host --max-sessions 1 "
         "--context 8320 --depth 8192 --sessions 1 --prompt 2048 --steps 8 --threads 16", hybrid_half_gigabyte),
    Case("9b-1", f"{HYBRID}:w8 --vram-budget 1G --resident-layers 0 --max-sessions 16 --context 1024 --sessions 1,16 "
         "--prompt 64 --steps 8 --threads 16", lambda run, _: [times_of_one(run, 16, ">= 0.85")]),
    Case("9b-int4", f"{HYBRID}:w4 --vram-budget 0.6G --resident-layers 0 --kv host --max-sessions 1 --context 1024 "
         "--sessions 1 --prompt 64 --steps 8 --threads 16", lambda run, _: [ratio(run, "decode", ">= 0.93")]),
    Case("9b-resident", f"{HYBRID}:w8 --resident-layers -1 --max-sessions 1 --context 1024 --sessions 1 --prompt 512",
         resident(">= 216")),
    Case("9b-resident-int4", f"{HYBRID}:w4 --resident-layers -1 --max-sessions 1 --context 1024 --sessions 1 "
         "--prompt 512", resident(">= 261")),
]


def memory_used() -> float:
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
                          check=True, capture_output=True, text=True).stdout
    return float(text.strip()) * 2**20


def run_bench(ete: str, case: Case) -> Run:
    before = memory_used()
    most = [before]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            most[0] = max(most[0], memory_used())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = subprocess.run([ete, "bench", *case.arguments.split(), "--device", "cuda", "--json"],
                              capture_output=True, text=True, timeout=300)
    finally:
        stop.set()
        watcher.join()
    if done.returncode != 0:
        errors = [f"{figure['name']} of {figure['sessions']}: error {figure['error']:.2g}"
                  for figure in (json.loads(done.stdout)["figures"] if done.stdout.strip() else [])]
        raise RuntimeError("; ".join((done.stderr.strip().splitlines() or ["no message"])[-1:] + errors))
    return Run(json.loads(done.stdout), most[0] - before)


def table(case: Case, lines: list[Line]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    text = f"\n`ete bench {case.arguments} --device cuda`\n\n| figure | value | bound | holds | |\n|---|---|---|---|---|\n"
    return text + "".join(f"| {line.what} | {line.value:.4g} | {line.bound} | {words[line.holds()]} | {line.note} |\n"
                          for line in lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ete", default="build/release/bin/ete")
    options.add_argument("--only", default="", help="cases whose key holds this word; several with commas")
    options.add_argument("--out", help="also write the tables there")
    arguments = options.parse_args()
    words = arguments.only.split(",")
    before: dict[str, Run] = {}
    text, failed = "", 0
    for case in CASES:
        if not any(word in case.key for word in words):
            continue
        began = time.monotonic()
        try:
            run = run_bench(arguments.ete, case)
            before[case.key] = run
            plan = run.report["plan"]
            lines = case.lines(run, before)
            part = table(case, lines)
            part += (f"\n{plan['device_name']}, {plan['kernels']}; link {run.report['ceilings']['link_in'] * 1e-9:.1f} "
                     f"GB/s, copy {run.report['ceilings']['device_copy'] * 1e-9:.0f} GB/s; "
                     f"{plan['peak_device_bytes'] / 2**20:.0f} MiB on the device by plan\n")
            failed += sum(line.holds() is False for line in lines)
        except (RuntimeError, KeyError, subprocess.TimeoutExpired) as error:
            part = f"\n`ete bench {case.arguments}`: failed: {error}\n"
            failed += 1
        print(f"{part}({case.key}: {time.monotonic() - began:.0f} s)", flush=True)
        text += part
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
