"""Manual pages and completions. Arguments: the root of the sources, the folder of the programs."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from deployed import BIN, COMMANDS, ROOT

import completions
import help_text
import man_pages

BASH = """source {script}
while IFS= read -r line; do
  COMP_WORDS=($line); [[ $line == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
  _ete "${{COMP_WORDS[0]}}"
  echo "${{COMPREPLY[*]}}"
done
"""


def flags(command):
    return [name for option in command.options for name in option.names]


class HelpText(unittest.TestCase):
    def test_reads_every_flag_of_the_help(self):
        for name, command in COMMANDS.items():
            program, *subcommand = name.split()
            text = help_text.help_of(BIN / program, *subcommand)
            begun = {line.split()[0].split(",")[-1] for line in text.splitlines() if line.startswith("  -")}
            self.assertEqual({option.flag for option in command.options}, begun, name)
            for option in command.options:
                self.assertTrue(option.description, f"{name} {option.flag} is not described")

    def test_reads_both_forms_of_an_entry(self):
        text = "It runs\nUsage: x [OPTIONS]\n\nOptions:\n" \
            "  --decode Excludes: --special --raw\n" + " " * 30 + "turns it round\n" \
            "  --no-bos Excludes: --decode adds none\n  --kv auto|host              where [auto]\n" \
            "  --key FILE Needs: --cert Excludes: --raw\n" + " " * 30 + "the key\n"
        decode, no_bos, kv, key = help_text.parse_help("x", text).options
        self.assertEqual((decode.flag, decode.description, decode.notes),
                         ("--decode", "turns it round", ["not with --special --raw"]))
        self.assertEqual((no_bos.flag, no_bos.description, no_bos.notes), ("--no-bos", "adds none", ["not with --decode"]))
        self.assertEqual((kv.value, kv.choices), ("auto|host", ["auto", "host"]))
        self.assertEqual((key.value, key.notes, key.takes_path), ("FILE", ["not with --raw", "only with --cert"], True))


class Completion(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def script(self, shell):
        path = self.directory / f"ete.{shell}"
        path.write_text(getattr(completions, shell)(COMMANDS))
        return path

    def test_bash_completes_commands_flags_and_values(self):
        asked = {f"{name} --": [flag for flag in flags(command) if flag.startswith("--")]
                 for name, command in COMMANDS.items()}
        asked["ete "] = list(COMMANDS["ete"].subcommands)
        asked["ete inspect --model x --device "] = ["auto", "cpu", "cuda"]
        asked["ete-worker --kv h"] = ["host"]
        asked["/usr/bin/ete inspect --js"] = ["--json"]
        ran = subprocess.run(["bash", "-c", BASH.format(script=self.script("bash"))], input="\n".join(asked) + "\n",
                             capture_output=True, text=True, timeout=60, cwd=self.directory)
        self.assertEqual(ran.stderr, "")
        for (line, wanted), found in zip(asked.items(), ran.stdout.splitlines(), strict=True):
            missing = set(wanted) - set(found.split())
            self.assertFalse(missing, f"'{line}' is not completed with {missing}")

    def test_fish_completes_commands_flags_and_values(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not there")
        asked = {f"{name} --": [flag for flag in flags(command) if flag.startswith("--")]
                 for name, command in COMMANDS.items()}
        asked["ete "] = list(COMMANDS["ete"].subcommands)
        asked["ete inspect --device "] = ["auto", "cpu", "cuda"]
        commands = "; ".join(f"complete -C '{line}'; echo =" for line in asked)
        ran = subprocess.run(["fish", "--no-config", "-c", f"source {self.script('fish')}; {commands}"],
                             capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(self.directory)})
        self.assertEqual(ran.stderr, "")
        for (line, wanted), found in zip(asked.items(), ran.stdout.split("=\n")):
            missing = set(wanted) - {answer.split("\t")[0] for answer in found.splitlines()}
            self.assertFalse(missing, f"'{line}' is not completed with {missing}")

    def test_zsh_knows_every_flag(self):
        script = self.script("zsh")
        for name, command in COMMANDS.items():
            part = script.read_text().split(f'("{name}")')[1].split(";;")[0]
            for flag in flags(command):
                self.assertIn(f"{flag}[", part, name)
        if shutil.which("zsh"):
            ran = subprocess.run(["zsh", "-n", script], capture_output=True, text=True, timeout=60)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))


class ManPages(unittest.TestCase):
    def test_every_flag_is_in_the_page(self):
        for name, command in COMMANDS.items():
            page = man_pages.page(command, COMMANDS, "1.0")
            for flag in flags(command):
                self.assertIn(f"\\fB{man_pages.escaped(flag)}\\fR", page, name)

    def test_groff_finds_no_fault(self):
        if shutil.which("man") is None:
            self.skipTest("man is not there")
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([sys.executable, ROOT / "scripts" / "man_pages.py", BIN, directory], check=True, timeout=60)
            pages = sorted(Path(directory).iterdir())
            self.assertEqual(len(pages), len(COMMANDS))
            ran = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", *pages], timeout=120,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"})
            self.assertEqual(ran.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
