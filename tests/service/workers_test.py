"""Several workers behind one front, over real processes.

Arguments: the paths of ete-front, toy_worker, fake_worker, ete-worker and of a model.
"""

import json
import pathlib
import signal
import subprocess
import sys
import threading
import unittest

from http_servers import TEMPLATE, free_port
from processes import Front, Processes, eventually

FRONT, TOY_WORKER, FAKE_WORKER, ETE_WORKER, MODEL = sys.argv[1:6]
LONG = {"prompt": "hello", "seed": 7, "max_tokens": 60}


class Workers(unittest.TestCase):
    def setUp(self):
        self.processes = Processes()
        self.addCleanup(self.processes.close)
        (self.processes.root / "template").write_text(TEMPLATE)

    def toy(self, name, model="toy", step_ms=20):
        path = self.processes.root / name
        self.processes.start(name, [TOY_WORKER, str(path), model, "4096", str(step_ms),
                                    str(self.processes.root / "template")])  # fmt: skip
        return f"unix:{path}"

    def front(self, *workers):
        return Front(self.processes, FRONT, workers).wait_until_healthy()

    def two(self, **options):
        front = self.front(self.toy("one", **options), self.toy("two", **options))
        self.assertTrue(eventually(lambda: self.up(front) == 2))
        return front

    def up(self, front):
        return sum(line.startswith("ete_worker_up") and line.endswith(" 1")
                   for line in front.ask("GET", "/metrics")[1].splitlines())  # fmt: skip

    def worker_of(self, front, index=-1):
        """By name, from the log of requests."""
        return front.events("request ended")[index]["worker"].rsplit("/", 1)[1]

    def complete(self, front, prompt, **fields):
        status, body = front.post("/v1/completions", prompt=prompt, seed=7, max_tokens=4, **fields)
        self.assertEqual(status, 200, body)
        return body["choices"][0]["text"]

    def test_a_socket_in_no_directory(self):
        listen = f"unix:{self.processes.root}/none/socket"
        front = [FRONT, "--worker=unix:/none"]
        # The worker says it before it looks at the model.
        for command in ([*front, f"--listen={listen}"], [*front, "--listen=127.0.0.1:0", f"--http={listen}"],
                        [ETE_WORKER, "--model=/none", "--device=cpu", f"--listen={listen}"]):  # fmt: skip
            refused = subprocess.run(command, capture_output=True, text=True, timeout=30)
            said = pathlib.Path(command[0]).name + f": {listen}: there is no such directory\n"
            self.assertEqual((refused.returncode, refused.stdout, refused.stderr), (1, "", said))

    def test_prompts_go_where_their_beginning_is(self):
        front = self.two(step_ms=1)
        prompts = [f"conversation {i}: " + "word " * 20 for i in range(8)]
        first = []
        for prompt in prompts:
            self.complete(front, prompt)
            first.append(self.worker_of(front))
        self.assertEqual({"one", "two"}, set(first))
        for prompt, worker in zip(prompts, first):
            self.complete(front, prompt + "and more of it")
            self.assertEqual(self.worker_of(front), worker)

    def test_new_sessions_go_to_the_least_busy(self):
        front = self.two()
        connections = [front.stream("/v1/completions", **{**LONG, "prompt": f"{i}", "max_tokens": 400}) for i in range(6)]
        for _, events in connections:
            next(events)
        for connection, _ in connections:
            connection.close()
        self.assertTrue(eventually(lambda: len(front.events("request ended")) == 6))
        workers = [self.worker_of(front, i) for i in range(6)]
        self.assertEqual((workers.count("one"), workers.count("two")), (3, 3))

    def test_models_by_name(self):
        front = self.front(self.toy("one", "small"), self.toy("two", "large"))
        self.assertTrue(eventually(lambda: len(json.loads(front.ask("GET", "/v1/models")[1])["data"]) == 2))
        for model, worker in (("small", "one"), ("large", "two"), ("small", "one")):
            self.complete(front, "hello", model=model)
            self.assertEqual(self.worker_of(front), worker)
        status, body = front.post("/v1/completions", prompt="hello")
        self.assertEqual((status, body["error"]["param"]), (404, "model"))
        self.assertIn('"small" or "large"', body["error"]["message"])
        status, body = front.post("/v1/completions", prompt="hello", model="huge")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))

    def status(self, front):
        return json.loads(front.ask("GET", "/status")[1])

    def test_status_tells_of_each(self):
        front = self.front(self.toy("one", "small"))
        self.assertEqual((self.status(front)["state"], self.status(front)["model"]), ("serving", "small"))
        self.assertNotIn("workers", self.status(front))
        self.processes.end("front")
        front = self.front("unix:/none", f"unix:{self.processes.root}/one", self.toy("two", "large"))
        self.assertTrue(eventually(lambda: self.up(front) == 2))
        status = self.status(front)
        self.assertEqual((status["state"], status["model"]), ("serving", "small"))
        workers = [(worker["worker"], worker["state"], worker.get("model")) for worker in status["workers"]]
        self.assertEqual(workers, [("socket 1", "away", None), ("socket 2", "serving", "small"), ("socket 3", "serving", "large")])
        for worker in ("one", "two"):
            self.processes.end(worker)
        self.assertTrue(eventually(lambda: self.status(front)["state"] == "away"))

    def test_chat_has_its_models_template(self):
        front = self.front(self.toy("one", "small"), self.toy("two", "large"))
        self.assertTrue(eventually(lambda: self.up(front) == 2))
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        for model, worker in (("large", "two"), ("small", "one")):
            status, body = front.post("/v1/chat/completions", model=model, **chat)
            self.assertEqual((status, body["model"]), (200, model), body)
            self.assertEqual(self.worker_of(front), worker)
        self.assertEqual(front.post("/v1/chat/completions", **chat)[0], 404)

    def killed_in_the_middle(self, front, **fields):
        """(text of the pieces, the last event) of a stream whose worker is killed at its tenth piece."""
        self.complete(front, LONG["prompt"])
        worker = self.worker_of(front)  # that of the next prompt that begins so
        _, events = front.stream("/v1/completions", **LONG, **fields)
        text, last = "", None
        for count, last in enumerate(events):
            if "error" not in last:
                text += last["choices"][0]["text"]
            if count == 10:
                self.processes.end(worker, signal.SIGKILL)
        return text, last

    def undisturbed(self, front):
        status, body = front.post("/v1/completions", **LONG)
        self.assertEqual(status, 200, body)
        return body["choices"][0]["text"]

    def test_a_lost_worker_ends_the_stream_behind_what_there_was(self):
        front = self.two()
        whole = self.undisturbed(front)
        text, last = self.killed_in_the_middle(front)
        self.assertEqual(last["error"]["code"], "unavailable")
        self.assertTrue(10 <= len(text) < 60 and whole.startswith(text), text)
        self.assertEqual(self.undisturbed(front), whole)

    def test_resume_goes_on_at_the_other_worker(self):
        front = self.two()
        whole = self.undisturbed(front)
        text, last = self.killed_in_the_middle(front, resume=True)
        self.assertEqual(text, whole)
        self.assertEqual(last["choices"][0]["finish_reason"], "length")
        (moved,) = front.events("request goes on")
        self.assertGreaterEqual(int(moved["generated_tokens"]), 10)
        self.assertIn("ete_requests_resumed_total 1", front.ask("GET", "/metrics")[1].splitlines())

    def test_resume_waits_for_the_only_worker(self):
        front = self.front(self.toy("one"))
        whole = self.undisturbed(front)
        _, events = front.stream("/v1/completions", **LONG, resume=True)
        text = next(events)["choices"][0]["text"]
        self.processes.end("one", signal.SIGKILL)
        (self.processes.root / "one").unlink()
        self.toy("one")
        text += "".join(event["choices"][0]["text"] for event in events)
        self.assertEqual(text, whole)

    def test_a_name_of_dns_stands_for_its_addresses(self):
        port = free_port()
        self.processes.start("fake", [FAKE_WORKER, "--model=fake", f"--listen=127.0.0.1:{port}"])
        front = self.front(f"dns:localhost:{port}")
        self.assertIn(f'ete_worker_up{{worker="127.0.0.1:{port}"}} 1', front.ask("GET", "/metrics")[1].splitlines())

    def real(self, name):
        path = self.processes.root / name
        self.processes.start(name, [ETE_WORKER, f"--model={MODEL}", f"--listen=unix:{path}", "--threads=1",
                                    "--context=256", "--drain-grace=20"])  # fmt: skip
        return f"unix:{path}"

    def test_rolling_restarts_lose_nothing(self):
        front = self.front(self.real("one"), self.real("two"))
        self.assertTrue(eventually(lambda: self.up(front) == 2, 60))
        body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
        expected = front.post("/v1/completions", **body)[1]["choices"][0]["text"]
        outcomes, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                status, answer = front.post("/v1/completions", **body)
                outcomes.append((status, answer["choices"][0]["text"] if status == 200 else answer))

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        for name in ("one", "two"):
            self.assertEqual(self.processes.end(name), 0)
            self.real(name)
            self.assertTrue(eventually(lambda: self.up(front) == 2, 60))
        stop.set()
        for client in clients:
            client.join()
        self.assertGreater(len(outcomes), 5)
        self.assertEqual({outcome for outcome in map(str, outcomes)}, {str((200, expected))})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
