"""Clients that ask, wait, leave, and send nonsense; each says what it saw. Standard library only."""

import dataclasses
import http.client
import json
import random
import signal
import socket
import struct
import subprocess
import time

import hostile

WORDS = "once upon a time there was little girl who had red ball and her friend the big dog they went to park".split()
HANGS = 40  # seconds; whatever takes longer has been forgotten
MARGIN = 0.01  # between the log probabilities of the best two: no tolerance of a kernel turns them round


@dataclasses.dataclass
class Said:
    """What a stream said: the text and one log probability for each token."""

    text: str = ""
    logprobs: list = dataclasses.field(default_factory=list)

    def begins(self, other):
        return other.text.startswith(self.text) and other.logprobs[: len(self.logprobs)] == self.logprobs

    def add(self, choice):
        self.text += choice["text"]
        if choice["logprobs"]:
            self.logprobs += choice["logprobs"]["token_logprobs"]


@dataclasses.dataclass
class Outcome:
    kind: str
    began: float
    ended: float = 0.0
    wrong: str = ""  # what is never right
    lost: str = ""  # what is right only where a worker was lost meanwhile


class Pool:
    """Different requests, and what each says alone."""

    def __init__(self, seed, ask):
        """ask(body): the answer of a server with nothing else to do."""
        draw = random.Random(f"{seed} requests")
        self.requests, self.alone, self.clear = [], [], []
        for index in range(16):
            body = {"prompt": " ".join(draw.choices(WORDS, k=draw.choice([1, 5, 20, 60]))), "logprobs": 2,
                    "max_tokens": draw.randint(4, 48), "temperature": 0 if index < 6 else 0.8, "seed": draw.randrange(1000)}  # fmt: skip
            choice = ask(body)["choices"][0]
            said = Said()
            said.add(choice)
            self.requests.append(body)
            self.alone.append(said)
            tops = [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]
            if body["temperature"] == 0 and all(top[0] - top[1] > MARGIN for top in tops if len(top) > 1):
                self.clear.append(index)


