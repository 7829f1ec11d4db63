"""What `ete --help` and its like say, as data: the one source of manual pages and shell completions.

CLI11 prints an option's name in a column of 30 characters, and its description behind it or, when the name is longer,
on the next line at the same column.
"""

import pathlib
import re
import subprocess
from dataclasses import dataclass, field

COLUMN = 30
PROGRAMS = ("ete", "ete-worker", "ete-front")


@dataclass
class Option:
    names: list  # as ["-h", "--help"]; of a positional ["PROMPT"]
    value: str  # as "PATH" or "auto|cpu|cuda[:N]"; empty: a switch
    description: str
    notes: list  # as "required"; "not with --special --no-bos"

    @property
    def flag(self):
        return self.names[-1]

    @property
    def choices(self):
        """The words that the value may be; words in capitals stand for something else."""
        listed = re.search(r"\{([^}]*)\}", self.value)
        words = listed.group(1).split(",") if listed else self.value.split("|")
        if not listed and len(words) == 1:
            return []
        return [word for word in (re.sub(r"\[.*", "", word) for word in words) if re.fullmatch(r"[a-z0-9-]+", word)]

    @property
    def takes_path(self):
        return re.match(r"PATH|FILE|DIR", self.value) is not None or self.flag == "--out"

    @property
    def metavar(self):
        """The value as people read it: without the list that repeats it."""
        listed = re.match(r"(?:TEXT)?:?\{([^}]*)\}$", self.value)
        if listed:
            return listed.group(1).replace(",", "|")
        return re.sub(r":(\{.*\}|INT in .*)$", "", self.value)


@dataclass
class Command:
    name: str  # as "ete run"
    description: str
    usage: str
    groups: dict = field(default_factory=dict)  # heading -> [Option]
    subcommands: dict = field(default_factory=dict)  # name -> description

    @property
    def options(self):
        return [option for heading, group in self.groups.items() if heading != "Positionals" for option in group]


def parse_entry(name, description):
    notes = []
    for kind, words in (("Excludes", "not with"), ("Needs", "only with")):
        others = re.search(rf" {kind}: ((?:--[\w-]+ ?)+)$", name)
        if others:
            notes.append(f"{words} {others.group(1).strip()}")
            name = name[: others.start()]
    if name.endswith(" REQUIRED"):
        notes.append("required")
        name = name.removesuffix(" REQUIRED")
    name = name.removesuffix(" ...")
    flags, _, value = name.partition(" ")
    return Option(flags.split(","), value, description, notes)


def entries(lines):
    """(name, description) of the entries of one section."""
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        following = lines[index] if index < len(lines) else ""
        if following.startswith(" " * COLUMN):
            index += 1
            yield line.strip(), following.strip()
        elif len(line) > COLUMN and line[COLUMN - 1] == " ":
            yield line[:COLUMN].strip(), line[COLUMN:].strip()
        else:
            yield line.strip(), ""


def parse_help(name, text):
    lines = text.splitlines()
    usage = next(line for line in lines if line.startswith("Usage: "))
    command = Command(name, " ".join(lines[: lines.index(usage)]).strip(), usage.removeprefix("Usage: "))
    section, sections = None, {}
    for line in lines[lines.index(usage) + 1 :]:
        if re.fullmatch(r"[A-Z][\w' ]*:", line):
            section = line[:-1]
            sections[section] = []
        elif line.strip():
            sections[section].append(line)
    for heading, body in sections.items():
        if heading == "Subcommands":
            command.subcommands = dict(entries(body))
        else:
            command.groups[heading] = [parse_entry(*entry) for entry in entries(body)]
    return command


def help_of(program, *arguments):
    return subprocess.run([program, *arguments, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout


def version_of(directory):
    said = subprocess.run([pathlib.Path(directory, "ete"), "--version"], check=True, capture_output=True, text=True)
    return said.stdout.split()[1]


def commands_of(directory):
    """Name -> Command of every program in the folder and of their subcommands."""
    found = {}
    for program in PROGRAMS:
        path = pathlib.Path(directory, program)
        if not path.exists():
            continue
        found[program] = parse_help(program, help_of(path))
        for name in found[program].subcommands:
            found[f"{program} {name}"] = parse_help(f"{program} {name}", help_of(path, name))
    return found
