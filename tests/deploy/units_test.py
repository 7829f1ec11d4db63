"""The units of systemd. Arguments: the root of the sources, the folder of the programs."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from deployed import BIN, DEPLOY, check_arguments

UNITS = DEPLOY / "systemd"
SERVICES = {"ete-worker.service": 0.6, "ete-front.service": 1.1}  # and the exposure that systemd may find at most


class Settings(dict):
    """A setting given twice is a list of both."""

    def __setitem__(self, key, value):
        if key in self and isinstance(value, list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def unit(name):
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), dict_type=Settings)
    parser.optionxform = str
    parser.read(UNITS / name)
    return parser


class UnitsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.copies = Path(directory.name)

    def analyze(self, *arguments):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not there")
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)

    def test_systemd_understands_them(self):
        copies = []
        for source in sorted(UNITS.glob("ete-*.*")):
            # The programs are where they were built, not yet where they will be.
            text = source.read_text().replace("/usr/bin/", f"{BIN}/")
            copies.append(self.copies / source.name)
            copies[-1].write_text(text)
        result = self.analyze("verify", "--man=no", *copies)
        said = [line for line in result.stderr.splitlines() if "/ete-" in line or line.startswith("ete-")]
        self.assertEqual(said, [])

    def test_little_is_exposed(self):
        for name, most in SERVICES.items():
            result = self.analyze("security", "--offline=true", f"--threshold={round(most * 10)}", UNITS / name)
            self.assertEqual(result.returncode, 0, result.stdout[-300:])

    def test_the_commands_are_right(self):
        for name in SERVICES:
            flags = UNITS / (name.removeprefix("ete-").removesuffix(".service") + ".conf")
            values = dict(re.findall(r"^(\w+)=(.*)$", flags.read_text(), re.M))
            line = unit(name)["Service"]["ExecStart"]
            for variable in re.findall(r"\$\{?(\w+)\}?", line):
                self.assertIn(variable, values, f"{flags.name} says no {variable}")
                line = re.sub(rf"\$\{{?{variable}\}}?", values[variable], line)
            check_arguments(self, shlex.split(line))

    def test_they_fit_each_other(self):
        worker, front = unit("ete-worker.service"), unit("ete-front.service")
        self.assertEqual(worker["Service"]["User"], front["Service"]["User"])
        self.assertIn("--workers ${WORKERS} ", front["Service"]["ExecStart"])
        address = re.search(r"^WORKERS=(.*)$", (UNITS / "front.conf").read_text(), re.M).group(1)
        self.assertEqual(address, f"unix:{unit('ete-worker.socket')['Socket']['ListenStream']}")
        self.assertEqual(unit("ete-worker.socket")["Socket"]["SocketUser"], worker["Service"]["User"])

    def test_the_sockets_are_those_that_the_services_take(self):
        for name in SERVICES:
            sockets = (UNITS / name.replace(".service", ".socket")).read_text().count("ListenStream=")
            taken = re.findall(r"fd:(\d+)", unit(name)["Service"]["ExecStart"])
            self.assertEqual(taken, [str(3 + index) for index in range(sockets)], name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
