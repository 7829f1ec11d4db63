"""The Debian package. Arguments: the root of the sources, the folder of the programs (of a build with CPackConfig.cmake)."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from deployed import BIN, COMMANDS, DEPLOY, ROOT

PROGRAMS = ("ete", "ete-front", "ete-worker")
# The project has no mail address, and links zlib with gRPC's other libraries (cmake/GrpcLink.cmake says why).
LINTIAN_LETS_PASS = ("bogus-mail-host", "bogus-mail-host-in-debian-changelog", "embedded-library")


def run(*arguments, **more):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=280, **more)


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = Path(directory.name)
        packed = run("cpack", "-G", "DEB", "--config", BIN.parent / "CPackConfig.cmake", "-B", cls.directory / "package")
        if packed.returncode != 0:
            raise AssertionError(packed.stdout + packed.stderr)
        (cls.package,) = (cls.directory / "package").glob("*.deb")
        cls.root = cls.directory / "root"
        run("dpkg-deb", "--extract", cls.package, cls.root)
        run("dpkg-deb", "--control", cls.package, cls.directory / "control")

    def control(self):
        return (self.directory / "control" / "control").read_text()

    def test_what_is_in_it(self):
        wanted = [f"usr/bin/{program}" for program in PROGRAMS]
        wanted += [f"usr/share/man/man1/{name.replace(' ', '-')}.1.gz" for name in COMMANDS]
        wanted += [f"usr/share/bash-completion/completions/{program}" for program in PROGRAMS]
        wanted += [f"usr/share/fish/vendor_completions.d/{program}.fish" for program in PROGRAMS]
        wanted += ["usr/share/zsh/vendor-completions/_ete", "usr/share/doc/edge-transformer-engine/copyright"]
        wanted += [f"lib/systemd/system/{unit.name}" for unit in (DEPLOY / "systemd").glob("ete-*.*")]
        wanted += [f"etc/ete/{server}.conf" for server in ("worker", "front")]
        for name in wanted:
            self.assertTrue((self.root / name).is_file(), name)
        conffiles = (self.directory / "control" / "conffiles").read_text().split()
        self.assertEqual(sorted(conffiles), sorted(f"/{name}" for name in wanted if name.startswith("etc/")))

    def test_the_units_name_files_of_the_package(self):
        for unit in (self.root / "lib/systemd/system").glob("*.service"):
            text = unit.read_text()
            for path in re.findall(r"^(?:ExecStart|EnvironmentFile)=(/\S+)", text, re.M):
                self.assertTrue((self.root / path[1:]).is_file(), path)
            user = re.search(r"^User=(\w+)", text, re.M).group(1)
            self.assertIn(f"EdgeTransformerEngine {user}\n", (self.directory / "control" / "postinst").read_text())

    def test_it_depends_on_the_libraries_that_the_programs_load(self):
        depends = re.search(r"^Depends: (.*)$", self.control(), re.M).group(1)
        for package in ("libc6", "libstdc++6", "adduser"):
            self.assertRegex(depends, rf"\b{re.escape(package)}\b")
        version = re.search(r"project\(.* VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertRegex(self.package.name, rf"^edge-transformer-engine_{re.escape(version)}_\w+\.deb$")

    def test_the_programs_run_from_it(self):
        ran = run(self.root / "usr/bin/ete", "run", "--model", ROOT / "models/story-8m", "--device", "cpu",
                  "--max-tokens", "2", "Once upon a time")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("no symbols", run("nm", self.root / "usr/bin/ete").stderr)

    def test_the_scripts_are_posix(self):
        scripts = [DEPLOY / "debian" / name for name in ("postinst", "prerm", "postrm")]
        for script in scripts:
            self.assertEqual(run("sh", "-n", script).returncode, 0)
        if shutil.which("shellcheck"):
            self.assertEqual(run("shellcheck", *scripts).stdout, "")

    def test_lintian_finds_no_fault(self):
        if shutil.which("lintian") is None:
            self.skipTest("lintian is not there")
        found = run("lintian", "--allow-root", "--no-cfg", "--fail-on", "none", "--suppress-tags",
                    ",".join(LINTIAN_LETS_PASS), self.package).stdout
        self.assertEqual([line for line in found.splitlines() if line.startswith("E:")], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
