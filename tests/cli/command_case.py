"""What tests that call `ete` have in common. Standard library only.

The program's arguments: the path of ete, the root of the sources, and whether ete was built with its services (0 or 1).
"""

import pathlib
import subprocess
import sys
import unittest

ETE, SOURCE, SERVICE = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] == "1"
GOLDEN = SOURCE / "tests" / "golden"
LLAMA = str(GOLDEN / "models" / "llama_gqa")
TIMEOUT = 120


def ete(*arguments, stdin=b"", **more):
    return subprocess.run([ETE, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT, **more)


class CommandLineTest(unittest.TestCase):
    def check_failure(self, result, code, *mentions):
        error = result.stderr.decode()
        self.assertEqual(result.returncode, code, error)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("ete"), error)
        for mention in mentions:
            self.assertIn(mention, error)
