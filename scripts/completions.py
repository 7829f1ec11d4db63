#!/usr/bin/env python3
"""Shell completion of ete and its servers, from what they say with --help.

completions.py bash|zsh|fish BIN_DIR prints the script:
  source <(scripts/completions.py bash build/release/bin)
"""

import shlex
import sys

import help_text


def bash(commands):
    lines = ["# bash completion of ete, ete-worker and ete-front", "_ete() {",
             "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=$1 word",
             "  command=${command##*/}",
             "  COMPREPLY=()"]
    subcommands = list(commands["ete"].subcommands)
    lines += ['  if [[ $command == ete ]]; then',
              '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
              f'      case $word in {"|".join(subcommands)}) command="ete $word"; break ;; esac',
              "    done", "  fi", '  case "$command $previous" in']
    for name, command in commands.items():
        for option in command.options:
            if option.choices:
                words = " ".join(option.choices)
                lines.append(f'    "{name} {option.flag}") COMPREPLY=($(compgen -W "{words}" -- "$current")); return ;;')
            elif option.takes_path:
                lines.append(f'    "{name} {option.flag}") compopt -o filenames; '
                             'COMPREPLY=($(compgen -f -- "$current")); return ;;')
            elif option.value:
                lines.append(f'    "{name} {option.flag}") return ;;')
    lines += ["  esac", '  case "$command" in']
    for name, command in commands.items():
        words = " ".join(list(command.subcommands) + [flag for option in command.options for flag in option.names])
        lines.append(f'    "{name}") COMPREPLY=($(compgen -W "{words}" -- "$current")) ;;')
    lines += ["  esac", "}", "complete -F _ete ete ete-worker ete-front"]
    return "\n".join(lines) + "\n"


def zsh_option(option):
    text = option.description.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    if option.choices:
        action = f":value:({' '.join(option.choices)})"
    elif option.takes_path:
        action = ":path:_files"
    else:
        action = ":value: " if option.value else ""
    many = "*" if "may be repeated" in option.description else ""
    return [shlex.quote(f"{many}{name}[{text}]{action}") for name in option.names]


def zsh(commands):
    lines = ["#compdef ete ete-worker ete-front", "# zsh completion of ete, ete-worker and ete-front", "_ete() {",
             "  local name=${service:t} context state line", "  typeset -A opt_args",
             '  if [[ $name == ete ]] && (( CURRENT > 2 )); then',
             '    name="ete ${words[2]}"', "    shift words", "    (( CURRENT-- ))", "  fi", '  case "$name" in']
    for name, command in commands.items():
        lines.append(f'    ("{name}")')
        if command.subcommands:
            lines.append("      local -a found=(")
            for subcommand, description in command.subcommands.items():
                lines.append("        " + shlex.quote(f"{subcommand}:{description.replace(':', chr(92) + ':')}"))
            lines += ["      )", '      [[ $PREFIX == -* ]] || _describe command found']
        lines.append("      _arguments \\")
        lines += [f"        {spec} \\" for option in command.options for spec in zsh_option(option)]
        lines += ["        '*: :_files'" if "Positionals" in command.groups else "        ': :'", "      ;;"]
    lines += ["  esac", "}", '_ete "$@"']
    return "\n".join(lines) + "\n"


def fish_lines(program, condition, options):
    for option in options:
        line = f"complete -c {program}{condition}"
        for name in option.names:
            line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
        if option.choices:
            line += f" -x -a '{' '.join(option.choices)}'"
        elif option.takes_path:
            line += " -r -F"
        elif option.value:
            line += " -x"
        # fish knows no quoting of quotes but a backslash.
        text = option.description.replace("\\", "\\\\").replace("'", "\\'")
        yield f"{line} -d '{text}'"


def fish(commands):
    lines = ["# fish completion of ete, ete-worker and ete-front"]
    known = " ".join(commands["ete"].subcommands)
    for program in help_text.PROGRAMS:
        if program in commands:
            lines.append(f"complete -c {program} -f")
    for name, command in commands.items():
        program, _, subcommand = name.partition(" ")
        if subcommand:
            condition = f" -n '__fish_seen_subcommand_from {subcommand}'"
        elif command.subcommands:
            condition = f" -n 'not __fish_seen_subcommand_from {known}'"
        else:
            condition = ""
        for other, description in command.subcommands.items():
            lines.append(f"complete -c {program}{condition} -a {other} -d {shlex.quote(description)}")
        lines += fish_lines(program, condition, command.options)
    return "\n".join(lines) + "\n"


def main():
    shells = {"bash": bash, "zsh": zsh, "fish": fish}
    if len(sys.argv) != 3 or sys.argv[1] not in shells:
        sys.exit("usage: completions.py bash|zsh|fish BIN_DIR")
    sys.stdout.write(shells[sys.argv[1]](help_text.commands_of(sys.argv[2])))


if __name__ == "__main__":
    main()
