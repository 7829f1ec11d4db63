#!/usr/bin/env python3
"""The list of every message at the end of docs/errors.md, from the sources. error_docs.py writes it anew;
error_docs.py --check fails when it is stale, or when a message that the text above it explains is in no source.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "errors.md"
MARK = "## Every message"
FOLDERS = ("engine", "services", "clients")
THROWS = re.compile(r"throw (?:\w+::)*(\w*Error|runtime_error|invalid_argument)\s*\(|(reject_flag)\(|(cannot_listen|refuse)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What is thrown without a code: wrong flags and arguments, and failures of the system.
WITHOUT_CODE = {"UsageError": "invalid_argument", "ValidationError": "invalid_argument", "reject_flag": "invalid_argument",
                "invalid_argument": "invalid_argument", "runtime_error": "unavailable", "cannot_listen": "unavailable"}


def arguments_at(text, start):
    """What stands between the parenthesis before `start` and the one that closes it."""
    depth, index, in_literal = 1, start, False
    while depth > 0 and index < len(text):
        character = text[index]
        if in_literal and character == "\\":
            index += 1
        elif character == '"':
            in_literal = not in_literal
        elif not in_literal:
            depth += {"(": 1, ")": -1}.get(character, 0)
        index += 1
    return text[start : index - 1]


def joined(arguments):
    """The message, with … for what is filled in. Literals that follow each other are one."""
    arguments = re.sub(r'(?<!\\)"\s*"', "", arguments)
    text = " … ".join(LITERAL.findall(arguments))
    text = text.replace('\\"', '"').replace("\\\\", "\\").replace("\\n", " ")
    return re.sub(r"(… )+", "… ", re.sub(r"\s+", " ", text)).strip()


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                # A quote in a comment, as a character or inside a raw literal begins none.
                text = re.sub(r"(^|\s)//.*$", "", path.read_text(), flags=re.M).replace("'\"'", "").replace("'\\\"'", "")
                yield re.sub(r'R"(\w*)\((.*?)\)\1"', lambda raw: '"' + raw[2].replace('"', '\\"') + '"', text, flags=re.S)


def messages():
    """Code -> the messages that carry it."""
    found = {}
    for text in sources():
        for thrown in THROWS.finditer(text):
            arguments = arguments_at(text, thrown.end())
            code = re.search(r"ErrorCode::(\w+)", arguments)
            kind = next(name for name in thrown.groups() if name)
            code = code.group(1) if code else WITHOUT_CODE.get(kind)
            message = joined(arguments)
            if code and len(re.findall(r"[A-Za-z]", message)) >= 8:
                found.setdefault(code, set()).add(message)
    return found


def every_message():
    lines = [MARK, "", "As the sources have them, by kind; … stands for what is filled in. `scripts/error_docs.py` makes this list."]
    for code, texts in sorted(messages().items()):
        lines += ["", f"### {code}", ""] + [f"- `` {text} ``" for text in sorted(texts)]
    return "\n".join(lines) + "\n"


def explained():
    """The messages of the tables above the list."""
    return re.findall(r"^\| `([^`]+)`", DOCUMENT.read_text().split(MARK)[0], re.M)


def missing():
    literals = " ".join(joined(text) for text in sources())
    for message in explained():
        for part in message.split("…"):
            if part.strip() and part.strip() not in literals:
                yield f"no source says \"{part.strip()}\", which docs/errors.md explains"


def main():
    head, _, _ = DOCUMENT.read_text().partition(MARK)
    if sys.argv[1:] == ["--check"]:
        faults = list(missing())
        if DOCUMENT.read_text() != head + every_message():
            faults.append("docs/errors.md does not list the messages of the sources: run scripts/error_docs.py")
        if faults:
            sys.exit("\n".join(faults))
    elif len(sys.argv) == 1:
        DOCUMENT.write_text(head + every_message())
    else:
        sys.exit("usage: error_docs.py [--check]")


if __name__ == "__main__":
    main()
