"""A test case with a front and a toy worker of its own. Standard library only.

The program's arguments begin with the paths of ete-front and toy_worker.
"""

import sys
import unittest

from http_servers import Servers

FRONT, TOY_WORKER = sys.argv[1:3]
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
PARAMETERS = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
              "$defs": {"n": {"type": "integer", "minimum": 5, "maximum": 23}}}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "count", "description": "d", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now"}}]  # fmt: skip
CALL = '<tool_call>{"name": "count", "arguments": {"n": 7}}</tool_call>'


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
