"""The Kubernetes manifests, without a cluster. Arguments: the root of the sources, the folder of the programs."""

import json
import re
import shutil
import subprocess
import sys
import unittest

import jsonschema
import yaml

from deployed import DEPLOY, ROOT, check_arguments

BASE = DEPLOY / "kubernetes" / "base"
SCHEMAS = json.loads((ROOT / "tests" / "deploy" / "kubernetes" / "schemas.json").read_text())
IMAGE_USER = re.search(r"^USER (\d+)", (DEPLOY / "docker" / "Dockerfile").read_text(), re.M).group(1)


def kustomization():
    return yaml.safe_load((BASE / "kustomization.yaml").read_text())


def objects():
    return [one for file in kustomization()["resources"] for one in yaml.safe_load_all((BASE / file).read_text())]


def validate(manifest):
    kind = SCHEMAS["kinds"][f"{manifest['apiVersion']} {manifest['kind']}"]
    jsonschema.Draft7Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMAS["$defs"]}).validate(manifest)


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.objects = objects()
        self.workloads = {one["metadata"]["name"]: one for one in self.objects
                          if one["kind"] in ("Deployment", "StatefulSet")}

    def of_kind(self, kind):
        return [one for one in self.objects if one["kind"] == kind]

    def pods(self):
        return {name: one["spec"]["template"] for name, one in self.workloads.items()}

    def selected(self, labels):
        return [name for name, pod in self.pods().items() if labels.items() <= pod["metadata"]["labels"].items()]

    def test_the_schemas_take_them(self):
        for one in self.objects:
            with self.subTest(one["metadata"]["name"], kind=one["kind"]):
                validate(one)

    def test_the_schemas_refuse_what_is_wrong(self):
        deployment = self.workloads["ete-front"]
        for field, value in (("replicas", "two"), ("replica", 2), ("selector", None)):
            wrong = json.loads(json.dumps(deployment))
            if value is None:
                del wrong["spec"][field]
            else:
                wrong["spec"][field] = value
            with self.assertRaises(jsonschema.ValidationError, msg=field):
                validate(wrong)

    def test_kustomize_lists_every_file(self):
        listed = set(kustomization()["resources"])
        self.assertEqual(listed, {file.name for file in BASE.glob("*.yaml")} - {"kustomization.yaml"})
        if shutil.which("kubectl"):
            built = subprocess.run(["kubectl", "kustomize", BASE], capture_output=True, text=True, timeout=60)
            self.assertEqual(built.returncode, 0, built.stderr)
            whole = list(yaml.safe_load_all(built.stdout))
            self.assertEqual(len(whole), len(self.objects))
            for one in whole:
                self.assertEqual(one["metadata"]["namespace"], "ete")
                validate(one)

    def test_selectors_find_their_pods(self):
        for name, workload in self.workloads.items():
            self.assertEqual(self.selected(workload["spec"]["selector"]["matchLabels"]), [name])
        for service in self.of_kind("Service"):
            self.assertEqual(self.selected(service["spec"]["selector"]), [service["metadata"]["name"]])
        for budget in self.of_kind("PodDisruptionBudget"):
            self.assertEqual(self.selected(budget["spec"]["selector"]["matchLabels"]), [budget["metadata"]["name"]])
        for policy in self.of_kind("NetworkPolicy"):
            self.assertEqual(self.selected(policy["spec"]["podSelector"]["matchLabels"]), [policy["metadata"]["name"]])

    def test_autoscalers_find_their_targets(self):
        for scaler in self.of_kind("HorizontalPodAutoscaler"):
            target = scaler["spec"]["scaleTargetRef"]
            self.assertEqual(self.workloads[target["name"]]["kind"], target["kind"])

    def test_the_queue_metric_is_exported(self):
        exported = ROOT / "services" / "front" / "metrics.cc"
        if not exported.exists():
            self.skipTest("this front exports no metrics")
        metrics = [metric["external"]["metric"]["name"] for scaler in self.of_kind("HorizontalPodAutoscaler")
                   for metric in scaler["spec"]["metrics"] if metric["type"] == "External"]
        self.assertTrue(metrics)
        for name in metrics:
            self.assertIn(f'"{name}"', exported.read_text())

    def test_ports_are_listened_at(self):
        for name, pod in self.pods().items():
            (container,) = pod["spec"]["containers"]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            listened = {int(port) for port in re.findall(r"--(?:listen|http)=[\d.]+:(\d+)", " ".join(container["args"]))}
            self.assertEqual(set(ports.values()), listened, name)
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe].get("grpc") or container[probe]["tcpSocket"]
                self.assertIn(asked["port"], [*ports, *ports.values()], f"{name} {probe}")
            (service,) = [one for one in self.of_kind("Service") if one["metadata"]["name"] == name]
            for port in service["spec"]["ports"]:
                self.assertIn(port["targetPort"], ports)

    def test_commands_are_right(self):
        for pod in self.pods().values():
            (container,) = pod["spec"]["containers"]
            check_arguments(self, container["args"])
            drain = int(re.search(r"--drain-grace=(\d+)", " ".join(container["args"])).group(1))
            self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], drain)
        services = {one["metadata"]["name"] for one in self.of_kind("Service")}
        front = self.pods()["ete-front"]["spec"]["containers"][0]["args"]
        (worker,) = [word for word in front if word.startswith("--worker=")]
        self.assertIn(re.match(r"--worker=(?:dns:)?([\w-]+):\d+$", worker).group(1), services)

    def test_pods_may_do_little(self):
        for name, pod in self.pods().items():
            spec = pod["spec"]
            self.assertIs(spec["automountServiceAccountToken"], False)
            self.assertIs(spec["securityContext"]["runAsNonRoot"], True)
            self.assertEqual(str(spec["securityContext"]["runAsUser"]), IMAGE_USER, name)
            self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            for container in spec["containers"]:
                security = container["securityContext"]
                self.assertIs(security["allowPrivilegeEscalation"], False)
                self.assertIs(security["readOnlyRootFilesystem"], True)
                self.assertEqual(security["capabilities"]["drop"], ["ALL"])
                self.assertIn("memory", container["resources"]["limits"])
                claims = [claim["metadata"]["name"] for claim in self.workloads[name]["spec"].get("volumeClaimTemplates", [])]
                volumes = claims + [volume["name"] for volume in spec["volumes"]]
                for mount in container["volumeMounts"]:
                    self.assertIn(mount["name"], volumes)

    def test_workers_talk_to_fronts_alone(self):
        policies = {policy["metadata"]["name"]: policy["spec"] for policy in self.of_kind("NetworkPolicy")}
        (rule,) = policies["ete-worker"]["ingress"]
        (source,) = rule["from"]
        self.assertEqual(self.selected(source["podSelector"]["matchLabels"]), ["ete-front"])
        self.assertEqual(policies["ete-worker"]["egress"], [])
        self.assertIn("Egress", policies["ete-worker"]["policyTypes"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
