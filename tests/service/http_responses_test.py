"""/v1/responses over real processes, and where thoughts stand in it and in chat completions. Standard library only.

Arguments: the paths of ete-front and toy_worker.
"""

import json
import sys
import unittest

from http_case import CALL, CHAT, FRONT, SCHEMA, TOOLS, TOY_WORKER, HttpTest
from http_servers import Servers


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
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
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

    def test_a_call_that_is_cut(self):
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        rules = 'root ::= "{}"'.format(CALL.replace('"', '\\"'))
        for size, arguments in ((47, '{"n":'), (34, ""), (24, None), (11, None)):
            body = {"input": "hello", "tools": tools, "seed": 3, "grammar": rules, "max_output_tokens": size}
            whole = self.post(self.PATH, **body)
            self.assertEqual((whole["status"], whole["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
            said = [(item["type"], item["name"], item["arguments"], item["status"]) for item in whole["output"]]
            self.assertEqual(said, [] if arguments is None else [("function_call", "count", arguments, "incomplete")])
            (last,) = [event["response"] for event in self.servers.typed_events(self.PATH, body)[-1:]]
            self.assertEqual((last["status"], len(last["output"])), ("incomplete", len(said)))
            for item in last["output"]:
                self.assertEqual((item["type"], item["name"], item["arguments"], item["status"]), said[0])

    def test_a_prompt_past_the_context(self):
        text = "x" * 5000
        turn = {"messages": [{"role": "user", "content": text}]}
        for path, param, body in (("/v1/completions", "prompt", {"prompt": text}), ("/v1/completions", "prompt", {"prompt": [5] * 5000}),
                                  ("/v1/chat/completions", "messages", turn), (self.PATH, "input", {"input": text})):  # fmt: skip
            status, reply = self.servers.post(path, body)
            error = reply["error"]
            self.assertEqual((status, error["type"], error["param"], error["code"]),
                             (400, "invalid_request_error", param, "context_length_exceeded"))  # fmt: skip

    def test_items_come_in_the_order_of_the_text(self):
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        text = f"a {CALL} b </tool_call> c {CALL} d".replace('"', '\\"')
        body = {"input": "hello", "tools": tools, "seed": 3, "grammar": f'root ::= "{text}"', "max_output_tokens": 500}
        whole = self.post(self.PATH, **body)
        said = [[part["text"] for part in item.get("content", [])] or item["name"] for item in whole["output"]]
        self.assertEqual(said, [["a "], "count", ["b </tool_call> c "], "count", ["d"]])
        streamed = self.servers.typed_events(self.PATH, body)[-1]["response"]["output"]
        self.assertEqual([item.get("content") for item in streamed], [item.get("content") for item in whole["output"]])

    def test_refusals(self):
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        for param, more in (
            ("input", {}),
            ("input", {"input": []}),
            ("input[0].content[0].type", {"input": image}),
            ("input[1].role", {"input": [{"role": "user", "content": "x"}, {"role": "cook", "content": "x"}]}),
            ("input[0].role", {"input": [{"role": "cook", "content": "x"}], "instructions": "y"}),
            ("input[0].type", {"input": [{"type": "file_search_call"}]}),
            ("input[0].arguments", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 5}]}),
            ("previous_response_id", {"input": "x", "previous_response_id": "resp_1"}),
            ("background", {"input": "x", "background": True}),
            ("tools[0].name", {"input": "x", "tools": [{"type": "function", "name": "a b"}]}),
            ("tools[0].type", {"input": "x", "tools": [{"type": "web_search"}]}),
            ("tools[1].name", {"input": "x", "tools": [{"type": "function", "name": "f"}] * 2}),
            ("text.format.type", {"input": "x", "text": {"format": {"type": "xml"}}}),
            ("text.format.schema", {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "odd"}}}}),
            ("max_output_tokens", {"input": "x", "max_output_tokens": -2}),
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
            items = [{"role": "user", "content": "hello"}, *response["output"], {"role": "user", "content": "more"}]
            status, next_one = servers.post("/v1/responses", {**asked, "input": items})
            self.assertEqual(status, 200, next_one)
            for name in ("content", "reasoning_content"):
                self.assertEqual("".join(delta.get(name, "") for delta in deltas), message.get(name, ""))
            return message
        finally:
            servers.close()

    def test_thoughts_are_apart(self):
        shown = "{{ messages[0].content }}{# </think> #}"
        message = self.replies(shown, 'root ::= "<think>a b</think>\\n\\nc"')
        self.assertEqual((message["reasoning_content"], message["content"]), ("a b", "c"))

    def test_thoughts_of_space_alone_are_none(self):
        shown = "{{ messages[0].content }}{# </think> #}"
        for thoughts in ("", "\\n\\n", " \\n"):
            message = self.replies(shown, f'root ::= "<think>{thoughts}</think>\\n\\nHi"')
            self.assertEqual(message["content"], "Hi")
            self.assertNotIn("reasoning_content", message)

    def test_a_grammar_holds_behind_thoughts_that_the_prompt_began(self):
        shown = "{{ messages[0].content }}{# </think> #}<think>\n"
        message = self.replies(shown, 'root ::= "yes"', max_tokens=20)
        self.assertEqual((len(message["reasoning_content"]), message["content"]), (20, ""))

    def test_without_thoughts_in_the_template_all_is_content(self):
        message = self.replies("{{ messages[0].content }}", 'root ::= "<think>a</think>b"')
        self.assertEqual(message["content"], "<think>a</think>b")
        self.assertNotIn("reasoning_content", message)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
