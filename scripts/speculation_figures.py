#!/usr/bin/env python3
"""What guessing from prompt and text brings where passes are slow, and what it costs where guesses are wrong: tokens a pass on a
text that repeats its prompt, tokens a second on prose, each beside the same request without guesses, by turns. Ids must be equal.

  scripts/speculation_figures.py MODEL [--ete build/release/bin/ete] [--pass-ms 130] [--rounds 3] [--tokens 256]

Every layer is streamed, at the pace that makes a pass last so long. Prints a table; exits with 1 where ids differ.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

LIST = """1. The Danube rises in the Black Forest and flows east through ten countries.
2. The Rhine rises in the Swiss Alps and ends in the North Sea near Rotterdam.
3. The Loire crosses the middle of France and is lined with three hundred castles.
4. The Vistula carries the water of most of Poland to the Baltic Sea.
5. The Ebro ends in a delta full of rice fields, south of Tarragona.
"""
CODE = """def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius * shape.radius
    if shape.kind == "square":
        return shape.side * shape.side
    raise ValueError("unknown shape: " + shape.kind)
"""
VERSE = """Tom had a red ball. He threw the red ball up high. The dog ran to get the red ball. "Good dog!" said Tom.
Sue had a blue kite. She let the blue kite fly up high. The wind took the blue kite away. "Oh no!" said Sue.
"""
CHAT = {
    "a list, to be repeated": ["--chat", "Repeat this list word for word, and say nothing else:\n\n" + LIST],
    "code, to be repeated": ["--chat", "Repeat this code exactly as it is:\n\n```python\n" + CODE + "```"],
}
CHAT_PROSE = ["--chat", "Write a long essay about a walk through an old harbour town in winter."]
STORY = {"a story told again": [3 * VERSE]}
STORY_PROSE = ["Once upon a time, in a small house by the sea, there lived an old man."]


class Server:
    def __init__(self, ete, model, pass_ms, directory):
        self.ete = ete
        self.address = f"unix:{directory}/front"
        flags = ["--model", model, "--device", "cpu", "--resident-layers", "0", "--max-sessions", "1", "--context", "1024",
                 "--prefix-cache", "0"]  # fmt: skip
        plan = json.loads(subprocess.run([ete, "inspect", "--json", *flags], check=True, capture_output=True).stdout)["plan"]
        self.flags = [*flags, "--link-limit", str(int(plan["streamed_bytes_per_pass"] / pass_ms * 1000))]
        self.log = open(f"{directory}/log", "w")
        self.process = subprocess.Popen([ete, "serve", *self.flags, "--listen", self.address], stderr=self.log)
        end = time.monotonic() + 60
        while subprocess.run([ete, "health", "--address", self.address], capture_output=True).returncode != 0:
            if time.monotonic() > end:
                raise RuntimeError("the server does not serve: " + pathlib.Path(self.log.name).read_text())
            time.sleep(0.2)

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()

    def run(self, request, tokens, drafts):
        command = [self.ete, "run", "--address", self.address, "--json", "--max-tokens", str(tokens), *drafts, *request]
        return Run(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


class Run:
    def __init__(self, document):
        self.ids = document["ids"]
        timings = document["timings"]
        self.drafted = timings["drafted_tokens"]
        # The first token is the prompt's, not of a pass of its own.
        self.passes = len(self.ids) - 1 - timings["accepted_draft_tokens"]
        self.ms = timings["decode_ms"]
        self.a_pass = (len(self.ids) - 1) / max(self.passes, 1)
        self.a_second = 1000 * (len(self.ids) - 1) / self.ms if self.ms else 0


def row(name, plain, guessed):
    ratios = sorted(two.a_second / one.a_second for one, two in zip(plain, guessed))
    middle = lambda runs, what: statistics.median(getattr(run, what) for run in runs)
    pass_ms = statistics.median(run.ms / run.passes for run in plain)
    same = all(one.ids == two.ids for one, two in zip(plain, guessed))
    print(f"| {name} | {len(plain)} | {len(plain[0].ids)} | {pass_ms:.1f} | {middle(guessed, 'drafted'):.0f} "
          f"| {middle(guessed, 'a_pass'):.2f} | {middle(plain, 'a_second'):.2f} | {middle(guessed, 'a_second'):.2f} "
          f"| {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) | {'yes' if same else 'NO'} |", flush=True)  # fmt: skip
    return same


def measure(server, name, requests, tokens, drafts):
    """requests: one a round."""
    plain, guessed = [], []
    for number, request in enumerate(requests):
        # Whoever is first has the machine as it was before.
        for side in ("plain", "guessed") if number % 2 == 0 else ("guessed", "plain"):
            if side == "plain":
                plain.append(server.run(request, tokens, ["--draft-tokens", "0"]))
            else:
                guessed.append(server.run(request, tokens, drafts))
    return row(name, plain, guessed)


def figures(server, arguments):
    print("| text | runs | tokens | ms a pass | guessed | tokens a pass | tokens/s without | with | ratio | ids equal |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    repeated, prose = (CHAT, CHAT_PROSE) if arguments.chat else (STORY, STORY_PROSE)
    same = True
    for name, request in repeated.items():
        same &= measure(server, name, [request], arguments.tokens, ["--draft-tokens", "8"])
        same &= measure(server, name + ", as pays", [request], arguments.tokens, [])
    seeds = [[*prose, "--temperature", "0.8", "--seed", str(number)] for number in range(arguments.rounds)]
    return measure(server, "prose", seeds, arguments.tokens, []) and same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ete", default="build/release/bin/ete")
    parser.add_argument("--pass-ms", type=float, default=130)
    parser.add_argument("--chat", action="store_true", help="the model has a chat template and was tuned to follow it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        server = Server(arguments.ete, arguments.model, arguments.pass_ms, directory)
        try:
            return 0 if figures(server, arguments) else 1
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
