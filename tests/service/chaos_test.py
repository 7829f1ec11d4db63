"""Everything that can go wrong at once, over real processes: two fronts, one of which logs to a full disk, two workers that
are killed and stopped, and clients that leave, read slowly, are killed, and send nonsense. No front ends; every request that
is answered is answered as when it is alone; what is lost was lost with its worker; workers are back within seconds; and
nothing is left behind.

chaos_test.py ETE_FRONT ETE_WORKER ETE MODEL [--seconds N] [--seed S] [--recovery SECONDS]
The seed fixes what every client and the one who breaks things do, one after the other; not how they meet.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

from chaos_clients import HANGS, Client, Pool, Said
from processes import Front, Processes, eventually

FULL_DISK = "/dev/full"
CLIENTS = 8


class Wrong(Exception):
    pass


class Site:
    """Two workers, and two fronts before both."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.processes = Processes()
        self.names = ["one", "two"]
        self.fronts = []
        self.pids = {}  # of fronts, by name

    def start(self):
        for name in self.names:
            self.start_worker(name)
        addresses = [f"unix:{self.processes.root / name}" for name in self.names]
        for name, log in (("front", None), ("front with a full disk", FULL_DISK)):
            self.fronts.append(Front(self.processes, self.arguments.front, addresses, name=name, log=log))
            self.pids[name] = self.processes.running[name].pid
        for front in self.fronts:
            front.wait_until_healthy()
        if not eventually(self.all_up, 60):
            raise Wrong("the workers do not come up: " + self.processes.log("one"))

    def start_worker(self, name, log=None):
        path = self.processes.root / name
        path.unlink(missing_ok=True)
        command = [self.arguments.worker, f"--model={self.arguments.model}", f"--listen=unix:{path}", "--device=cpu",
                   "--threads=1", "--context=1024", "--max-sessions=8", "--drain-grace=1"]  # fmt: skip
        self.processes.start(name, command, log=log)

    def worker(self, name):
        """The process; it has not ended by itself."""
        process = self.processes.running[name]
        if process.poll() is not None:
            raise Wrong(f"worker {name} ended by itself with {process.returncode}: {self.processes.log(name)[-2000:]}")
        return process

    def check_fronts(self):
        for front in self.fronts:
            code = self.processes.running[front.name].poll()
            if code is not None:
                log = "" if front.name != "front" else self.processes.log("front")[-2000:]
                raise Wrong(f"{front.name} ended with {code}: {log}")

    @staticmethod
    def figures(front, name):
        """Of every worker, or of the front itself; those of workers that are away are missing."""
        return [float(line.rsplit(" ", 1)[1]) for line in front.ask("GET", "/metrics")[1].splitlines()
                if line.startswith((name + "{", name + " "))]  # fmt: skip

    def all_up(self):
        return all(self.figures(front, "ete_worker_up") == [1, 1] for front in self.fronts)

    def left_behind(self):
        """Whatever is held although nobody asks for anything: text, or none."""
        names = ("ete_requests_running", "ete_worker_sessions", "ete_worker_queued_sessions", "ete_worker_session_bytes")
        held = {}
        for front in self.fronts:
            for name in names:
                values = self.figures(front, name)
                if any(values) or len(values) != (1 if name == names[0] else 2):
                    held[f"{name} of {front.name}"] = values
        return str(held) if held else ""

    def open_files(self, front):
        return len(os.listdir(f"/proc/{self.pids[front.name]}/fd"))

    def close(self):
        for process in self.processes.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        self.processes.close()


