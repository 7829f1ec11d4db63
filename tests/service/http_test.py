"""OpenAI's HTTP API over real processes: a front and a toy worker. Standard library only.

Arguments: the paths of ete-front, toy_worker and ete.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from http_servers import Servers, free_port

FRONT, TOY_WORKER, ETE = sys.argv[1:4]
COMPLETION = {"prompt": "hello", "seed": 7, "max_tokens": 12}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "seed": 7, "max_tokens": 12}
# The toy model's strings would never end by themselves.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "kind": {"enum": ["cat", "dog", None]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 40}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "kind", "ages"],
}


class HttpTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(FRONT, TOY_WORKER)
        cls.addClassCleanup(cls.servers.close)

    def post(self, path, **body):
        status, json_body = self.servers.post(path, body)
        self.assertEqual(status, 200, json_body)
        return json_body

    def refused(self, path, expected_status, param, **body):
        status, json_body = self.servers.post(path, body)
        self.assertEqual(status, expected_status, json_body)
        self.assertEqual(set(json_body["error"]), {"message", "type", "param", "code"})
        self.assertEqual(json_body["error"]["param"], param)
        return json_body["error"]


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
        self.refused("/v1/completions", 400, "max_tokens", prompt="x", max_tokens=-1)
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


class Formats(HttpTest):
    def schema_body(self, schema=SCHEMA, **more):
        form = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": schema}}
        return {**CHAT, "max_tokens": 400, "response_format": form, **more}

    def test_json_of_a_schema_whole_and_streamed(self):
        for seed in range(10):
            body = self.schema_body(seed=seed)
            (choice,) = self.post("/v1/chat/completions", **body)["choices"]
            self.assertEqual(choice["finish_reason"], "stop", choice)
            pet = json.loads(choice["message"]["content"])
            self.assertEqual(list(pet), ["name", "kind", "ages"])
            self.assertTrue(2 <= len(pet["name"]) <= 5 and 1 <= len(pet["ages"]) <= 2, pet)
            self.assertTrue(pet["kind"] in SCHEMA["properties"]["kind"]["enum"], pet)
            self.assertTrue(all(type(age) is int and 0 <= age <= 40 for age in pet["ages"]), pet)
            events = self.servers.events("/v1/chat/completions", body)
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
            self.assertEqual(text, choice["message"]["content"])

    def test_a_text_that_is_cut_short_says_so(self):
        whole = self.post("/v1/chat/completions", **self.schema_body())["choices"][0]["message"]["content"]
        (choice,) = self.post("/v1/chat/completions", **self.schema_body(max_tokens=9))["choices"]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("length", whole[:9]))

    def test_any_object_and_rules(self):
        form = {"type": "json_object"}
        text = self.post("/v1/chat/completions", **CHAT, response_format=form)["choices"][0]["message"]["content"]
        self.assertEqual(text[0], "{")
        rules = 'root ::= ("yes" | "no") "!"{2}'
        choice = self.post("/v1/completions", **COMPLETION, grammar=rules)["choices"][0]
        self.assertTrue(choice["text"] in ("yes!!", "no!!"), choice)
        self.assertEqual(choice["finish_reason"], "stop")

    def test_logprobs_are_among_the_allowed(self):
        body = {**COMPLETION, "grammar": 'root ::= "a" | "b"', "temperature": 0}
        content = self.post("/v1/completions", **body, logprobs=5)["choices"][0]["logprobs"]
        self.assertEqual(set(content["top_logprobs"][0]), {"a", "b"})

    def test_allowed_ids_and_samplers(self):
        some = self.post("/v1/completions", **COMPLETION, allowed_token_ids=[65, 66])["choices"][0]["text"]
        self.assertEqual((len(some), set(some) | {"A", "B"}), (12, {"A", "B"}))
        for more in ({"typical_p": 0.5}, {"xtc_probability": 1}, {"dry_multiplier": 1}, {"mirostat_tau": 3},
                     {"dynamic_temperature_range": 0.5}):  # fmt: skip
            self.assertEqual(len(self.post("/v1/completions", **COMPLETION, **more)["choices"][0]["text"]), 12)

    def test_refusals(self):
        path = "/v1/chat/completions"
        place = "response_format.json_schema.schema"
        error = self.refused(path, 400, place, **self.schema_body({"type": "string", "pattern": "a"}))
        self.assertIn("pattern", error["message"])
        self.refused(path, 400, place, **self.schema_body({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}))
        self.refused(path, 400, "response_format.type", **CHAT, response_format={"type": "xml"})
        self.refused("/v1/completions", 400, "grammar", **COMPLETION, grammar="root ::= root")
        self.refused("/v1/completions", 400, "min_tokens", **COMPLETION, min_tokens=13)
        self.refused("/v1/completions", 400, "allowed_token_ids[0]", **COMPLETION, allowed_token_ids=[300])
        self.refused("/v1/completions", 400, "typical_p", **COMPLETION, typical_p=0)


class Tools(HttpTest):
    PARAMETERS = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
                  "$defs": {"n": {"type": "integer", "minimum": 5, "maximum": 23}}}  # fmt: skip
    TOOLS = [{"type": "function", "function": {"name": "count", "description": "d", "parameters": PARAMETERS}},
             {"type": "function", "function": {"name": "now"}}]  # fmt: skip
    PATH = "/v1/chat/completions"

    def body(self, **more):
        return {**CHAT, "max_tokens": 400, "tools": self.TOOLS, **more}

    def check_call(self, call):
        self.assertEqual((call["type"], call["id"][:5]), ("function", "call_"))
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "count":
            self.assertTrue(list(arguments) == ["n"] and 5 <= arguments["n"] <= 23, arguments)
        else:
            self.assertEqual((call["function"]["name"], arguments), ("now", {}))

    def test_a_call_that_has_to_be_made(self):
        named = {"type": "function", "function": {"name": "count"}}
        for choice, names in (("required", {"count", "now"}), (named, {"count"})):
            found = set()
            for seed in range(12):
                (reply,) = self.post(self.PATH, **self.body(tool_choice=choice, seed=seed))["choices"]
                self.assertEqual((reply["finish_reason"], reply["message"]["content"]), ("tool_calls", None), reply)
                (call,) = reply["message"]["tool_calls"]
                self.check_call(call)
                found.add(call["function"]["name"])
            self.assertEqual(found, names)

    def test_streams_and_calls_of_its_own(self):
        call = '<tool_call>{\\"name\\": \\"count\\", \\"arguments\\": {\\"n\\": 7}}</tool_call>'
        body = self.body(grammar=f'root ::= "I count. {call}{call}"')
        (whole,) = self.post(self.PATH, **body)["choices"]
        self.assertEqual((whole["finish_reason"], whole["message"]["content"]), ("tool_calls", "I count. "))
        self.assertEqual(len(whole["message"]["tool_calls"]), 2)
        events = [event["choices"][0] for event in self.servers.events(self.PATH, body)]
        self.assertEqual("".join(event["delta"].get("content") or "" for event in events), "I count. ")
        calls = [call for event in events for call in event["delta"].get("tool_calls", [])]
        self.assertEqual([call["index"] for call in calls], [0, 1])
        for one in calls:
            self.check_call(one)
        self.assertEqual(events[-1]["finish_reason"], "tool_calls")
        # Of the ids of calls too, while they are held back.
        events = list(self.servers.events(self.PATH, {**body, "logprobs": True, "stream_options": {"include_usage": True}}))
        given = [event["choices"][0]["logprobs"] for event in events if event["choices"]]
        tokens = sum(len(logprobs["content"]) for logprobs in given if logprobs)
        self.assertEqual(tokens, events[-1]["usage"]["completion_tokens"])
        (single,) = self.post(self.PATH, **body, parallel_tool_calls=False)["choices"]
        self.assertEqual((len(single["message"]["tool_calls"]), single["finish_reason"]), (1, "tool_calls"))
        (plain,) = self.post(self.PATH, **body, tool_choice="none")["choices"]
        self.assertIn("<tool_call>", plain["message"]["content"])

    def test_refusals(self):
        self.refused(self.PATH, 400, "tools[0].function.name", **CHAT, tools=[{"type": "function", "function": {}}])
        odd = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "minProperties": 2}}}]
        error = self.refused(self.PATH, 400, "tools", **CHAT, tools=odd, tool_choice="required")
        self.assertIn("minProperties", error["message"])
        # Offered only, any schema will do.
        self.post(self.PATH, **CHAT, tools=odd)


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


class Responses(HttpTest):
    PATH = "/v1/responses"

    def text_of(self, response):
        return "".join(part["text"] for item in response["output"] for part in item.get("content", []))

    def test_says_what_a_chat_completion_says(self):
        chat = self.post("/v1/chat/completions", messages=[{"role": "system", "content": "be brief"}, *CHAT["messages"]],
                         seed=7, max_tokens=12)  # fmt: skip
        body = {"input": "hello", "instructions": "be brief", "seed": 7, "max_output_tokens": 12}
        whole = self.post(self.PATH, **body, metadata={"k": "v"})
        self.assertEqual(self.text_of(whole), chat["choices"][0]["message"]["content"])
        self.assertEqual((whole["object"], whole["id"][:5], whole["status"]), ("response", "resp_", "incomplete"))
        self.assertEqual(whole["incomplete_details"], {"reason": "max_output_tokens"})
        self.assertEqual((whole["instructions"], whole["metadata"], whole["store"]), ("be brief", {"k": "v"}, False))
        usage = whole["usage"]
        self.assertEqual((usage["input_tokens"], usage["output_tokens"]), (chat["usage"]["prompt_tokens"], 12))
        self.assertEqual(usage["total_tokens"], chat["usage"]["total_tokens"])
        parts = [{"type": "input_text", "text": "hello"}]
        items = [{"role": "developer", "content": "be brief"}, {"type": "message", "role": "user", "content": parts}]
        again = self.post(self.PATH, input=items, seed=7, max_output_tokens=12)
        self.assertEqual(self.text_of(again), self.text_of(whole))

    def test_events(self):
        body = {"input": "hello", "seed": 7, "grammar": 'root ::= "abc" [d-f]{5}'}
        whole = self.post(self.PATH, **body)
        self.assertEqual((whole["status"], whole["incomplete_details"]), ("completed", None))
        events = self.servers.typed_events(self.PATH, body)
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        kinds = [event["type"].removeprefix("response.") for event in events]
        deltas = kinds.count("output_text.delta")
        self.assertEqual(deltas, 8)
        self.assertEqual(
            kinds,
            ["created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * deltas,
             "output_text.done", "content_part.done", "output_item.done", "completed"],
        )  # fmt: skip
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        self.assertEqual((text, self.text_of(events[-1]["response"])), (self.text_of(whole),) * 2)
        item = events[-2]["item"]
        self.assertEqual(events[-1]["response"]["output"], [item])
        self.assertEqual({event["item_id"] for event in events if "item_id" in event}, {item["id"]})
        self.assertEqual(events[0]["response"]["status"], "in_progress")

    def test_json_of_a_schema(self):
        form = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}}
        value = json.loads(self.text_of(self.post(self.PATH, input="hello", text=form, seed=3)))
        self.assertEqual(list(value), ["name", "kind", "ages"])

    def test_calls_of_functions(self):
        tools = [{"type": "function", **tool["function"]} for tool in Tools.TOOLS]
        body = {"input": "hello", "tools": tools, "tool_choice": {"type": "function", "name": "count"}, "seed": 3}
        whole = self.post(self.PATH, **body)
        (call,) = whole["output"]
        self.assertEqual((call["type"], call["name"], call["status"]), ("function_call", "count", "completed"))
        self.assertTrue(5 <= json.loads(call["arguments"])["n"] <= 23)
        self.assertEqual(whole["tools"], tools)
        events = self.servers.typed_events(self.PATH, body)
        self.assertEqual(
            [event["type"].removeprefix("response.") for event in events],
            ["created", "in_progress", "output_item.added", "function_call_arguments.delta",
             "function_call_arguments.done", "output_item.done", "completed"],
        )  # fmt: skip
        self.assertEqual(events[3]["delta"], call["arguments"])
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "7"}
        answer = self.post(self.PATH, input=[{"role": "user", "content": "hello"}, call, result], max_output_tokens=4)
        self.assertEqual(len(self.text_of(answer)), 4)

    def test_refusals(self):
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        for param, more in (
            ("input", {}),
            ("input", {"input": []}),
            ("input[0].content[0].type", {"input": image}),
            ("input[1].role", {"input": [{"role": "user", "content": "x"}, {"role": "cook", "content": "x"}]}),
            ("input[0].role", {"input": [{"role": "cook", "content": "x"}], "instructions": "y"}),
            ("input[0].type", {"input": [{"type": "file_search_call"}]}),
            ("input[0].arguments", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}),
            ("previous_response_id", {"input": "x", "previous_response_id": "resp_1"}),
            ("background", {"input": "x", "background": True}),
            ("tools[0].name", {"input": "x", "tools": [{"type": "function", "name": "a b"}]}),
            ("tools[0].type", {"input": "x", "tools": [{"type": "web_search"}]}),
            ("text.format.type", {"input": "x", "text": {"format": {"type": "xml"}}}),
            ("text.format.schema", {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "odd"}}}}),
            ("max_output_tokens", {"input": "x", "max_output_tokens": -1}),
            ("truncation", {"input": "x", "truncation": "auto"}),
            ("n", {"input": "x", "n": 2}),
            ("messages", {"input": "x", "messages": []}),
        ):
            self.refused(self.PATH, 400, param, **more)


class Thoughts(unittest.TestCase):
    def replies(self, template, grammar, **more):
        servers = Servers(FRONT, TOY_WORKER, template=template)
        try:
            body = {**CHAT, "max_tokens": 100, "grammar": grammar, **more}
            status, whole = servers.post("/v1/chat/completions", body)
            self.assertEqual(status, 200, whole)
            deltas = [event["choices"][0]["delta"] for event in servers.events("/v1/chat/completions", body)]
            message = whole["choices"][0]["message"]
            asked = {"input": "hello", "seed": 7, "max_output_tokens": body["max_tokens"], "grammar": grammar}
            status, response = servers.post("/v1/responses", asked)
            texts = {item["type"]: item["content"][0]["text"] for item in response["output"]}
            self.assertEqual(texts.get("message", ""), message["content"])
            self.assertEqual(texts.get("reasoning", ""), message.get("reasoning_content", ""))
            self.assertEqual(response["usage"]["output_tokens_details"]["reasoning_tokens"], len(texts.get("reasoning", "")))
            self.assertEqual(servers.typed_events("/v1/responses", asked)[-1]["response"]["output"][0]["content"],
                             response["output"][0]["content"])  # fmt: skip
            for name in ("content", "reasoning_content"):
                self.assertEqual("".join(delta.get(name, "") for delta in deltas), message.get(name, ""))
            return message
        finally:
            servers.close()

    def test_thoughts_are_apart(self):
        shown = "{{ messages[0].content }}{# </think> #}"
        message = self.replies(shown, 'root ::= "<think>a b</think>\\n\\nc"')
        self.assertEqual((message["reasoning_content"], message["content"]), ("a b", "c"))

    def test_a_grammar_holds_behind_thoughts_that_the_prompt_began(self):
        shown = "{{ messages[0].content }}{# </think> #}<think>\n"
        message = self.replies(shown, 'root ::= "yes"', max_tokens=20)
        self.assertEqual((len(message["reasoning_content"]), message["content"]), (20, ""))

    def test_without_thoughts_in_the_template_all_is_content(self):
        message = self.replies("{{ messages[0].content }}", 'root ::= "<think>a</think>b"')
        self.assertEqual(message["content"], "<think>a</think>b")
        self.assertNotIn("reasoning_content", message)


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


class Clients(unittest.TestCase):
    """Clients that go, do not read, or are many. A token takes 20 ms."""

    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        cls.addClassCleanup(cls.servers.close)

    def stream(self, **body):
        request = json.dumps({"prompt": "x", "max_tokens": 90_000, "stream": True, **body})
        client = socket.create_connection(("127.0.0.1", self.servers.port), 60)
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n{request}".encode()
        )
        return client

    def threads_of_worker(self):
        return len(os.listdir(f"/proc/{self.servers.worker.pid}/task"))

    def test_a_client_that_goes_frees_its_session(self):
        # The toy worker has a thread a session.
        before = self.threads_of_worker()
        clients = [self.stream() for _ in range(8)]
        for client in clients:
            self.assertIn(b"data: ", self.read_until(client, b"data: "))
        self.assertGreater(self.threads_of_worker(), before + 4)
        for client in clients:
            client.close()
        end = time.monotonic() + 30
        while self.threads_of_worker() > before + 4 and time.monotonic() < end:
            time.sleep(0.1)
        self.assertLessEqual(self.threads_of_worker(), before + 4)
        self.assertEqual(self.servers.get("/health")[0], 200)

    def read_until(self, client, mark):
        data = b""
        while mark not in data:
            piece = client.recv(4096)
            if not piece:
                break
            data += piece
        return data

    def test_many_idle_clients_cost_no_threads(self):
        threads = len(os.listdir(f"/proc/{self.servers.front.pid}/task"))
        memory = self.servers.front_memory()
        idle = [socket.create_connection(("127.0.0.1", self.servers.port), 60) for _ in range(512)]
        self.assertEqual(self.servers.get("/health")[0], 200)
        self.assertLessEqual(len(os.listdir(f"/proc/{self.servers.front.pid}/task")), threads + 2)
        self.assertLess(self.servers.front_memory() - memory, 64 << 20)
        for client in idle:
            client.close()

    def test_a_front_that_stops_ends_its_streams(self):
        servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        try:
            servers.front.send_signal(signal.SIGTERM)
            self.assertEqual(servers.front.wait(20), 0)
        finally:
            servers.close()

    def test_a_worker_that_dies_ends_the_stream_with_an_error(self):
        servers = Servers(FRONT, TOY_WORKER, context=100_000, step_ms=20)
        try:
            connection = servers.connection()
            body = json.dumps({"prompt": "x", "max_tokens": 90_000, "stream": True})
            connection.request("POST", "/v1/completions", body)
            response = connection.getresponse()
            self.assertTrue(response.readline().startswith(b"data: {"))
            servers.worker.kill()
            last = response.read().decode().strip().split("\n\n")[-1]
            self.assertEqual(json.loads(last.removeprefix("data: "))["error"]["code"], "unavailable")
            connection.close()
        finally:
            servers.close()


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
                status, body = servers.post("/v1/completions", COMPLETION)
                self.assertEqual(status, 200, body)
                self.assertEqual(body["usage"]["completion_tokens"], 12, body)
            finally:
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(30), 0)
                log.close()

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