class Client:
    """One that does things at random, by its own part of the seed."""

    def __init__(self, number, seed, pool, fronts, ete):
        self.random = random.Random(f"{seed} client {number}")
        self.name = f"client {number}"
        self.pool, self.fronts, self.ete = pool, fronts, ete
        self.actions = [(self.whole, 3), (self.streamed, 4), (self.resumed, 2), (self.left, 3), (self.slow, 1),
                        (self.run, 1), (self.killed, 1), (self.refused, 1), (self.nonsense_http, 1),
                        (self.nonsense_grpc, 1)]  # fmt: skip
        self.count = 0

    def act(self):
        (action,) = self.random.choices([action for action, _ in self.actions], [weight for _, weight in self.actions])
        self.count += 1
        self.front = self.random.choice(self.fronts)
        self.at = self.random.randrange(len(self.pool.requests))
        outcome = Outcome(f"{self.name}, act {self.count}, {action.__name__} at {self.front.name}", time.monotonic())
        try:
            action(outcome)
        except Exception as error:
            outcome.wrong = outcome.wrong or f"{type(error).__name__}: {error}"
        outcome.ended = time.monotonic()
        time.sleep(min(self.random.expovariate(20), 1))
        return outcome

    def body(self, **more):
        # Nothing of an earlier reply is reused: it would be alike within tolerance only.
        return {**self.pool.requests[self.at], "cache_salt": f"{self.name} {self.count}", **more}

    def judge(self, outcome, said, whole=True):
        alone = self.pool.alone[self.at]
        if said != alone if whole else not said.begins(alone):
            outcome.wrong = f"request {self.at} said {said}, alone {alone}"

    def error(self, outcome, status, error):
        if error.get("code") == "unavailable" or status == 503:
            outcome.lost = error["message"]
        else:
            outcome.wrong = f"{status}: {error}"

    def events(self, connection, body):
        """Yields what comes, as it comes: (response, event)."""
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode())
        response = connection.getresponse()
        if response.status != 200:
            yield response, {**json.loads(response.read()), "status": response.status}
            return
        while line := response.readline():
            if line == b"data: [DONE]\n":
                yield response, None
            elif line.startswith(b"data: "):
                yield response, json.loads(line[len(b"data: "):])

    def read_stream(self, outcome, connection, body, each=lambda: None, judge=None):
        said, done = Said(), False
        for _, event in self.events(connection, body):
            each()
            if event is None:
                done = True
            elif "error" in event:
                self.error(outcome, event.get("status"), event["error"])
                self.judge(outcome, said, whole=False)
                return
            else:
                for choice in event["choices"]:
                    said.add(choice)
        if not done:
            outcome.wrong = f"the stream ended behind {said.text!r}"
        else:
            (judge or self.judge)(outcome, said)

    def whole(self, outcome):
        """A reply in one piece."""
        connection = self.front.connection(HANGS)
        connection.request("POST", "/v1/completions", json.dumps(self.body()).encode())
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            return self.error(outcome, response.status, answer["error"])
        said = Said()
        said.add(answer["choices"][0])
        self.judge(outcome, said)

    def streamed(self, outcome):
        connection = self.front.connection(HANGS)
        self.read_stream(outcome, connection, self.body())
        connection.close()

    def resumed(self, outcome):
        """Wants to go on when its worker is lost: no fault may be seen. What is computed anew has other log probabilities."""
        if not self.pool.clear:
            return
        self.at = self.random.choice(self.pool.clear)

        def same_text(outcome, said):
            if said.text != self.pool.alone[self.at].text:
                self.judge(outcome, said)

        connection = self.front.connection(HANGS)
        self.read_stream(outcome, connection, self.body(resume=True), judge=same_text)
        connection.close()

    def left(self, outcome):
        """Goes in the middle, with or without a word."""
        connection = self.front.connection(HANGS)
        after, abruptly = self.random.randint(0, 12), self.random.random() < 0.5
        connection.connect()
        if abruptly:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for count, (response, event) in enumerate(self.events(connection, self.body(max_tokens=400, ignore_eos=True))):
            if event is None:
                break
            if "error" in event:
                self.error(outcome, event.get("status"), event["error"])
                break
            if count >= after:
                response.close()
                break
        connection.close()

    def slow(self, outcome):
        """Reads a little at a time."""
        connection = self.front.connection(HANGS)
        connection.sock = socket.socket()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sock.settimeout(HANGS)
        connection.sock.connect(("127.0.0.1", self.front.port))
        pause = self.random.uniform(0.01, 0.1)
        self.read_stream(outcome, connection, self.body(), each=lambda: time.sleep(pause))
        connection.close()

    def command(self, **more):
        body = {**self.pool.requests[self.at], **more}
        return [self.ete, "run", "--address", self.front.listen, "--json", "--max-tokens", str(body["max_tokens"]),
                "--temperature", str(body["temperature"]), "--seed", str(body["seed"]), body["prompt"]]  # fmt: skip

    def run(self, outcome):
        """ete run, over gRPC."""
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=HANGS)
        if done.returncode != 0:
            if "UNAVAILABLE" in done.stderr:
                outcome.lost = done.stderr
            else:
                outcome.wrong = f"exit code {done.returncode}: {done.stderr}"
        elif json.loads(done.stdout)["text"] != self.pool.alone[self.at].text:
            outcome.wrong = f"request {self.at} said {done.stdout}, alone {self.pool.alone[self.at]}"

    def killed(self, outcome):
        """ete run, killed at any time, or told to stop: it then cancels its call."""
        client = subprocess.Popen(self.command(max_tokens=400), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.random.uniform(0, 0.5))
        client.send_signal(self.random.choice([signal.SIGKILL, signal.SIGINT]))
        try:
            client.wait(HANGS)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            raise

    def refused(self, outcome):
        """Asks for what no request can have."""
        field, value = self.random.choice([("temperature", -1), ("top_p", 2), ("max_tokens", -5), ("logit_bias", {"9999999": 1}),
                                           ("stop", [""]), ("n", 0), ("temprature", 1), ("model", "nobody")])  # fmt: skip
        status, answer = self.front.post("/v1/completions", **self.body(**{field: value}))
        if status == 503:
            outcome.lost = answer["error"]["message"]
        elif status not in (400, 404) or not (answer["error"]["param"] or "").startswith(field):
            outcome.wrong = f"{field} {value}: {status} {answer}"

    def nonsense_http(self, outcome):
        name, data = hostile.malformed_http(self.random)
        outcome.kind += f", {name}"
        said = hostile.say(self.front.port, data)
        if said and not said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505")):
            outcome.wrong = f"{said[:200]}"

    def nonsense_grpc(self, outcome):
        port = int(self.front.listen.rsplit(":", 1)[1])
        if self.random.random() < 0.5:
            name, data = hostile.malformed_http2(self.random)
            outcome.kind += f", {name}"
            hostile.say(port, data)
            return
        name, data = hostile.malformed_message(self.random)
        outcome.kind += f", {name}"
        said = hostile.say(port, data, b"grpc-status", finish=False)
        if b"grpc-status" not in said or b"grpc-status\x010" in said:
            outcome.wrong = f"{said[:400]}"