class Breaker:
    """Kills workers and stops them, one fault after the other, by its own part of the seed."""

    def __init__(self, arguments, site, pool, ends):
        self.random = random.Random(f"{arguments.seed} faults")
        self.recovery = arguments.recovery
        self.site, self.pool, self.ends = site, pool, ends
        self.faults = []  # (what, from, until)
        self.recoveries = []
        # How often each, and within how many seconds it is over.
        self.kinds = [(self.kill, 4, 4), (self.kill_both, 1, 4), (self.kill_stopped, 1, 4), (self.stop, 3, 4),
                      (self.stop_long, 1, 9), (self.stop_until_missed, 0.5, 22)]  # fmt: skip

    def run(self):
        while True:
            self.wait(self.random.uniform(0.3, 2))
            left = self.ends - time.monotonic()
            kinds = [(kind, weight) for kind, weight, seconds in self.kinds if seconds < left]
            if not kinds:
                return
            (kind,) = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            name = self.random.choice(self.site.names)
            began = time.monotonic()
            try:
                kind(name)
                self.recover(f"{kind.__name__} {name}")
            finally:
                self.faults.append((f"{kind.__name__} {name}", began, time.monotonic()))

    def wait(self, seconds):
        time.sleep(seconds)
        self.site.check_fronts()

    def answered(self, front):
        """Whether a request is answered as when it is alone."""
        try:
            connection = front.connection(self.recovery)
            connection.request("POST", "/v1/completions", json.dumps({**self.pool.requests[0], "cache_salt": "probe"}).encode())
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
        except OSError:
            return False
        if response.status == 503:
            return False
        said = Said()
        said.add(answer["choices"][0])
        if said != self.pool.alone[0]:
            raise Wrong(f"behind a fault a request says {said}, alone {self.pool.alone[0]}")
        return True

    def all_answered(self):
        return all(self.answered(front) for front in self.site.fronts)

    def recover(self, what):
        """Both fronts answer, and both workers are up again."""
        began = time.monotonic()
        if not eventually(lambda: self.all_answered() and self.site.all_up(), self.recovery):
            raise Wrong(f"{what}: not back within {self.recovery:g} s")
        self.recoveries.append(time.monotonic() - began)
        if self.recoveries[-1] > self.recovery:
            raise Wrong(f"{what}: back after {self.recoveries[-1]:.1f} s, not {self.recovery:g}")

    def kill_only(self, name):
        process = self.site.worker(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start(self, name):
        self.site.start_worker(name, log=self.random.choice([None, FULL_DISK]))

    def kill(self, name):
        self.kill_only(name)
        self.wait(self.random.choice([0, 0, 1]))
        if not eventually(self.all_answered, self.recovery):
            raise Wrong(f"without worker {name} not every front answers within {self.recovery:g} s")
        self.start(name)

    def kill_both(self, _):
        for name in self.site.names:
            self.kill_only(name)
        self.wait(self.random.choice([0, 0.5]))
        for name in self.site.names:
            self.start(name)

    def kill_stopped(self, name):
        self.site.worker(name).send_signal(signal.SIGSTOP)
        self.wait(self.random.uniform(0, 1))
        self.kill_only(name)
        self.start(name)

    def stop_for(self, name, seconds, check_after=None):
        process = self.site.worker(name)
        process.send_signal(signal.SIGSTOP)
        try:
            if check_after is not None:
                self.wait(check_after)
                seconds -= check_after
                if not eventually(self.all_answered, self.recovery):
                    raise Wrong(f"beside worker {name}, which is stopped, not every front answers within {self.recovery:g} s")
            self.wait(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def stop(self, name):
        self.stop_for(name, self.random.uniform(0.1, 1.5))

    def stop_long(self, name):
        """Until fronts go round it."""
        self.stop_for(name, self.random.uniform(5, 6), check_after=4)

    def stop_until_missed(self, name):
        """Until fronts give up its sessions."""
        self.stop_for(name, 18, check_after=4)


class Chaos:
    def __init__(self, arguments, site):
        self.arguments = arguments
        self.site = site
        self.pool = Pool(arguments.seed, self.ask_alone)
        self.clients = [Client(i, arguments.seed, self.pool, self.site.fronts, arguments.ete) for i in range(CLIENTS)]
        self.outcomes, self.failures = [], []
        self.over = threading.Event()

    def ask_alone(self, body):
        status, answer = self.site.fronts[0].post("/v1/completions", **body)
        if status != 200:
            raise Wrong(f"alone: {status} {answer}")
        return answer

    def guarded(self, work):
        try:
            work()
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def client_loop(self, client):
        while not self.over.is_set():
            outcome = client.act()
            self.outcomes.append(outcome)
            if outcome.wrong:
                self.failures.append(f"{outcome.kind}: {outcome.wrong}")

    def run(self):
        files = [self.site.open_files(front) for front in self.site.fronts]
        breaker = Breaker(self.arguments, self.site, self.pool, time.monotonic() + self.arguments.seconds)
        threads = [threading.Thread(target=self.guarded, args=(lambda client=client: self.client_loop(client),), daemon=True)
                   for client in self.clients]  # fmt: skip
        for thread in threads:
            thread.start()
        self.guarded(breaker.run)
        self.over.wait(max(0, breaker.ends - time.monotonic()))
        self.over.set()
        for thread in threads:
            thread.join(2 * HANGS)
            if thread.is_alive():
                self.failures.append("a client waits for ever")
        self.report(breaker)
        self.guarded(lambda: self.check_lost(breaker))
        if not self.failures:
            self.guarded(lambda: self.check_rest(files))
        return self.failures

    def check_lost(self, breaker):
        for outcome in self.outcomes:
            meanwhile = [what for what, began, until in breaker.faults if began < outcome.ended and outcome.began < until]
            if outcome.lost and not meanwhile:
                self.failures.append(f"{outcome.kind}: lost although no worker was: {outcome.lost}")
            elif outcome.lost and "resumed" in outcome.kind:
                self.failures.append(f"{outcome.kind}: lost although it wanted to go on, at {meanwhile}: {outcome.lost}")

    def check_rest(self, files):
        """Nothing is left of all that, and everything is answered as before."""
        self.site.check_fronts()
        for name in self.site.names:
            self.site.worker(name)
        if not eventually(lambda: not self.site.left_behind(), self.arguments.recovery):
            raise Wrong("left behind: " + self.site.left_behind())
        for front, before in zip(self.site.fronts, files):
            if not eventually(lambda: self.site.open_files(front) <= before + 4, self.arguments.recovery):
                raise Wrong(f"{front.name} has {self.site.open_files(front)} open files, {before} before")
            for body, alone in zip(self.pool.requests, self.pool.alone):
                said = Said()
                said.add(front.post("/v1/completions", **body, cache_salt="after")[1]["choices"][0])
                if said != alone:
                    raise Wrong(f"at the end {body} says {said}, before {alone}")
        if not self.site.fronts[0].events("request ended"):
            raise Wrong("the front with room for its log logged nothing")

    def report(self, breaker):
        kinds = collections.Counter(outcome.kind.split(", ")[2].split(" ")[0] for outcome in self.outcomes)
        lost = sum(bool(outcome.lost) for outcome in self.outcomes)
        print(f"{len(self.outcomes)} acts of clients, {lost} lost with their worker: {dict(sorted(kinds.items()))}")
        faults = collections.Counter(what.split(" ")[0] for what, _, _ in breaker.faults)
        print(f"{len(breaker.faults)} faults: {dict(sorted(faults.items()))}; "
              f"the longest recovery {max(breaker.recoveries, default=0):.2f} s")  # fmt: skip
        for front in self.site.fronts:
            pages = int(pathlib.Path(f"/proc/{self.site.pids[front.name]}/statm").read_text().split()[1])
            print(f"{front.name} holds {pages * os.sysconf('SC_PAGE_SIZE') >> 20} MiB, {self.site.open_files(front)} open files")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("front", "worker", "ete", "model"):
        parser.add_argument(name)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--recovery", type=float, default=5, help="seconds within which all is well behind a fault")
    arguments = parser.parse_args()
    again = f"{' '.join(sys.argv[:5])} --seconds {arguments.seconds:g} --seed {arguments.seed}"
    print(f"seed {arguments.seed}: {again}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    site = Site(arguments)
    try:
        site.start()
        failures = Chaos(arguments, site).run()
    finally:
        site.close()
    for failure in failures[:10]:
        print("WRONG: " + failure[:2000])
    if failures:
        print(f"{len(failures)} things are wrong. To try again: {again}")
    else:
        print("all is well")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
