#!/usr/bin/env python3
"""Fails when docs/errors.md explains a message that is in no source."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "errors.md"
FOLDERS = ("engine", "services", "clients")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def joined(text):
    """The literals of a source, with … for what is filled in between. Literals that follow each other are one."""
    text = re.sub(r'(?<!\\)"\s*"', "", text)
    text = " … ".join(LITERAL.findall(text)).replace('\\"', '"').replace("\\\\", "\\").replace("\\n", " ")
    return re.sub(r"\s+", " ", text)


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                # A quote in a comment, as a character or inside a raw literal begins none.
                text = re.sub(r"(^|\s)//.*$", "", path.read_text(), flags=re.M).replace("'\"'", "").replace("'\\\"'", "")
                yield re.sub(r'R"(\w*)\((.*?)\)\1"', lambda raw: '"' + raw[2].replace('"', '\\"') + '"', text, flags=re.S)


def missing():
    literals = " ".join(joined(text) for text in sources())
    for message in re.findall(r"^\| `([^`]+)`", DOCUMENT.read_text(), re.M):
        for part in message.split("…"):
            if part.strip() and part.strip() not in literals:
                yield f"no source says \"{part.strip()}\", which docs/errors.md explains"


if __name__ == "__main__":
    sys.exit("\n".join(missing()) or None)
