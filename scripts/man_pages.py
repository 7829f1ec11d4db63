#!/usr/bin/env python3
"""Manual pages of ete, its commands and the servers, from what they say with --help.

man_pages.py BIN_DIR OUT_DIR writes ete.1, ete-run.1, ...; with --gzip ete.1.gz, as Debian has them.
"""

import gzip
import pathlib
import sys

import help_text

EXIT_STATUS = {
    "ete": [("0", "success"), ("2", "a wrong flag or argument"),
            ("128 + n", "ete run was ended by signal n"), ("1", "anything else")],
    "ete-worker": [("0", "ended by SIGTERM or SIGINT"), ("2", "a wrong flag"),
                   ("1", "anything else, as a device that no longer answers")],
    "ete-front": [("0", "ended by SIGTERM or SIGINT"), ("2", "a wrong flag"), ("1", "anything else")],
}
FILES = {
    "ete-worker": ["/etc/ete/worker.conf", "/lib/systemd/system/ete-worker.service",
                   "/lib/systemd/system/ete-worker.socket"],
    "ete-front": ["/etc/ete/front.conf", "/lib/systemd/system/ete-front.service",
                  "/lib/systemd/system/ete-front.socket"],
}


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\\&" + text if text.startswith((".", "'")) else text


def option_lines(option):
    names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in option.names)
    value = f" \\fI{escaped(option.metavar)}\\fR" if option.value else ""
    text = "; ".join(part for part in [option.description, *option.notes] if part)
    return [".TP", names + value, escaped(text) or "\\&"]


def see_also(name, commands):
    others = [other for other in commands if other != name and (name == "ete" or " " not in other)]
    return [".SH SEE ALSO", " ,\n".join(f".BR {escaped(other.replace(' ', '-'))} (1)" for other in others)]


def page(command, commands, version):
    title = command.name.replace(" ", "-")
    program = command.name.split()[0]
    lines = [f'.TH {escaped(title.upper())} 1 "" "EdgeTransformerEngine {version}" "User Commands"',
             ".SH NAME", f"{escaped(title)} \\- {escaped(command.description)}",
             ".SH SYNOPSIS", f"\\fB{escaped(command.name)}\\fR"
             + escaped(command.usage.removeprefix(command.name))]
    if command.subcommands:
        lines.append(".SH COMMANDS")
        for name, description in command.subcommands.items():
            lines += [".TP", f"\\fB{escaped(name)}\\fR", escaped(description) + f" (see \\fB{escaped(title)}\\-{name}\\fR(1))"]
    for heading, options in command.groups.items():
        lines.append(f".SH {heading.upper()}")
        for option in options:
            lines += option_lines(option)
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_STATUS[program]:
        lines += [".TP", f"\\fB{code}\\fR", escaped(meaning)]
    lines += [".PP", "Failures are told in one line on standard error that names the file, field or flag."]
    if command.name in FILES:
        lines.append(".SH FILES")
        for file in FILES[command.name]:
            lines += [f".I {escaped(file)}", ".br"]
    return "\n".join(lines + see_also(command.name, commands)) + "\n"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--gzip"]
    if len(arguments) != 2:
        sys.exit("usage: man_pages.py [--gzip] BIN_DIR OUT_DIR")
    directory, out = pathlib.Path(arguments[0]), pathlib.Path(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    commands, version = help_text.commands_of(directory), help_text.version_of(directory)
    for command in commands.values():
        target = out / (command.name.replace(" ", "-") + ".1")
        content = page(command, commands, version).encode()
        if "--gzip" in sys.argv:
            # Without a time, so that the same text is the same file.
            target.with_suffix(".1.gz").write_bytes(gzip.compress(content, 9, mtime=0))
        else:
            target.write_bytes(content)


if __name__ == "__main__":
    main()
