"""Renders chat templates as Hugging Face transformers does, for ete-front, which starts this and may kill it.

Frames on stdin and stdout: 4 bytes of length, little-endian, then the bytes. A request is JSON: {"template", "variables",
"output_bytes"}. A reply is one letter and UTF-8 text: y ready, m a package is missing, t the rendered text, r what the
template raised, b why the template cannot be rendered, i what of the conversation it ignores: tools, tool_calls or tool.
The only argument: the most bytes of memory.
"""

import contextlib
import ctypes
import datetime
import functools
import json
import os
import pprint  # noqa: F401  (Jinja2 imports it, and others, when a template first asks)
import resource
import signal
import struct
import sys
import textwrap  # noqa: F401

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read_exactly(size):
    data = bytearray()
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return bytes(data)


def send(kind, text):
    data = kind + text.encode()
    data = memoryview(struct.pack("<I", len(data)) + data)
    while data:
        data = data[os.write(1, data) :]


try:
    import jinja2
    import jinja2.debug
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    send(b"m", "")
    sys.exit(0)


class Raised(jinja2.TemplateError):
    pass


class TooLong(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says: the text as it is, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise Raised(message)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


environment = make_environment()


@functools.lru_cache(maxsize=4)
def compiled(template):
    return environment.from_string(template)


def render(request, variables):
    size, pieces = 0, []
    for piece in compiled(request["template"]).generate(**variables):
        size += len(piece.encode())
        if size > request["output_bytes"]:
            raise TooLong
        pieces.append(piece)
    return "".join(pieces)


def with_texts(variables):
    """None: each message has some content."""
    messages = variables.get("messages") or []
    if all(message.get("content") is not None for message in messages):
        return None
    return {**variables, "messages": [{**message, "content": message.get("content") or ""} for message in messages]}


def render_as_sent(request):
    """What was rendered, and its text. A call without content, as OpenAI's clients send it, is more than some templates
    take that show it beside an empty one."""
    variables = request["variables"]
    try:
        return variables, render(request, variables)
    except (TooLong, MemoryError):
        raise
    except Exception:
        other = with_texts(variables)
        if other is None:
            raise
    return other, render(request, other)


def changed_conversations(variables):
    """What of tools a template may not know, each with a conversation whose text is the same only if it does not."""
    if variables.get("tools"):
        yield "tools", {**variables, "tools": None}
    messages = variables.get("messages") or []
    # A template that shows tools may let a call's result say all, as Granite's does.
    if not variables.get("tools") and any(message.get("tool_calls") for message in messages):
        bare = [{key: message[key] for key in message if key != "tool_calls"} for message in messages]
        yield "tool_calls", {**variables, "messages": bare}
    if any(message["role"] == "tool" for message in messages):
        other = [
            {**message, "content": "x" + message["content"]} if message["role"] == "tool" else message
            for message in messages
        ]
        yield "tool", {**variables, "messages": other}


def renders(request, variables, text):
    """Whether just this text comes of them; no more is rendered than shows it."""
    end = 0
    for piece in compiled(request["template"]).generate(**variables):
        if not text.startswith(piece, end):
            return False
        end += len(piece)
    return end == len(text)


def ignored(request, rendered, text):
    for what, variables in changed_conversations(rendered):
        # Where it fails, it has noticed.
        with contextlib.suppress(Exception):
            if renders(request, variables, text):
                return what
    return None


def answer(data):
    try:
        request = json.loads(data)
        variables, text = render_as_sent(request)
        what = ignored(request, variables, text)
        return (b"t", text) if what is None else (b"i", what)
    except Raised as error:
        return b"r", str(error)
    except TooLong:
        return b"b", f"it writes more than {request['output_bytes']} bytes"
    except MemoryError:
        return b"b", "it takes too much memory"
    except RecursionError:
        return b"b", "it is nested too deeply"
    except jinja2.TemplateSyntaxError as error:
        return b"b", f"line {error.lineno}: {error.message}"
    except Exception as error:
        return b"b", f"{type(error).__name__}: {error}"


def restrict(memory):
    """What a template that leaves the sandbox could do: nothing with files or other processes."""
    # What is only loaded when first needed: the time zone, codecs, modules.
    environment.from_string("{% for x in [1] %}{{ 'a\\n' ~ x | tojson }}{{ strftime_now('%Y') }}{% endfor %}").render()
    with contextlib.suppress(jinja2.TemplateError):
        environment.from_string("{{ x.y }}").render()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    restrict(int(sys.argv[1]))
    send(b"y", "")
    while True:
        (size,) = struct.unpack("<I", read_exactly(4))
        kind, text = answer(read_exactly(size))
        try:
            send(kind, text)
        except UnicodeEncodeError:
            send(b"b", "it writes half a character")


main()
