"""Writes cases.json: what Hugging Face transformers renders of the templates beside it. Needs transformers and jinja2."""

import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "  Why is the sky <b>blue</b>? Ünïcode 日本 🙂\n"}
ANSWER = {"role": "assistant", "content": "Rayleigh scattering.\n"}
MORE = {"role": "user", "content": "And \"red\" at dusk?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_0001",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "hourly": False, "x": None}},
        }
    ],
}
RESULT = {"role": "tool", "content": '{"temperature": 21.5}', "tool_call_id": "call_0001"}
SECOND_CALL = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "call_0002"}]}
SECOND_RESULT = {**RESULT, "tool_call_id": "call_0002", "content": "sun <b>& rain"}
TWO_CALLS = {**CALL, "content": "Both.", "tool_calls": CALL["tool_calls"] + SECOND_CALL["tool_calls"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <of> a city & its \"surroundings\"",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 10}},
                "required": ["city"],
            },
        },
    }
]
CONVERSATIONS = {
    "one": {"messages": [USER], "add_generation_prompt": True},
    "system": {"messages": [SYSTEM, USER], "add_generation_prompt": True},
    "turns": {"messages": [USER, ANSWER, MORE], "add_generation_prompt": True},
    "system_turns": {"messages": [SYSTEM, USER, ANSWER, MORE], "add_generation_prompt": True},
    "whole": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "alternate": {"messages": [USER, USER], "add_generation_prompt": True},
}
WITH_TOOLS = {
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS, "add_generation_prompt": True},
    "tool_result": {"messages": [USER, CALL, RESULT], "tools": TOOLS, "add_generation_prompt": True},
}
TOOL_TURNS = {
    "tool_turns": {
        "messages": [SYSTEM, USER, CALL, RESULT, SECOND_CALL, SECOND_RESULT, ANSWER, MORE],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
}
PARALLEL_CALLS = {
    "parallel_calls": {
        "messages": [USER, TWO_CALLS, RESULT, SECOND_RESULT],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
}
TOOLS_IN_SYSTEM = {
    "tools_in_system": {
        "messages": [SYSTEM, USER, CALL, RESULT],
        "tools": TOOLS,
        "tools_in_user_message": False,
        "add_generation_prompt": True,
    },
}
THINKING = {
    "thinking_off": {"messages": [USER], "enable_thinking": False, "add_generation_prompt": True},
    "thought": {
        "messages": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."}, MORE],
        "add_generation_prompt": True,
    },
    "reasoning": {
        "messages": [USER, {"role": "assistant", "content": "So.", "reasoning_content": "hm"}],
        "add_generation_prompt": False,
    },
}
MORE_OF = {
    "hermes": {**WITH_TOOLS, **TOOL_TURNS, **PARALLEL_CALLS},
    "llama3": {**WITH_TOOLS, **TOOL_TURNS, **PARALLEL_CALLS, **TOOLS_IN_SYSTEM},
    "mistral": WITH_TOOLS,
    "qwen2_5": WITH_TOOLS,
    "qwen3": {**WITH_TOOLS, **TOOL_TURNS, **PARALLEL_CALLS, **THINKING},
    "qwen3_5": {**WITH_TOOLS, **TOOL_TURNS, **PARALLEL_CALLS, **THINKING},
}


def expected(template, variables):
    given = {**TOKENS, "tools": None, "date_string": "26 Jul 2024", **variables}
    messages, tools, prompt = given.pop("messages"), given.pop("tools"), given.pop("add_generation_prompt")
    try:
        rendered = render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=prompt, **given
        )
        return {"text": rendered[0][0]}
    except Exception as error:
        return {"error": str(error)}


cases = []
for path in sorted(HERE.glob("*.jinja")):
    for name, variables in {**CONVERSATIONS, **MORE_OF.get(path.stem, {})}.items():
        variables = {"date_string": "26 Jul 2024", "tools": None, **variables}
        cases.append(
            {"template": path.stem, "case": name, "variables": variables, **expected(path.read_text(), variables)}
        )
(HERE / "cases.json").write_text(json.dumps({"tokens": TOKENS, "cases": cases}, indent=1, ensure_ascii=False) + "\n")
print(len(cases), "cases,", sum("error" in case for case in cases), "refused")
