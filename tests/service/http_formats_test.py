"""What replies have to be, and how they are read back, over real processes: schemas, grammars, tools, and
what is told of the prompt before. Standard library only.

Arguments: the paths of ete-front and toy_worker.
"""

import json
import pathlib
import sys
import unittest

from http_case import CALL, CHAT, COMPLETION, FRONT, SCHEMA, TOOLS, TOY_WORKER, HttpTest
from http_servers import Servers


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
    PATH = "/v1/chat/completions"

    def body(self, **more):
        return {**CHAT, "max_tokens": 400, "tools": TOOLS, **more}

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
        error = self.refused(self.PATH, 400, "tools[1].function.name", **CHAT, tools=[TOOLS[0]] * 2)
        self.assertIn("a name that no tool before it has", error["message"])
        # Offered only, any schema will do.
        self.post(self.PATH, **CHAT, tools=odd)

    # A token of the toy model is a byte.
    def cut(self, size, text=CALL, **more):
        rules = 'root ::= "{}"'.format(text.replace('"', '\\"'))
        return {**self.body(grammar=rules), "max_tokens": size, **more}

    def said(self, body):
        """Finish reason, content and (name, arguments) of each call, which have to be the same whole and streamed."""
        (whole,) = self.post(self.PATH, **body)["choices"]
        calls = whole["message"].get("tool_calls", [])
        whole_said = (whole["finish_reason"], whole["message"]["content"] or "", [one["function"] for one in calls])
        events = [event["choices"][0] for event in self.servers.events(self.PATH, body)]
        content = "".join(event["delta"].get("content") or "" for event in events)
        calls = [call["function"] for event in events for call in event["delta"].get("tool_calls", [])]
        self.assertEqual((events[-1]["finish_reason"], content, calls), whole_said)
        return whole_said

    def test_a_call_that_is_cut(self):
        for size in range(5, len(CALL) + 1):
            reason, content, calls = self.said(self.cut(size))
            self.assertEqual((reason, content), ("length" if size < len(CALL) else "tool_calls", ""), size)
            if size < CALL.index(', "arguments'):
                self.assertEqual(calls, [], size)
            else:
                (call,) = calls
                self.assertEqual(call["name"], "count")
                self.assertTrue('{"n": 7}'.startswith(call["arguments"]) or json.loads(call["arguments"]) == {"n": 7}, call)
        reason, content, calls = self.said(self.cut(50, CALL.replace("{", "[")))
        self.assertEqual((reason, content, calls), ("length", CALL.replace("{", "[")[:50], []))
        # What a client asked to stop at is no reason to make half of a call.
        reason, content, calls = self.said(self.cut(400, stop=": 7"))
        self.assertEqual((reason, content, calls), ("stop", "", [{"name": "count", "arguments": '{"n"'}]))


