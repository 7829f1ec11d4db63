#!/usr/bin/python3
"""docs/api.md from the protos and their comments. api_docs.py writes it; api_docs.py --check fails when it is stale.
Both fail where a field, a value or a method has no comment.

Needs Debian's protobuf-compiler and python3-protobuf.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROTOS = ["ete/v1/generation.proto", "ete/v1/session.proto", "ete/v1/engine.proto"]
DOCUMENT = ROOT / "docs" / "api.md"
FIELD = descriptor_pb2.FieldDescriptorProto
# Of FileDescriptorProto, DescriptorProto, EnumDescriptorProto and ServiceDescriptorProto: the numbers of their parts.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE, MESSAGE_FIELD, MESSAGE_NESTED, MESSAGE_ENUM, VALUE, METHOD = 4, 5, 6, 2, 3, 4, 2, 2


def descriptors():
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", "--include_source_info",
                        f"--descriptor_set_out={out.name}", *PROTOS], check=True, timeout=60)
        return descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes()).file


class Comments:
    """The comments of one file, by the path of what they stand at."""

    def __init__(self, file):
        self.at = {tuple(location.path): location for location in file.source_code_info.location}

    def text(self, *path):
        location = self.at.get(path)
        parts = [] if location is None else [location.leading_comments, location.trailing_comments]
        return " ".join(" ".join(part.split()) for part in parts if part.strip())


def in_table(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def type_name(field, nested_maps):
    if field.type_name in nested_maps:
        key, value = nested_maps[field.type_name].field
        return f"map<{type_name(key, {})}, {type_name(value, {})}>"
    if field.type in (FIELD.TYPE_MESSAGE, FIELD.TYPE_ENUM):
        short = field.type_name.removeprefix(".ete.v1.")
        return f"[{short}](#{anchor(short)})"
    return FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()


def anchor(name):
    return name.lower().replace(".", "")


def label(field, message):
    if field.label == FIELD.LABEL_REPEATED:
        return "repeated "
    if field.proto3_optional:
        return "optional "
    return f"one of {message.oneof_decl[field.oneof_index].name}: " if field.HasField("oneof_index") else ""


def enum_lines(enum, name, comments, path):
    yield from ["", f"### {name}", ""]
    if comments.text(*path):
        yield from [comments.text(*path), ""]
    yield from ["| value | number | |", "|---|---|---|"]
    for index, value in enumerate(enum.value):
        yield f"| {value.name} | {value.number} | {in_table(comments.text(*path, VALUE, index))} |"


def message_lines(message, name, comments, path):
    maps = {f".ete.v1.{name}.{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
    yield from ["", f"### {name}", ""]
    if comments.text(*path):
        yield from [comments.text(*path), ""]
    if message.field:
        yield from ["| field | type | |", "|---|---|---|"]
    for index, field in enumerate(message.field):
        kind = "" if field.type_name in maps else label(field, message)
        said = in_table(comments.text(*path, MESSAGE_FIELD, index))
        yield f"| {field.name} = {field.number} | {kind}{type_name(field, maps).replace('<', '&lt;')} | {said} |"
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from message_lines(nested, f"{name}.{nested.name}", comments, (*path, MESSAGE_NESTED, index))
    for index, enum in enumerate(message.enum_type):
        yield from enum_lines(enum, f"{name}.{enum.name}", comments, (*path, MESSAGE_ENUM, index))


def service_lines(service, comments, index):
    path = (FILE_SERVICE, index)
    yield from ["", f"### service {service.name}", ""]
    if comments.text(*path):
        yield from [comments.text(*path), ""]
    for number, method in enumerate(service.method):
        ends = []
        for streaming, kind in ((method.client_streaming, method.input_type), (method.server_streaming, method.output_type)):
            short = kind.removeprefix(".ete.v1.")
            ends.append(("stream " if streaming else "") + f"[{short}](#{anchor(short)})")
        yield f"- **{method.name}** ({ends[0]}) returns ({ends[1]})  "
        yield f"  {comments.text(*path, METHOD, number).replace('<', '&lt;')}".rstrip()


def file_lines(file):
    comments = Comments(file)
    yield from ["", f"## {file.name}"]
    syntax = comments.at.get((12,))
    if syntax is not None and syntax.leading_comments.strip():
        yield from ["", " ".join(syntax.leading_comments.split())]
    for index, service in enumerate(file.service):
        yield from service_lines(service, comments, index)
    for index, message in enumerate(file.message_type):
        yield from message_lines(message, message.name, comments, (FILE_MESSAGE, index))
    for index, enum in enumerate(file.enum_type):
        yield from enum_lines(enum, enum.name, comments, (FILE_ENUM, index))


def document():
    lines = ["# The gRPC API", "",
             "Made by `scripts/api_docs.py` from `proto/ete/v1`. Clients talk to `Generation`; `Engine` is the worker's own door."]
    found = {file.name: file for file in descriptors()}
    for name in PROTOS:
        lines += file_lines(found[name])
    return "\n".join(lines) + "\n"


def without_comment(text):
    """The rows of a table whose last cell is empty, and the methods behind which nothing stands."""
    return re.findall(r"^(\| .*\|)  \|$|^(- \*\*.*)\n\s*$", text, re.M)


def main():
    text = document()
    if bare := without_comment(text):
        sys.exit("the protos have no comment for\n" + "\n".join(row or method for row, method in bare))
    if sys.argv[1:] == ["--check"]:
        if not DOCUMENT.exists() or DOCUMENT.read_text() != text:
            sys.exit("docs/api.md is not what the protos say: run scripts/api_docs.py")
    elif len(sys.argv) == 1:
        DOCUMENT.write_text(text)
    else:
        sys.exit("usage: api_docs.py [--check]")


if __name__ == "__main__":
    main()
