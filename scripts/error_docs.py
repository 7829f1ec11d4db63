#!/usr/bin/env python3
"""Fails when an error of the sources has no row in docs/errors.md, or a row explains what no source says.

The first cell of a row holds phrases in backticks; … in one stands for whatever is filled in. A message is explained by a
phrase whose parts it has, in this order; a comment "sources: ..." below a heading says whose messages its rows explain.
Single words (a field, a flag) are parts of messages that another place makes, and need no row. --list prints the messages
and where each is made.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "errors.md"
FOLDERS = ("engine", "services", "clients")
SUFFIXES = (".cc", ".h", ".cu", ".cuh")
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.S)
NOT_CODE = re.compile(r'("(?:[^"\\\n]|\\.)*")|\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/', re.S)
# What is made besides by `throw` and by functions that do not return: errors that are handed on, and statuses.
MAKERS = ("Error", "FrontError", "Overloaded", "UsageError", "Failure", "ValidationError", "Status", "refuse", "fail",
          "set_away", "unavailable")
NORETURN = re.compile(r"\[\[noreturn\]\]\s+(?:static\s+)?void\s+(\w+)\s*\(")
TWO_WORDS = re.compile(r"[A-Za-z]{2,}\W?[ -]\W?[A-Za-z]{2,}")
NEVER = ("check_failed", "on_terminate")  # CHECK: a fault of the program, with its file and line


def code_of(path):
    """The source without comments; raw literals and characters as plain literals and blanks."""
    def quoted(raw):
        return '"' + raw[2].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' + "\n" * raw[2].count("\n")
    return NOT_CODE.sub(lambda found: found[1] or ("' '" if found[0][0] == "'" else ""), RAW.sub(quoted, path.read_text()))


def message(code):
    """The literals of an expression, with … for what stands between them. Those that follow each other are one."""
    parts, end = [], None
    for found in STRING.finditer(code):
        text = re.sub(r"\\(.)", lambda escape: " " if escape[1] in "nrt" else escape[1], found[1])
        if end is not None and not code[end:found.start()].strip():
            parts[-1] += text
        else:
            parts.append(text)
        end = found.end()
    return re.sub(r"\s+", " ", " … ".join(parts))


def enclosed(code, start):
    """From the bracket at start to the one that closes it."""
    depth = 0
    for found in re.compile(STRING.pattern + r"|[(){}\[\]]").finditer(code, start):
        if found[0][0] != '"':
            depth += 1 if found[0] in "({[" else -1
        if depth == 0:
            return code[start:found.end()]
    return code[start:]


class Sources:
    def __init__(self):
        self.code = {path: code_of(path) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
                     if path.suffix in SUFFIXES}
        self.thrower = sorted({name for code in self.code.values() for name in NORETURN.findall(code)} - set(NEVER))
        self.says = {}  # (folder, stem, function that does not return) -> what it adds to its arguments
        for path, code in self.code.items():
            for found in re.finditer(rf"\bvoid\s+(?:\w+::)?({'|'.join(self.thrower)})\s*\([^;{{}}]*\)[^;{{}}]*\{{", code):
                self.says[path.parent, path.stem, found[1]] = message(enclosed(code, found.end() - 1))

    def added_by(self, path, name):
        """By the function of this file, else by the only one of its name."""
        own = self.says.get((path.parent, path.stem, name))
        others = [text for (_, _, one), text in self.says.items() if one == name]
        return own if own is not None else others[0] if len(others) == 1 else ""

    def messages(self):
        """(file and line, message) of each place that makes an error."""
        names = "|".join(sorted({*MAKERS, *self.thrower}, key=len, reverse=True))
        call = re.compile(rf"\bthrow\s+([\w:]+)\s*[({{]|(?<![\w>])(?:\w+::)?({names})\s*[({{]")
        for path, code in self.code.items():
            for found in call.finditer(code):
                name = (found[1] or found[2]).rsplit("::")[-1]
                before = code[:found.start()]
                is_definition = re.search(r"(\bvoid|\bclass|\bstruct|\bexplicit|~)\s*(\w+::)?$", before)
                text = message(enclosed(code, found.end() - 1))
                if is_definition or not TWO_WORDS.search(text):
                    continue
                added = self.added_by(path, name)
                line = before.count("\n") + 1
                yield f"{path.relative_to(ROOT)}:{line}", text + (f" … {added}" if added.strip() else "")


def phrases():
    """(phrase, beginnings of the paths of sources whose messages it explains)."""
    scope = ("",)
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            scope = ("",)
        elif line.startswith("<!-- sources: "):
            scope = tuple(line.split()[2:-1])
        elif line.startswith("| `"):
            for phrase in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                yield phrase, scope


def explains(known, where, text):
    phrase, scope = known
    parts = [part.strip() for part in phrase.split("…")]
    words = ".*".join(re.sub(r"^(?=\w)|(?<=\w)$", r"\\b", re.escape(part)) for part in parts)
    return where.startswith(scope) and re.search(words, text) is not None


def faults():
    sources = Sources()
    known = list(phrases())
    for where, text in sources.messages():
        if not any(explains(one, where, text) for one in known):
            yield f"{where}: docs/errors.md has no remedy for \"{text}\""
    literals = " … ".join(message(code) for code in sources.code.values())
    for phrase, _ in known:
        for part in phrase.split("…"):
            if part.strip() not in literals:
                yield f"no source says \"{part.strip()}\", which docs/errors.md explains"


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{where}: {text}" for where, text in Sources().messages()))
    else:
        sys.exit("\n".join(faults()) or None)
