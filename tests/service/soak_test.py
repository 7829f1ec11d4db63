"""Many streams at once that come and go at random, on the CPU, over real processes: each is complete and, bit for bit, that
of the same request alone, none is refused, memory at rest stays flat, and nothing is left behind.

soak_test.py ETE_FRONT ETE_WORKER LOAD_TEST MODEL... [--streams N] [--seconds N] [--warm-seconds N] [--chunks N,N]
For every model and every bound of prompt rows a pass (0: as planned) a worker of its own.
"""

import argparse
import re
import signal
import subprocess
import sys

from processes import Front, Processes, eventually

GROWTH_MIB = 16  # at rest: of what malloc keeps and of pages that became huge
CACHE = "32M"  # of prefixes; full behind the first seconds


def load(arguments, model, chunk, processes):
    """What is wrong: text, or none."""
    path = processes.root / "worker"
    flags = [f"--chunk={chunk}"] if chunk else []
    worker = processes.start("worker", [arguments.worker, f"--model={model}", f"--listen=unix:{path}", "--device=cpu",
                                        f"--max-sessions={arguments.streams}", "--context=1024",
                                        f"--prefix-cache={CACHE}", *flags])  # fmt: skip
    front = Front(processes, arguments.front, [f"unix:{path}"]).wait_until_healthy()
    pids = [f"--pid={process.pid}" for process in (processes.running["front"], worker)]
    done = subprocess.run([arguments.load_test, f"--address={front.listen}", f"--streams={arguments.streams}",
                           f"--seconds={arguments.seconds:g}", f"--warm-seconds={arguments.warm_seconds:g}",
                           f"--most-growth={GROWTH_MIB}", *pids],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    print(done.stdout, flush=True)
    if done.returncode != 0:
        return f"exit code {done.returncode}"
    ended, refused, failed = map(int, re.search(r"(\d+) streams ended, (\d+) refused for a while, (\d+) failed", done.stdout).groups())
    if ended < arguments.streams or refused or failed:
        return f"{ended} streams ended, {refused} were refused, {failed} failed"
    held = lambda: [line for line in front.ask("GET", "/metrics")[1].splitlines()
                    if re.match(r"ete_(requests_running|worker_(sessions|queued_sessions|session_bytes))\b", line)
                    and not line.endswith(" 0")]  # fmt: skip
    return "" if eventually(lambda: not held()) else f"left behind: {held()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("front", "worker", "load_test"):
        parser.add_argument(name)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-seconds", type=float, default=20)
    parser.add_argument("--chunks", type=lambda text: [int(part) for part in text.split(",")], default=[0, 16, 128])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failures = 0
    for model in arguments.models:
        for chunk in arguments.chunks:
            print(f"{model}, {chunk or 'planned'} prompt rows a pass", flush=True)
            processes = Processes()
            try:
                wrong = load(arguments, model, chunk, processes)
            finally:
                processes.close()
            if wrong:
                failures += 1
                print(f"WRONG: {wrong}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
