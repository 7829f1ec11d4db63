"""The official openai package against the HTTP API, as it is.

Arguments: the paths of ete-front and toy_worker, and a directory for a virtual environment, which is made once. Exits
with 77, for "skipped", where the package is missing and cannot be installed.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

PACKAGE = "openai>=1.40,<4"
INSTALL_LIMIT = 240


def python_with_openai(directory):
    python = pathlib.Path(directory, "bin", "python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True, capture_output=True)
    if subprocess.run([python, "-c", "import openai"], capture_output=True).returncode != 0:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", PACKAGE]
        subprocess.run(pip, check=True, capture_output=True, timeout=INSTALL_LIMIT)
    return python


try:
    import openai
    import pydantic
except ImportError:
    try:
        found = python_with_openai(sys.argv[3])
    except (OSError, subprocess.SubprocessError) as error:
        print(f"skipped: the openai package cannot be installed: {error}")
        sys.exit(77)
    os.execv(found, [str(found), *sys.argv])

from http_servers import Servers  # noqa: E402

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]


class OpenAiPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers(sys.argv[1], sys.argv[2])
        cls.addClassCleanup(cls.servers.close)
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.servers.port}/v1", api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def chat(self, **more):
        return self.client.chat.completions.create(model="toy", messages=MESSAGES, seed=7, max_tokens=12, **more)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["toy"])
        self.assertEqual(self.client.models.retrieve("toy").id, "toy")

    def test_chat_and_its_stream(self):
        whole = self.chat()
        text = whole.choices[0].message.content
        self.assertEqual((len(text), whole.choices[0].finish_reason, whole.usage.completion_tokens), (12, "length", 12))
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)

    def test_logprobs_stop_and_choices(self):
        reply = self.chat(logprobs=True, top_logprobs=2, n=2)
        self.assertEqual(len(reply.choices), 2)
        self.assertEqual(len(reply.choices[0].logprobs.content[0].top_logprobs), 2)
        text = reply.choices[0].message.content
        stopped = self.chat(stop=[text[4:6]])
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(stopped.choices[0].message.content, text[: text.find(text[4:6])])

    def test_json_schema(self):
        schema = {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 3, "maximum": 14}},
            "required": ["ok", "n"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        reply = self.client.chat.completions.create(model="toy", messages=MESSAGES, response_format=form)
        value = json.loads(reply.choices[0].message.content)
        self.assertEqual((list(value), type(value["ok"])), (["ok", "n"], bool))
        self.assertTrue(3 <= value["n"] <= 14)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        with self.assertRaises(openai.BadRequestError) as caught:
            schema["properties"]["n"]["multipleOf"] = 2
            self.client.chat.completions.create(model="toy", messages=MESSAGES, response_format=form)
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")

    def test_tools(self):
        parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
        ask = {"model": "toy", "messages": MESSAGES, "tools": tools, "seed": 5}
        reply = self.client.chat.completions.create(tool_choice="required", **ask)
        (call,) = reply.choices[0].message.tool_calls
        self.assertEqual((call.function.name, reply.choices[0].finish_reason), ("weather", "tool_calls"))
        self.assertIn(json.loads(call.function.arguments)["city"], ("Oslo", "Rome"))
        chunks = list(self.client.chat.completions.create(tool_choice="required", stream=True, **ask))
        (streamed,) = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual(streamed.function.arguments, call.function.arguments)
        turn = [*MESSAGES, reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        answer = self.client.chat.completions.create(model="toy", messages=turn, tools=tools, max_tokens=3)
        self.assertEqual(len(answer.choices[0].message.content), 3)

    def test_completions(self):
        reply = self.client.completions.create(model="toy", prompt="hello", max_tokens=5, logprobs=2)
        self.assertEqual(len(reply.choices[0].logprobs.tokens), 5)
        stream = self.client.completions.create(model="toy", prompt="hello", max_tokens=5, stream=True)
        self.assertEqual(len("".join(chunk.choices[0].text for chunk in stream)), 5)

    def test_responses(self):
        ask = {"model": "toy", "input": "hello", "instructions": "s", "max_output_tokens": 9, "extra_body": {"seed": 7}}
        whole = self.client.responses.create(**ask)
        self.assertEqual((len(whole.output_text), whole.status, whole.usage.output_tokens), (9, "incomplete", 9))
        # The package knows no final response of a stream that was cut short.
        ask = {"model": "toy", "input": "hello", "extra_body": {"seed": 7, "grammar": 'root ::= "abc" [d-f]{5}'}}
        whole = self.client.responses.create(**ask)
        with self.client.responses.stream(**ask) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        self.assertEqual(("".join(deltas), final.output_text), (whole.output_text,) * 2)
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        tool = {"type": "function", "name": "now", "parameters": nothing}
        reply = self.client.responses.create(model="toy", input="x", tools=[tool], tool_choice="required")
        self.assertEqual((reply.output[0].type, reply.output[0].name), ("function_call", "now"))
        for param, more in (("previous_response_id", {"previous_response_id": "resp_1"}), ("truncation", {"truncation": "auto"}),
                            ("include[0]", {"include": ["message.output_text.logprobs"]})):  # fmt: skip
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.responses.create(model="toy", input="x", **more)
            self.assertEqual(caught.exception.param, param)

    def test_responses_that_ask_for_what_none_has(self):
        ask = {"model": "toy", "input": "hello", "max_output_tokens": 9, "extra_body": {"seed": 7}}
        plain = self.client.responses.create(**ask)
        for more in ({"include": ["reasoning.encrypted_content"]}, {"include": []}, {"reasoning": {"summary": "auto"}}):
            self.assertEqual(self.client.responses.create(**ask, **more).output_text, plain.output_text)

    # The package itself takes what lacks fields, and hands out None.
    def test_replies_have_all_that_the_types_ask(self):
        types = openai.types
        self.check(types.Model, self.client.models.retrieve("toy"))
        chunks = self.chat(logprobs=True, stream=True, stream_options={"include_usage": True})
        for kind, replies in (
            (types.Completion, [self.client.completions.create(model="toy", prompt="hello", max_tokens=5, logprobs=2)]),
            (types.chat.ChatCompletion, [self.chat(logprobs=True, top_logprobs=2)]),
            (types.chat.ChatCompletionChunk, chunks),
        ):
            for reply in replies:
                self.check(kind, reply)
        tool = {"type": "function", "name": "f", "parameters": {"type": "object", "additionalProperties": False}}
        rules = 'root ::= "a <tool_call>{\\"name\\": \\"f\\", \\"arguments\\": {}}</tool_call>"'
        ask = {"model": "toy", "input": "hello", "tools": [tool], "extra_body": {"seed": 7, "grammar": rules}}
        self.check(types.responses.Response, self.client.responses.create(**ask))
        for most in (500, 40, 10):
            for event in self.client.responses.create(**ask, stream=True, max_output_tokens=most):
                self.check(type(event), event)

    def check(self, kind, reply):
        pydantic.TypeAdapter(kind).validate_python(reply.to_dict(mode="python"))

    def test_errors_are_the_package_s_own(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="gpt-4", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_abort(self):
        stream = self.client.completions.create(model="toy", prompt="x", max_tokens=4000, stream=True)
        for _ in zip(range(3), stream):
            pass
        stream.close()
        self.assertEqual(len(self.client.models.list().data), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
