"""What the tests of deploy/ share."""

import pathlib
import sys

ROOT, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "scripts"))

import help_text  # noqa: E402

COMMANDS = help_text.commands_of(BIN)


def check_arguments(test, words):
    """The words of a command line of ete or a server: each flag is one that it has, values as they are listed."""
    words = [str(word) for word in words]
    program = pathlib.Path(words[0]).name
    name = f"{program} {words[1]}" if program == "ete" and not words[1].startswith("-") else program
    test.assertTrue(name in COMMANDS, f"no command {name}: {words}")
    options = {flag: option for option in COMMANDS[name].options for flag in option.names}
    given = set()
    for index, word in enumerate(words):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        test.assertIn(flag, options, f"{name} has no {flag}: {words}")
        option = options[flag]
        given.update(option.names)
        if option.value and not equals:
            test.assertLess(index + 1, len(words), f"{flag} wants {option.value}: {words}")
            value = words[index + 1]
        if option.choices and option.value == "|".join(option.choices):
            test.assertIn(value, option.choices, f"{flag} of {name}")
    for flag, option in options.items():
        if "required" in option.notes:
            test.assertIn(flag, given, f"{name} needs {flag}: {words}")
