"""OpenAI's HTTP API over real processes: a front and a toy worker. Standard library only.

Arguments: the paths of ete-front, toy_worker and ete.
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

from http_case import CHAT, COMPLETION, FRONT, TOY_WORKER, HttpTest
from http_servers import Servers, free_port

ETE = sys.argv[3]


class Completions(HttpTest):
    def test_whole(self):
        body = self.post("/v1/completions", **COMPLETION)
        self.assertEqual(list(body), ["id", "object", "created", "model", "choices", "usage"])
        self.assertEqual((body["object"], body["model"]), ("text_completion", "toy"))
        (choice,) = body["choices"]
        self.assertEqual(len(choice["text"]), 12)
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "length", None))
        self.assertEqual(body["usage"]["prompt_tokens"], 6)
        self.assertEqual(body["usage"]["completion_tokens"], 12)
        self.assertEqual(body["usage"]["total_tokens"], 18)

    def test_the_stream_says_the_same(self):
        whole = self.post("/v1/completions", **COMPLETION)["choices"][0]["text"]
        events = self.servers.events("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}})
        self.assertEqual("".join(event["choices"][0]["text"] for event in events[:-1]), whole)
        self.assertEqual([event["choices"][0]["finish_reason"] for event in events[:-1]], [None] * 12 + ["length"])
        self.assertTrue(all(event["usage"] is None for event in events[:-1]))
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 12))
        self.assertEqual(len({event["id"] for event in events}), 1)

    def test_stop_and_stop_list(self):
        whole = self.post("/v1/completions", **COMPLETION)["choices"][0]["text"]
        for stop in (whole[5:7], ["#", whole[5:7]]):
            (choice,) = self.post("/v1/completions", **COMPLETION, stop=stop)["choices"]
            self.assertEqual((choice["text"], choice["finish_reason"]), (whole[: whole.find(whole[5:7])], "stop"))

    def test_several_prompts_and_choices(self):
        alone = self.post("/v1/completions", **COMPLETION)["choices"][0]["text"]
        body = self.post("/v1/completions", **{**COMPLETION, "prompt": ["hello", [256, *b"hello"]], "n": 3})
        self.assertEqual([choice["index"] for choice in body["choices"]], list(range(6)))
        texts = [choice["text"] for choice in body["choices"]]
        self.assertEqual(texts[0], alone)
        self.assertEqual(texts[:3], texts[3:])
        self.assertEqual(len(set(texts[:3])), 3)
        self.assertEqual((body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]), (12, 72))

    def test_logprobs(self):
        body = self.post("/v1/completions", **{**COMPLETION, "logprobs": 3, "temperature": 0})
        logprobs = body["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), body["choices"][0]["text"])
        self.assertEqual(logprobs["text_offset"], list(range(12)))
        for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            self.assertEqual(len(top), 3)
            self.assertEqual(top[token], own)
            self.assertEqual(own, max(top.values()))

    def test_sampling_fields_reach_the_sampler(self):
        greedy = self.post("/v1/completions", **{**COMPLETION, "temperature": 0})["choices"][0]["text"]
        for more in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
            with self.subTest(more):
                self.assertEqual(self.post("/v1/completions", **COMPLETION, **more)["choices"][0]["text"], greedy)
        banned = {**COMPLETION, "temperature": 0, "logit_bias": {str(ord(greedy[0])): -100}}
        self.assertNotIn(greedy[0], self.post("/v1/completions", **banned)["choices"][0]["text"])
        pushed = {**COMPLETION, "temperature": 0, "logit_bias": {"65": 100}}
        self.assertEqual(self.post("/v1/completions", **pushed)["choices"][0]["text"], "A" * 12)
        once = {**pushed, "presence_penalty": 2, "frequency_penalty": 2, "logit_bias": {"65": 30, "66": 30}}
        self.assertEqual(self.post("/v1/completions", **once)["choices"][0]["text"][:4], "ABAB")

    def test_refusals(self):
        self.refused("/v1/completions", 400, "temperature", prompt="x", temperature=-1)
        self.refused("/v1/completions", 400, "max_tokens", prompt="x", max_tokens=-2)
        self.refused("/v1/completions", 400, "logprobs", prompt="x", logprobs=5000)
        self.refused("/v1/completions", 400, "logit_bias", prompt="x", logit_bias={"5000": 1})
        self.refused("/v1/completions", 400, "prompt[0]", prompt=[5000])
        self.refused("/v1/completions", 400, "prompt", prompt=[1] * 5000)
        self.refused("/v1/completions", 400, "suffix", prompt="x", suffix="y")
        self.refused("/v1/completions", 400, "stop[0]", prompt="x", stop=[""])
        error = self.refused("/v1/completions", 404, "model", prompt="x", model="gpt-4")
        self.assertEqual((error["code"], error["type"]), ("model_not_found", "invalid_request_error"))
        # A stream's refusal has a status too.
        self.refused("/v1/completions", 400, "temperature", prompt="x", temperature=-1, stream=True)

    def test_bodies_that_are_no_json(self):
        for body in (b"", b"{", b"[1]", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 100000):
            status, text, _ = self.servers.ask("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body)
            self.assertEqual(json.loads(text)["error"]["type"], "invalid_request_error")

    def test_numbers_that_no_double_holds_are_named(self):
        for field, value, param in (("temperature", b"1e400", "temperature"), ("logit_bias", b'{"1": -1e400}', "logit_bias.1"),
                                    ("prompt", b"[1, 1e999]", "prompt[1]")):  # fmt: skip
            body = b'{"%s": %s}' % (field.encode(), value)
            status, text, _ = self.servers.ask("POST", "/v1/completions", body)
            error = json.loads(text)["error"]
            self.assertEqual((status, error["param"]), (400, param))
            self.assertIn("is not accepted; expected a number", error["message"])

    def test_more_than_openai_takes(self):
        stops = [f"never {i}" for i in range(63)] + ["#"]
        for more in ({"temperature": 1000, "top_k": 1}, {"stop": stops, "temperature": 0}):
            due = self.post("/v1/completions", **COMPLETION, temperature=0, stop="#" if "stop" in more else None)
            self.assertEqual(self.post("/v1/completions", **COMPLETION, **more)["choices"], due["choices"])
        self.refused("/v1/completions", 400, "stop", prompt="x", stop=[*stops, "y"])
        asked = {**CHAT, "max_tokens": 1, "logprobs": True}
        (choice,) = self.post("/v1/chat/completions", **asked, top_logprobs=200)["choices"]
        self.assertEqual(len(choice["logprobs"]["content"][0]["top_logprobs"]), 200)
        error = self.refused("/v1/chat/completions", 400, "top_logprobs", **asked, top_logprobs=1025)
        self.assertIn("1025 is not accepted; expected an integer in [0, 1024]", error["message"])


class Chat(HttpTest):
    def test_whole_and_stream(self):
        body = self.post("/v1/chat/completions", **CHAT)
        self.assertEqual(body["object"], "chat.completion")
        message = body["choices"][0]["message"]
        self.assertEqual((message["role"], len(message["content"])), ("assistant", 12))
        events = self.servers.events("/v1/chat/completions", CHAT)
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), message["content"])
        self.assertEqual(events[-1]["choices"][0], {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"})

    def test_the_prompt_is_the_rendered_text(self):
        # No bos is added; "<eos>" in the text is the token.
        rendered = "<user>hi <eos><assistant>"
        ids = [*b"<user>hi ", 257, *b"<assistant>"]
        messages = [{"role": "user", "content": "hi <eos>"}]
        self.assertEqual(self.post("/tokenize", messages=messages)["tokens"], ids)
        plain = self.post("/v1/completions", **{**COMPLETION, "prompt": ids})
        chat = self.post("/v1/chat/completions", **{**CHAT, "messages": messages})
        self.assertEqual(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"])
        self.assertEqual(chat["usage"]["prompt_tokens"], len(ids), rendered)

    def test_logprobs(self):
        body = self.post("/v1/chat/completions", **{**CHAT, "temperature": 0}, logprobs=True, top_logprobs=2)
        content = body["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(one["token"] for one in content), body["choices"][0]["message"]["content"])
        self.assertEqual(content[0]["bytes"], list(content[0]["token"].encode()))
        self.assertEqual([len(one["top_logprobs"]) for one in content], [2] * 12)
        self.assertEqual(content[0]["top_logprobs"][0]["logprob"], content[0]["logprob"])

    def test_max_completion_tokens_and_refusals(self):
        body = {**CHAT, "max_completion_tokens": 3}
        del body["max_tokens"]
        self.assertEqual(self.post("/v1/chat/completions", **body)["usage"]["completion_tokens"], 3)
        self.refused("/v1/chat/completions", 400, "messages")
        self.refused("/v1/chat/completions", 400, "top_logprobs", **CHAT, logprobs=True, top_logprobs=-1)
        long = [{"role": "user", "content": "x" * 5000}]
        self.refused("/v1/chat/completions", 400, "messages", messages=long)


class Echo(HttpTest):
    def test_a_prompt_and_how_probable_it_was(self):
        body = {**COMPLETION, "logprobs": 2}
        (plain,) = self.post("/v1/completions", **body)["choices"]
        (echoed,) = self.post("/v1/completions", **body, echo=True)["choices"]
        self.assertEqual(echoed["text"], "hello" + plain["text"])
        logprobs = echoed["logprobs"]
        # The token that begins texts is the first.
        self.assertEqual((logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]), (None, None))
        self.assertEqual(logprobs["tokens"][1:6], list("hello"))
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            self.assertEqual(len(logprobs[name]), 18)
            self.assertEqual(logprobs[name][6:], plain["logprobs"][name])
        self.assertTrue(all(value < 0 for value in logprobs["token_logprobs"][1:]))
        self.assertEqual(logprobs["text_offset"][1:3], [logprobs["text_offset"][1], logprobs["text_offset"][1] + 1])
        events = [event["choices"][0] for event in self.servers.events("/v1/completions", {**body, "echo": True})]
        self.assertEqual("".join(event["text"] for event in events), echoed["text"])
        told = [event["logprobs"]["token_logprobs"] for event in events if event["logprobs"]]
        self.assertEqual([value for one in told for value in one], logprobs["token_logprobs"])

    def test_scores_alone_and_prompts_alone(self):
        body = {"prompt": ["hello", "x"], "max_tokens": 0, "echo": True}
        scored = self.post("/v1/completions", **body, logprobs=0)["choices"]
        self.assertEqual([choice["text"] for choice in scored], ["hello", "x"])
        self.assertEqual([len(choice["logprobs"]["tokens"]) for choice in scored], [6, 2])
        self.assertEqual([choice["logprobs"] for choice in self.post("/v1/completions", **body)["choices"]], [None, None])
        ids = self.post("/v1/completions", prompt=[104, 105], max_tokens=2, echo=True, seed=7)["choices"][0]
        self.assertEqual((ids["text"][:2], len(ids["text"])), ("hi", 4))
        self.refused("/v1/completions", 400, "echo", prompt="x" * 3000, echo=True, logprobs=100)

    def test_what_all_choices_repeat_is_bounded(self):
        body = {"prompt": "x" * 2500, "max_tokens": 1, "echo": True, "logprobs": 100}
        (choice,) = self.post("/v1/completions", **body)["choices"]
        self.assertEqual(len(choice["logprobs"]["tokens"]), 2502)
        error = self.refused("/v1/completions", 429, None, **body, n=3)
        self.assertIn("echo repeats the prompt for each choice", error["message"])


class Usage(HttpTest):
    def test_in_every_event_of_a_stream(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        for path, body, prompt in (("/v1/completions", COMPLETION, 6), ("/v1/chat/completions", CHAT, 22)):
            events = self.servers.events(path, {**body, "stream_options": options})
            told = [(event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]) for event in events]
            first = [(prompt, 0)] if path.endswith("chat/completions") else []
            self.assertEqual(told, [*first, *((prompt, i) for i in range(1, 13)), (prompt, 12), (prompt, 12)])
            details = ["prompt_tokens_details" in event["usage"] for event in events]
            self.assertEqual(details, [False] * (len(events) - 1) + [True])
        alone = {"continuous_usage_stats": True}
        name = "stream_options.continuous_usage_stats"
        self.refused("/v1/completions", 400, name, **COMPLETION, stream=True, stream_options=alone)


class TokenIds(HttpTest):
    def test_of_prompt_and_reply(self):
        (choice,) = self.post("/v1/completions", **COMPLETION, return_token_ids=True)["choices"]
        self.assertEqual(choice["prompt_token_ids"], [256, *b"hello"])
        self.assertEqual(self.post("/detokenize", tokens=choice["token_ids"])["prompt"], choice["text"])
        self.assertNotIn("token_ids", self.post("/v1/completions", **COMPLETION)["choices"][0])
        self.assertNotIn("token_ids", self.post("/v1/chat/completions", **CHAT)["choices"][0])

    def test_of_streams(self):
        for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
            (choice,) = self.post(path, **body, return_token_ids=True)["choices"]
            self.assertEqual(len(choice["token_ids"]), 12)
            events = [event["choices"][0] for event in self.servers.events(path, {**body, "return_token_ids": True})]
            self.assertEqual(events[0]["prompt_token_ids"], choice["prompt_token_ids"])
            self.assertEqual([event["token_ids"] for event in events], [[], *([id] for id in choice["token_ids"]), []])

    def test_beside_echo(self):
        body = {**COMPLETION, "echo": True, "return_token_ids": True}
        (choice,) = self.post("/v1/completions", **body)["choices"]
        first = self.servers.events("/v1/completions", body)[0]["choices"][0]
        for told in (choice, first):
            self.assertEqual(told["prompt_token_ids"], [256, *b"hello"])
        self.assertEqual(first["text"], "hello")


class Rest(HttpTest):
    def test_models_health_and_unknown_paths(self):
        status, models = self.servers.get("/v1/models")
        self.assertEqual((status, models["object"], [m["id"] for m in models["data"]]), (200, "list", ["toy"]))
        self.assertEqual(self.servers.get("/v1/models/toy")[1]["max_model_len"], 4096)
        self.assertEqual(self.servers.get("/v1/models/%74oy")[0], 200)
        self.assertEqual(self.servers.get("/v1/models/other%")[0], 404)
        self.assertEqual(self.servers.get("/health"), (200, {"status": "ok", "model": "toy"}))
        self.assertEqual(self.servers.get("/nowhere")[0], 404)
        status, _, response = self.servers.ask("GET", "/v1/completions")
        self.assertEqual((status, response.headers["Allow"]), (405, "POST"))

    def test_tokens(self):
        reply = self.post("/tokenize", prompt="h\u00e9 <eos>")
        self.assertEqual(reply, {"count": 10, "max_model_len": 4096, "tokens": [256, *"h\u00e9 <eos>".encode()]})
        special = self.post("/tokenize", prompt="<eos>", parse_special_tokens=True, add_special_tokens=False)
        self.assertEqual(special["tokens"], [257])
        self.assertEqual(self.post("/detokenize", tokens=[104, 195, 169])["prompt"], "h\u00e9")
        self.assertEqual(self.post("/detokenize", tokens=[195])["prompt"], "\ufffd")
        long = "x" * 100_000
        tokens = self.post("/tokenize", prompt=long)["tokens"]
        self.assertEqual(self.post("/detokenize", tokens=tokens[1:])["prompt"], long)
        self.refused("/detokenize", 400, "tokens[1]", tokens=[1, -1])
        self.refused("/detokenize", 400, "tokens[0]", tokens=[5000])

    def test_pages_of_other_sites(self):
        body = {"prompt": "x", "max_tokens": 1}
        for origin, status in (("http://localhost:3000", 200), ("http://evil.example", 403), ("null", 403)):
            got, _, response = self.servers.ask("POST", "/v1/completions", body, {"Origin": origin})
            self.assertEqual(got, status, origin)
            self.assertEqual(response.headers["Access-Control-Allow-Origin"], origin if status == 200 else None)
        headers = {"Origin": "http://127.0.0.1:8000", "Access-Control-Request-Method": "POST"}
        status, _, response = self.servers.ask("OPTIONS", "/v1/chat/completions", None, headers)
        self.assertEqual((status, response.headers["Access-Control-Allow-Methods"]), (204, "GET, POST, OPTIONS"))


class Templates(unittest.TestCase):
    def test_a_hostile_template_harms_only_its_request(self):
        loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
        servers = Servers(FRONT, TOY_WORKER, template=loop)
        try:
            replies = []
            asks = [threading.Thread(target=lambda: replies.append(servers.post("/v1/chat/completions", CHAT)))
                    for _ in range(2)]  # fmt: skip
            for ask in asks:
                ask.start()
            self.assertEqual(servers.post("/v1/completions", COMPLETION)[0], 200)
            for ask in asks:
                ask.join()
            for status, body in replies:
                self.assertEqual((status, body["error"]["param"]), (400, "messages"))
                self.assertIn("did not end within 2000 ms", body["error"]["message"])
        finally:
            servers.close()

    def test_no_template(self):
        servers = Servers(FRONT, TOY_WORKER, template="")
        try:
            status, body = servers.post("/v1/chat/completions", CHAT)
            self.assertEqual(status, 400)
            self.assertIn("no chat template", body["error"]["message"])
        finally:
            servers.close()


class ModelNames(unittest.TestCase):
    def test_names_with_spaces_and_odd_characters(self):
        for name in ("Llama 3.2 1B Instruct", 'meta/ll\u00e4ma "Q4_1" (v1.0)? 100%\\', "a+b%20c", "\u6a21\u578b"):
            servers = Servers(FRONT, TOY_WORKER, name=name)
            try:
                self.assertEqual([model["id"] for model in servers.get("/v1/models")[1]["data"]], [name])
                status, model = servers.get("/v1/models/" + urllib.parse.quote(name, safe=""))
                self.assertEqual((status, model["id"]), (200, name))
                for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
                    status, reply = servers.post(path, {**body, "model": name})
                    self.assertEqual((status, reply["model"]), (200, name))
                self.assertEqual(servers.post("/v1/completions", {**COMPLETION, "model": name + " "})[0], 404)
                status, metrics, _ = servers.ask("GET", "/metrics")
                self.assertEqual(status, 200)
                for line in metrics.decode().splitlines():
                    self.assertRegex(line, r'^(#.*|[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? \S+)$')
            finally:
                servers.close()


class Serve(unittest.TestCase):
    def test_ete_serve_http(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            port = free_port()
            log = open(pathlib.Path(directory, "log"), "w+")
            command = [ETE, "serve", "--model=random:tiny", "--device=cpu", f"--listen=unix:{directory}/front",
                       f"--http=127.0.0.1:{port}"]  # fmt: skip
            process = subprocess.Popen(command, stderr=log)
            try:
                end = time.monotonic() + 60
                text = ""
                ready = f"ready at unix:{directory}/front, HTTP at 127.0.0.1:{port}"
                while ready not in text and time.monotonic() < end and process.poll() is None:
                    time.sleep(0.05)
                    text = pathlib.Path(directory, "log").read_text()
                self.assertIn(ready, text)
                servers = Servers.__new__(Servers)
                servers.port = port
                status, body = servers.post("/v1/completions", {**COMPLETION, "ignore_eos": True})
                self.assertEqual(status, 200, body)
                self.assertEqual(body["usage"]["completion_tokens"], 12, body)
                self.check_cache(servers)
            finally:
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), 0)
                log.close()

    def check_cache(self, servers):
        """What skips the worker's cache neither finds anything in it nor leaves anything there."""
        self.wait_for_lookups(servers, 1)
        cached = []
        for cache in (False, False, True, True, False):
            ask = {"prompt": "a prompt of its own, " * 4, "max_tokens": 1, "cache_prompt": cache}
            status, body = servers.post("/v1/completions", ask)
            self.assertEqual(status, 200, body)
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual([tokens > 0 for tokens in cached], [False, False, False, True, False])
        self.wait_for_lookups(servers, 3)

    def wait_for_lookups(self, servers, due):
        """The front asks its worker for them now and then."""
        end = time.monotonic() + 20
        found = -1
        while found < due and time.monotonic() < end:
            time.sleep(0.05)
            lines = servers.ask("GET", "/metrics")[1].decode().splitlines()
            found = sum(float(line.split()[-1]) for line in lines if line.startswith("ete_worker_prefix_lookups_total"))
        self.assertEqual(found, due)

    def test_addresses_that_it_must_not_have(self):
        for arguments, part in (
            (["--http=0.0.0.0:8080"], "--http: 0.0.0.0:8080 is not a loopback address"),
            (["--http=nonsense"], "--http"),
            (["--http=127.0.0.1:0"], "--http: port 0 is not accepted"),
        ):
            command = [ETE, "serve", "--model=random:tiny", f"--listen=127.0.0.1:{free_port()}", *arguments]
            result = subprocess.run(command, capture_output=True, timeout=60)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(part, result.stderr.decode())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