class XmlTools(unittest.TestCase):
    TEMPLATE = pathlib.Path(__file__).parents[1] / "front/chat/templates/qwen3_5.jinja"
    PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    CALL = ("<tool_call>\n<function=weather>\n<parameter=city>\nSt. \"Gallen\"\n(SG)\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>")  # fmt: skip
    ARGUMENTS = {"city": 'St. "Gallen"\n(SG)', "days": 3}

    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(FRONT, TOY_WORKER, template=cls.TEMPLATE.read_text())
        cls.addClassCleanup(cls.servers.close)

    def body(self, text, **more):
        rules = {} if text is None else {"grammar": f"root ::= {json.dumps(text)}"}
        return {"chat_template_kwargs": {"enable_thinking": False}, "seed": 3, **rules, **more}

    def chat(self, text, **more):
        """Finish reason, content and calls' functions, whole and streamed."""
        body = self.body(text, **{**CHAT, "max_tokens": 600, "tools": self.TOOLS, **more})
        status, reply = self.servers.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        (whole,) = reply["choices"]
        calls = [call["function"] for call in whole["message"].get("tool_calls", [])]
        said = (whole["finish_reason"], whole["message"]["content"] or "", calls)
        events = [event["choices"][0] for event in self.servers.events("/v1/chat/completions", body)]
        content = "".join(event["delta"].get("content") or "" for event in events)
        calls = [call for event in events for call in event["delta"].get("tool_calls", [])]
        self.assertEqual([call["index"] for call in calls], list(range(len(calls))))
        self.assertEqual((events[-1]["finish_reason"], content, [call["function"] for call in calls]), said)
        return said

    def test_calls_are_read(self):
        reason, content, calls = self.chat(f"I ask.\n\n{self.CALL}\n{self.CALL}")
        self.assertEqual((reason, content, [call["name"] for call in calls]), ("tool_calls", "I ask.\n\n", ["weather"] * 2))
        self.assertEqual([json.loads(call["arguments"]) for call in calls], [self.ARGUMENTS] * 2)
        single = self.chat(f"{self.CALL}\n{self.CALL}", parallel_tool_calls=False)
        self.assertEqual((single[0], len(single[2])), ("tool_calls", 1))
        self.assertEqual(self.chat(self.CALL, tool_choice="none"), ("stop", self.CALL, []))

    def test_a_call_that_is_cut(self):
        size = self.CALL.index("len")
        (call,) = self.chat(self.CALL, max_tokens=size)[2]
        self.assertEqual(call, {"name": "weather", "arguments": '{"city":"St. \\"Gal'})
        for size in range(5, len(self.CALL)):
            reason, content, calls = self.chat(self.CALL, max_tokens=size)
            self.assertEqual((reason, content), ("length", ""), size)

    def test_a_call_that_has_to_be_made(self):
        parameters = {**self.PARAMETERS, "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
        reason, content, (call,) = self.chat(None, tools=tools, tool_choice="required")
        self.assertEqual((reason, content, call["name"]), ("tool_calls", "", "weather"))
        self.assertIn(json.loads(call["arguments"])["days"], (1, 2))

    def test_items_of_a_response_come_in_the_order_of_the_text(self):
        tools = [{"type": "function", **tool["function"]} for tool in self.TOOLS]
        body = self.body(f"a {self.CALL} b {self.CALL}", input="hello", tools=tools, max_output_tokens=600)
        status, whole = self.servers.post("/v1/responses", body)
        self.assertEqual(status, 200, whole)
        streamed = self.servers.typed_events("/v1/responses", body)[-1]["response"]
        for response in (whole, streamed):
            said = [item.get("content") or json.loads(item["arguments"]) for item in response["output"]]
            texts = [one if isinstance(one, dict) else one[0]["text"] for one in said]
            self.assertEqual(texts, ["a ", self.ARGUMENTS, "b ", self.ARGUMENTS])


class TemplatesWithoutTools(unittest.TestCase):
    CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    USERS = "{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}"

    def refused(self, servers, path, param, body):
        status, reply = servers.post(path, body)
        self.assertEqual((status, reply.get("error", {}).get("param")), (400, param), reply)
        return reply["error"]["message"]

    def test_tools_are_refused(self):
        servers = Servers(FRONT, TOY_WORKER, template=self.CHATML)
        try:
            ask = {**CHAT, "max_tokens": 4, "tools": TOOLS}
            message = self.refused(servers, "/v1/chat/completions", "tools", ask)
            self.assertIn("tools: the model's chat template does not take tools", message)
            self.assertIn('"tool_choice": "none"', message)
            self.refused(servers, "/v1/chat/completions", "tools", {**ask, "stream": True, "tool_choice": "required"})
            self.assertEqual(servers.post("/v1/chat/completions", {**ask, "tool_choice": "none"})[0], 200)
            self.assertEqual(servers.post("/v1/chat/completions", {**ask, "tools": []})[0], 200)
            self.refused(servers, "/tokenize", "tools", {"messages": CHAT["messages"], "tools": TOOLS})
            tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
            ask = {"input": "hello", "tools": tools, "max_output_tokens": 4}
            self.refused(servers, "/v1/responses", "tools", ask)
            self.assertEqual(servers.post("/v1/responses", {**ask, "tool_choice": "none"})[0], 200)
        finally:
            servers.close()

    def test_turns_that_leave_no_trace_are_refused(self):
        call = {"id": "c", "type": "function", "function": {"name": "count", "arguments": "{}"}}
        calls = {"role": "assistant", "content": "hm", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "7"}
        for template, turns, part in ((self.CHATML, [calls, result], "tool_calls"), (self.USERS, [result], '"tool"')):
            servers = Servers(FRONT, TOY_WORKER, template=template)
            try:
                ask = {"messages": [*CHAT["messages"], *turns], "max_tokens": 4}
                self.assertIn(part, self.refused(servers, "/v1/chat/completions", "messages", ask))
            finally:
                servers.close()
        servers = Servers(FRONT, TOY_WORKER, template=self.CHATML)
        try:
            ask = {"messages": [*CHAT["messages"], result], "max_tokens": 4}
            self.assertEqual(servers.post("/v1/chat/completions", ask)[0], 200)
            items = [{"role": "user", "content": "x"},
                     {"type": "function_call", "call_id": "c", "name": "count", "arguments": "{}"}]  # fmt: skip
            self.assertIn("tool_calls", self.refused(servers, "/v1/responses", "input", {"input": items}))
        finally:
            servers.close()


class Progress(HttpTest):
    def told(self, path, body, **more):
        events = self.servers.events(path, {**body, **more})
        said = [event["choices"][0].get("text") or event["choices"][0].get("delta", {}).get("content") for event in events]
        first = next(i for i, text in enumerate(said) if text)
        self.assertEqual([event for event in events[first:] if "prompt_progress" in event], [], "it came after text")
        return [event["prompt_progress"] for event in events if "prompt_progress" in event], events

    def test_of_streams_that_ask(self):
        for path, body, total in (("/v1/completions", COMPLETION, 6), ("/v1/chat/completions", CHAT, 22)):
            plain, without = self.told(path, body)
            self.assertEqual(plain, [])
            told, events = self.told(path, body, return_progress=True)
            self.assertEqual({(one["total"], one["cache"]) for one in told}, {(total, 0)})
            # A client that is behind is told less.
            done = [one["processed"] for one in told]
            self.assertEqual(done, [one for one in (0, total // 2, total) if one in done])
            times = [one["time_ms"] for one in told]
            self.assertEqual(times, sorted(times))
            self.assertEqual([one for one in times if one == 0], [0] * done.count(0))
            # Besides, the stream is the same.
            rest = [event["choices"] for event in events if "prompt_progress" not in event]
            self.assertEqual(rest, [event["choices"] for event in without])
            self.assertEqual(self.post(path, **body, return_progress=True)["choices"], self.post(path, **body)["choices"])

    def test_of_each_prompt_once(self):
        body = {**COMPLETION, "prompt": ["hello", "hi"], "n": 2, "return_progress": True}
        events = self.servers.events("/v1/completions", body)
        indices = [event["choices"][0]["index"] for event in events if "prompt_progress" in event]
        self.assertEqual(set(indices), {0, 2})

    def test_refusals(self):
        self.refused("/v1/completions", 400, "return_progress", **COMPLETION, return_progress="yes")
        self.refused("/v1/responses", 400, "return_progress", input="hello", return_progress=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
