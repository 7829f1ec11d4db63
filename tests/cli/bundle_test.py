"""scripts/bundle.sh. Arguments: the root of the sources, the build folder."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = sys.argv[1], sys.argv[2]
SCRIPT = pathlib.Path(ROOT, "scripts", "bundle.sh")


class BundleTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)

    def bundle(self, *arguments):
        return subprocess.run([SCRIPT, *arguments], capture_output=True, timeout=120, text=True)

    def test_generates_where_it_is_unpacked(self):
        packed = self.bundle(self.root / "ete.tar.gz", BUILD)
        self.assertEqual(packed.returncode, 0, packed.stderr)
        subprocess.run(["tar", "xzf", "ete.tar.gz"], cwd=self.root, check=True)
        unpacked = self.root / "ete-bundle"
        libraries = [library.name for library in (unpacked / "lib").iterdir()]
        self.assertIn("libstdc++.so.6", libraries)
        self.assertFalse([name for name in libraries if name.startswith(("libc.so", "ld-linux"))], libraries)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "LD_LIBRARY_PATH": str(unpacked / "lib")}
        run = subprocess.run(
            [unpacked / "bin" / "ete", "run", "--model=random:tiny", "--device=cpu", "--max-tokens=2", "hello"],
            capture_output=True, env=env, timeout=120,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        linked = subprocess.run(
            ["ldd", unpacked / "bin" / "ete-worker"], capture_output=True, env=env, check=True, text=True
        )
        self.assertIn(str(unpacked / "lib" / "libstdc++.so.6"), linked.stdout)

    def test_names_the_program_that_is_missing(self):
        packed = self.bundle(self.root / "ete.tar.gz", self.root)
        self.assertEqual(packed.returncode, 1)
        self.assertIn(f"{self.root}/bin/ete is missing", packed.stderr)
        self.assertFalse((self.root / "ete.tar.gz").exists())

    def test_wants_a_file(self):
        packed = self.bundle()
        self.assertEqual(packed.returncode, 2)
        self.assertIn("usage", packed.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
