"""The pages under docs/. Arguments: the root of the sources, the folder of the programs."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import yaml

from deployed import BIN, ROOT, check_arguments

DOCS = ROOT / "docs"
STORY = ROOT / "models" / "story-8m"
PAGES = ["quick-start.md", "four-gigabyte-card.md", "deploy.md", "many-machines.md"]
DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def blocks(page):
    found = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    return [text for language, text in found if not language]


def commands(page):
    """The commands of the page; where a block shows output too, they begin with "$ "."""
    for block in blocks(page):
        lines = block.splitlines()
        if lines[0].startswith("$ "):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            yield from line.split(" && ")


def run(command, **more):
    """A command of the documents, with the programs of this build and the small model."""
    command = command.replace("build/release/bin", str(BIN)).replace("PATH", str(STORY))
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, cwd=ROOT, **more)


class Generated(unittest.TestCase):
    def check(self, script):
        ran = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True,
                             timeout=120)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_the_api_is_what_the_protos_say(self):
        self.check("api_docs.py")

    def test_the_errors_are_those_of_the_sources(self):
        self.check("error_docs.py")


class Errors(unittest.TestCase):
    def test_the_kinds_have_the_codes_of_the_tables(self):
        rows = {cells[0]: cells for cells in
                ([cell.strip() for cell in line.strip("|").split("|")]
                 for line in (DOCS / "errors.md").read_text().splitlines() if line.count("|") == 7)}
        front = (ROOT / "services" / "front" / "status.cc").read_text()
        worker = (ROOT / "services" / "worker" / "status.cc").read_text()
        http = (ROOT / "services" / "front" / "http" / "openai_error.cc").read_text()
        grpc = dict(re.findall(r"FrontErrorCode::(\w+), grpc::StatusCode::(\w+)", front))
        grpc |= dict(re.findall(r"case ErrorCode::(\w+):\s+return grpc::StatusCode::(\w+);", worker))
        statuses = dict(re.findall(r"FrontErrorCode::(\w+), (\d+),", http))
        self.assertGreater(len(grpc), 8)
        self.assertEqual(set(grpc) | set(statuses), set(rows) - {"kind", "---"})
        for kind, code in grpc.items():
            self.assertEqual(rows[kind][3], code, kind)
        for kind, status in statuses.items():
            self.assertEqual(rows[kind][4], status, kind)


class Compare(unittest.TestCase):
    def test_every_figure_is_one_of_the_readme(self):
        measured = (ROOT / "README.md").read_text().split("## Benchmark")[1].split("\n\n| |")[1].split("\n\n")[0]
        medians = {cells[0].strip(): [re.match(r" *([\d.]+)", cell).group(1) for cell in cells[1:]]
                   for cells in (line.strip("|").split("|") for line in measured.splitlines() if re.search(r"\d", line))
                   if re.match(r" *[\d.]+", cells[1])}
        page = (DOCS / "compare.md").read_text().split("Nothing is claimed")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()
                if re.match(r"\| [a-z].*\d", line)]
        self.assertEqual({name: figures for name, *figures in rows}, medians)


class FourGigabyteCard(unittest.TestCase):
    def test_the_plans_are_what_ete_inspect_prints(self):
        shown = [block for block in blocks("four-gigabyte-card.md") if block.startswith("$ ")]
        self.assertGreater(len(shown), 5)
        for block in shown:
            command, *lines = block.splitlines()
            ran = run(f"build/release/bin/{command[2:]}")
            printed = (ran.stdout + ran.stderr).splitlines()
            self.assertTrue(lines, command)
            for line in lines:
                self.assertIn(line, printed, command)


class Commands(unittest.TestCase):
    """Each command of the pages is run here, or what it names is checked."""

    def check_docker(self, words):
        if words[1] == "compose":
            files = [words[i + 1] for i, word in enumerate(words) if word == "--file"]
            self.assertTrue(files)
            for file in files:
                self.assertTrue(yaml.safe_load((ROOT / file).read_text())["services"])
        elif words[1] == "build":
            self.assertTrue((ROOT / words[words.index("--file") + 1]).exists())
            self.assertRegex(DOCKERFILE, rf"(?m)^FROM .* AS {words[words.index('--target') + 1]}$")
        else:
            image = words[-1].split(":")[1]
            self.assertRegex(DOCKERFILE, rf"(?m)^FROM .* AS {image}$")
            port = words[words.index("--publish") + 1].split(":")[-1]
            self.assertRegex(DOCKERFILE, rf"(?m)^EXPOSE .*\b{port}\b")

    def check_kubectl(self, words):
        """Secrets and what is copied: kubernetes_test.py."""
        folder = ROOT / "deploy" / "kubernetes"
        manifests = [one for file in (folder / "model.yaml", *(folder / "base").glob("*.yaml"))
                     for one in yaml.safe_load_all(file.read_text())]
        names = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in manifests if "metadata" in one}
        kustomization = yaml.safe_load((folder / "base" / "kustomization.yaml").read_text())
        for word, following in zip(words, words[1:]):
            if word in ("namespace", "--namespace"):
                self.assertEqual(following, kustomization["namespace"])
        for word in words[1:]:
            if word.startswith("deploy/"):
                path = ROOT / word
                self.assertTrue((path / "kustomization.yaml").exists() if path.is_dir() else path.exists(), word)
            elif re.fullmatch(r"[a-z]+/[a-z-]+", word):
                self.assertIn(word, names)

    def check_build(self, words):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        kind = "buildPresets" if "--build" in words else "configurePresets"
        if words[0] == "cmake":
            self.assertIn(words[words.index("--preset") + 1], [preset["name"] for preset in presets[kind]])

    def check_system(self, words):
        """systemctl, install and apt: what package_test.py finds in the package."""
        units = {file.stem for file in (ROOT / "deploy" / "systemd").glob("*.service")}
        if words[1] == "systemctl":
            self.assertLessEqual(set(words[4:]), units)
        elif words[1] == "install":
            self.assertIn(f"MODEL={words[-1]}\n", (ROOT / "deploy" / "systemd" / "worker.conf").read_text())
        else:
            version = re.search(r"project\(.* VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
            self.assertTrue(words[-1].endswith(f"/edge-transformer-engine_{version}_amd64.deb"), words)

    def test_every_command_is_right(self):
        checks = {"docker": self.check_docker, "kubectl": self.check_kubectl, "cmake": self.check_build,
                  "cpack": self.check_build, "sudo": self.check_system}
        run_below = ("source <(scripts/completions.py", "scripts/man_pages.py", "man build/man/", "curl ",
                     "scripts/quickstart.sh", "umask 077", "deploy/kubernetes/certificates.sh certificates")
        for page in PAGES:
            for command in commands(page):
                with self.subTest(command, page=page):
                    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
                    program = Path(words[0]).name
                    if program in ("ete", "ete-worker", "ete-front"):
                        check_arguments(self, words)
                    elif program in checks:
                        checks[program](words)
                    else:
                        self.assertTrue(command.startswith(run_below), f"nothing checks {command}")

    def test_those_of_the_quick_start_do_what_they_say(self):
        with tempfile.TemporaryDirectory() as directory:
            env = {**os.environ, "TMPDIR": directory}
            for command in commands("quick-start.md"):
                if "--model PATH" in command and " serve " not in command:
                    ran = run(command.replace("--sessions 1,4", "--sessions 1 --steps 2 --repeats 1 --prompt 16")
                              + " --device cpu", env=env)
                    self.assertEqual(ran.returncode, 0, f"{command}: {ran.stderr}")
                    self.assertTrue(ran.stdout)
            ran = run("source <(scripts/completions.py bash build/release/bin) && complete -p ete")
            self.assertIn("-F _ete ete", ran.stdout)
            ran = run(f"scripts/man_pages.py build/release/bin {directory}/man && ls {directory}/man/ete-run.1")
            self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_the_server_of_the_quick_start_answers_its_curl(self):
        serve, curl = [command for command in commands("quick-start.md") if " serve " in command or "curl" in command]
        with socket.socket() as grpc, socket.socket() as http:
            for one in (grpc, http):
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in (grpc, http)]
        words = shlex.split(serve.replace("build/release/bin", str(BIN)).replace("PATH", str(STORY))
                            .replace("127.0.0.1:8080", f"127.0.0.1:{ports[1]}"))
        server = subprocess.Popen([*words, "--listen", f"127.0.0.1:{ports[0]}", "--device", "cpu"],
                                  stderr=subprocess.DEVNULL)
        try:
            url, body = re.search(r"curl (\S+) -d '(.*)'", curl).groups()
            request = urllib.request.Request(url.replace("8080", str(ports[1])), data=body.encode(),
                                             headers={"Content-Type": "application/json"})
            end = time.monotonic() + 120
            while True:
                try:
                    reply = json.load(urllib.request.urlopen(request, timeout=60))
                    break
                except OSError:
                    self.assertLess(time.monotonic(), end, "no answer in 120 s")
                    self.assertIsNone(server.poll())
                    time.sleep(0.2)
            self.assertTrue(reply["choices"][0]["text"])
        finally:
            server.terminate()
            server.wait(60)

    def test_who_may_call_pasted_into_one_shell(self):
        block = next(block for block in blocks("operations.md") if "ete token" in block)
        with socket.socket() as grpc, socket.socket() as http, tempfile.TemporaryDirectory() as directory:
            for one in (grpc, http):
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in (grpc, http)]
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out",
                            "server.pem", "-days", "1", "-subj", "/CN=localhost", "-addext",
                            "subjectAltName=IP:127.0.0.1"], cwd=directory, check=True, capture_output=True)
            Path(directory, "ca.pem").write_text(Path(directory, "server.pem").read_text())
            grpc.close()
            http.close()
            pasted = (block.replace("build/release/bin", str(BIN)).replace("PATH", f"{STORY} --device cpu")
                      .replace(":50051", f":{ports[0]}").replace(":8443", f":{ports[1]}"))
            # The shell has the usual mask of a login, and ends what it left running.
            script = f"umask 022\ntrap 'kill $(jobs -p); wait' EXIT\n{pasted}"
            ran = subprocess.run(["timeout", "--foreground", "120", "bash", "-e", "-c", script], capture_output=True,
                                 text=True, timeout=150, cwd=directory)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertTrue(ran.stdout.strip())

    def test_a_file_of_a_token_is_its_users_alone_and_nothing_holds_the_shell(self):
        for page in [file.name for file in DOCS.glob("*.md")]:
            for block in blocks(page):
                lines = block.splitlines()
                for i, line in enumerate(lines):
                    with self.subTest(line, page=page):
                        if "ete token" in line and ">" in line:
                            self.assertIn("umask 077", lines[:i])
                        if re.search(r"\bete serve\b|port-forward", line) and i + 1 < len(lines):
                            self.assertTrue(line.endswith("&"), line)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
