"""The Kubernetes manifests, without a cluster. Arguments: the root of the sources, the folder of the programs."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import jsonschema
import yaml

from deployed import DEPLOY, ROOT, check_arguments

KUBERNETES = DEPLOY / "kubernetes"
BASE = KUBERNETES / "base"
PAGE = (ROOT / "docs" / "many-machines.md").read_text()
SCHEMAS = json.loads((ROOT / "tests" / "deploy" / "kubernetes" / "schemas.json").read_text())
IMAGE_USER = re.search(r"^USER (\d+)", (DEPLOY / "docker" / "Dockerfile").read_text(), re.M).group(1)
METRICS = (ROOT / "services" / "front" / "metrics.cc").read_text()
# Of files named by a flag, the permission bits that the servers refuse (services/common/token_file).
REFUSED_MODES = {"--token-file": 0o022, "--worker-token": 0o077}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def kustomization():
    return yaml.safe_load((BASE / "kustomization.yaml").read_text())


def objects_of(file):
    return list(yaml.safe_load_all(file.read_text()))


def snippets():
    """The YAML of the page, by its first key."""
    found = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)]
    return {next(iter(one)): one for one in found}


def validate(manifest):
    kind = SCHEMAS["kinds"][f"{manifest['apiVersion']} {manifest['kind']}"]
    jsonschema.Draft7Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMAS["$defs"]}).validate(manifest)


def kustomized(test, folder):
    if shutil.which("kubectl") is None:
        test.skipTest("kubectl is not there")
    built = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60)
    test.assertEqual(built.returncode, 0, built.stderr)
    return list(yaml.safe_load_all(built.stdout))


class Manifests(unittest.TestCase):
    def setUp(self):
        self.objects = [one for file in kustomization()["resources"] for one in objects_of(BASE / file)]
        self.workloads = {one["metadata"]["name"]: one for one in self.objects
                          if one["kind"] in ("Deployment", "StatefulSet")}
        self.pods = {name: one["spec"]["template"] for name, one in self.workloads.items()}
        self.model = {one["kind"]: one for one in objects_of(KUBERNETES / "model.yaml")}

    def of_kind(self, kind):
        return {one["metadata"]["name"]: one for one in self.objects if one["kind"] == kind}

    def container(self, name):
        (container,) = self.pods[name]["spec"]["containers"]
        return container

    def flags(self, name):
        return dict(re.match(r"(--[\w-]+)=?(.*)", word).groups() for word in self.container(name)["args"][1:])

    def ports(self, name):
        return {port["name"]: port["containerPort"] for port in self.container(name)["ports"]}

    def selected(self, labels):
        return [name for name, pod in self.pods.items() if labels.items() <= pod["metadata"]["labels"].items()]


class KubernetesTest(Manifests):
    def test_the_schemas_take_them(self):
        self.assertEqual({one["kind"] for one in [*self.objects, *self.model.values()]},
                         {kind.split()[-1] for kind in SCHEMAS["kinds"]})
        for one in [*self.objects, *self.model.values()]:
            with self.subTest(one["metadata"]["name"], kind=one["kind"]):
                validate(one)

    def test_the_schemas_refuse_what_is_wrong(self):
        for field, value in (("replicas", "two"), ("replica", 2), ("selector", None)):
            wrong = copy.deepcopy(self.workloads["ete-front"])
            wrong["spec"][field] = value
            if value is None:
                del wrong["spec"][field]
            with self.assertRaises(jsonschema.ValidationError, msg=field):
                validate(wrong)

    def test_kustomize_takes_every_file(self):
        listed = set(kustomization()["resources"])
        self.assertEqual(listed, {file.name for file in BASE.glob("*.yaml")} - {"kustomization.yaml"})
        whole = kustomized(self, BASE)
        self.assertEqual(len(whole), len(self.objects))
        for one in whole:
            self.assertEqual(one["metadata"]["namespace"], "ete")
            validate(one)

    def test_selectors_find_their_pods(self):
        for name, workload in self.workloads.items():
            self.assertEqual(self.selected(workload["spec"]["selector"]["matchLabels"]), [name])
        selectors = {"Service": lambda spec: spec["selector"],
                     "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
                     "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"]}
        for kind, selector in selectors.items():
            found = self.of_kind(kind)
            self.assertEqual(set(found), set(self.workloads), kind)
            for name, one in found.items():
                self.assertEqual(self.selected(selector(one["spec"])), [name], kind)

    def test_autoscalers_find_their_targets(self):
        scalers = self.of_kind("HorizontalPodAutoscaler")
        self.assertEqual(set(scalers), set(self.workloads))
        for name, scaler in scalers.items():
            target = scaler["spec"]["scaleTargetRef"]
            self.assertEqual((target["kind"], target["name"]), (self.workloads[name]["kind"], name))
            # Else each kubectl apply undoes what the autoscaler did.
            self.assertNotIn("replicas", self.workloads[name]["spec"])

    def test_the_queue_metric_is_exported(self):
        (metric,) = self.of_kind("HorizontalPodAutoscaler")["ete-worker"]["spec"]["metrics"]
        name = metric["external"]["metric"]["name"]
        figure = re.search(rf'{{"{name}".*?MetricType::(\w+)', METRICS, re.S)
        self.assertTrue(figure, f"services/front/metrics.cc exports no {name}")
        self.assertEqual(figure.group(1), "Gauge")
        (rule,) = snippets()["externalRules"]["externalRules"]
        self.assertEqual(rule["seriesQuery"], name)

    def test_ports_are_listened_at(self):
        for name in self.pods:
            ports, flags = self.ports(name), self.flags(name)
            listened = {int(flags[flag].split(":")[-1]) for flag in ("--listen", "--http") if flag in flags}
            self.assertEqual(set(ports.values()), listened, name)
            for port in self.of_kind("Service")[name]["spec"]["ports"]:
                self.assertEqual((port["port"], port["targetPort"]), (ports[port["name"]], port["name"]))

    def test_probes_ask_what_is_there(self):
        for name in self.pods:
            container, ports = self.container(name), self.ports(name)
            control = self.flags(name)["--control"]
            (mounted,) = [mount["name"] for mount in container["volumeMounts"]
                          if str(Path(control.removeprefix("unix:")).parent) == mount["mountPath"]]
            self.assertIn("emptyDir", {volume["name"]: volume for volume in self.pods[name]["spec"]["volumes"]}[mounted])
            for kind in PROBES:
                probe = container[kind]
                if "tcpSocket" in probe:
                    self.assertIn(probe["tcpSocket"]["port"], ports, f"{name} {kind}")
                    continue
                words = probe["exec"]["command"]
                check_arguments(self, words)
                self.assertEqual(words[:4], ["ete", "health", "--address", control], f"{name} {kind}")
                # It tells why before it is killed.
                self.assertLess(float(words[words.index("--timeout") + 1]), probe["timeoutSeconds"])
            self.assertIn("exec", container["readinessProbe"], name)
        # A front without workers is not SERVING, and to restart it gives it none.
        self.assertIn("tcpSocket", self.container("ete-front")["livenessProbe"])
        startup = self.container("ete-worker")["startupProbe"]
        self.assertGreaterEqual(startup["periodSeconds"] * startup["failureThreshold"], 600)

    def test_commands_are_right(self):
        for name, pod in self.pods.items():
            container = self.container(name)
            check_arguments(self, container["args"])
            wait = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1])
            self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], wait + int(self.flags(name)["--drain-grace"]))

    def test_fronts_find_workers(self):
        host, port = re.fullmatch(r"dns:([\w-]+):(\d+)", self.flags("ete-front")["--workers"]).groups()
        service = self.of_kind("Service")[host]["spec"]
        self.assertEqual(service["clusterIP"], "None")
        self.assertEqual(self.selected(service["selector"]), ["ete-worker"])
        self.assertEqual(int(port), self.ports("ete-worker")["grpc"])
        self.assertEqual(self.workloads["ete-worker"]["spec"]["serviceName"], host)

    def test_pods_may_do_little(self):
        copying = {"ete-model-copy": self.model["Pod"]}
        for name, pod in {**self.pods, **copying}.items():
            spec = pod["spec"]
            self.assertIs(spec["automountServiceAccountToken"], False, name)
            self.assertIs(spec["securityContext"]["runAsNonRoot"], True, name)
            self.assertEqual(str(spec["securityContext"]["runAsUser"]), IMAGE_USER, name)
            self.assertEqual(str(spec["securityContext"]["fsGroup"]), IMAGE_USER, name)
            self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", name)
            for container in spec["containers"]:
                security = container["securityContext"]
                self.assertIs(security["allowPrivilegeEscalation"], False, name)
                self.assertIs(security["readOnlyRootFilesystem"], True, name)
                self.assertEqual(security["capabilities"]["drop"], ["ALL"], name)
                self.assertIn("memory", container["resources"]["limits"], name)
                self.assertEqual({mount["name"] for mount in container["volumeMounts"]},
                                 {volume["name"] for volume in spec["volumes"]}, name)

    def test_workers_talk_to_fronts_alone(self):
        policies = {name: policy["spec"] for name, policy in self.of_kind("NetworkPolicy").items()}
        for policy in policies.values():
            self.assertEqual(set(policy["policyTypes"]), {"Ingress", "Egress"})
        (rule,) = policies["ete-worker"]["ingress"]
        (source,) = rule["from"]
        self.assertEqual(list(source), ["podSelector"])
        self.assertEqual(self.selected(source["podSelector"]["matchLabels"]), ["ete-front"])
        self.assertEqual([port["port"] for port in rule["ports"]], ["grpc"])
        self.assertEqual(policies["ete-worker"]["egress"], [])
        clients = policies["ete-front"]["ingress"]
        self.assertEqual({port["port"] for rule in clients for port in rule["ports"]}, set(self.ports("ete-front")))
        workers, names = policies["ete-front"]["egress"]
        self.assertEqual(self.selected(workers["to"][0]["podSelector"]["matchLabels"]), ["ete-worker"])
        self.assertEqual([port["port"] for port in workers["ports"]], ["grpc"])
        self.assertEqual({(port["port"], port["protocol"]) for port in names["ports"]}, {(53, "UDP"), (53, "TCP")})

    def test_workers_read_the_model_that_is_copied(self):
        claim = self.model["PersistentVolumeClaim"]
        self.assertIn("ReadWriteMany", claim["spec"]["accessModes"])
        paths = {}
        for pod in (self.pods["ete-worker"], self.model["Pod"]):
            (volume,) = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
            self.assertEqual(volume["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])
            (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
            paths[pod["spec"]["containers"][0]["name"]] = mount
        self.assertIs(paths["worker"]["readOnly"], True)
        self.assertEqual(str(Path(self.flags("ete-worker")["--model"]).parent), paths["worker"]["mountPath"])
        copied = re.search(r"kubectl --namespace ete cp \S+ ([\w-]+):(\S+)", PAGE)
        self.assertEqual(copied.groups(), (self.model["Pod"]["metadata"]["name"],
                                           f"{paths['copy']['mountPath']}/{Path(self.flags('ete-worker')['--model']).name}"))


class Secrets(Manifests):
    def created(self):
        """By the commands of the page: name -> {key: file}."""
        made = {}
        for command in re.findall(r"^kubectl .*create secret generic .*(?:\\\n.*)*", PAGE, re.M):
            words = shlex.split(command.replace("\\\n", " "))
            files = [word.removeprefix("--from-file=") for word in words if word.startswith("--from-file=")]
            made[words[words.index("generic") + 1]] = dict(
                file.split("=", 1) if "=" in file else (Path(file).name, file) for file in files)
        return made

    def mounted(self, name):
        """Folder -> the Secret that is there."""
        volumes = {volume["name"]: volume["secret"] for volume in self.pods[name]["spec"]["volumes"] if "secret" in volume}
        return {mount["mountPath"]: volumes[mount["name"]] for mount in self.container(name)["volumeMounts"]
                if mount["name"] in volumes}

    def test_nobody_is_let_in_without_one(self):
        worker, front = self.flags("ete-worker"), self.flags("ete-front")
        for flag in ("--tls-cert", "--tls-key", "--tls-client-ca"):
            self.assertIn(flag, worker)
        for flag in ("--tls-cert", "--tls-key", "--token-file", "--worker-tls-ca", "--worker-tls-cert", "--worker-tls-key"):
            self.assertIn(flag, front)
        for flags in (worker, front):
            self.assertNotIn("--insecure-listen-anywhere", flags)

    def test_each_file_is_of_a_secret_that_the_page_makes(self):
        created, used = self.created(), {}
        for name in self.pods:
            folders = self.mounted(name)
            for flag, value in self.flags(name).items():
                if not re.search(r"-(cert|key|ca|file|token)$", flag):
                    continue
                self.assertIn(str(Path(value).parent), folders, f"{name} {flag}")
                secret = folders[str(Path(value).parent)]
                self.assertIn(Path(value).name, created.get(secret["secretName"], {}), f"{name} {flag}")
                used.setdefault(secret["secretName"], set()).add(Path(value).name)
                # Readable through the pod's group, as the files are root's.
                self.assertTrue(secret["defaultMode"] & 0o040, flag)
                self.assertFalse(secret["defaultMode"] & (REFUSED_MODES.get(flag, 0) | 0o007), flag)
        self.assertEqual({name: set(files) for name, files in created.items()}, used)

    def test_the_certificates_are_what_the_servers_ask_for(self):
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory, "certificates")
            script = [KUBERNETES / "certificates.sh", folder]
            ran = subprocess.run(script, capture_output=True, text=True, timeout=60)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "", ""))
            self.assertEqual([file.name for file in folder.iterdir() if file.stat().st_mode & 0o077], [])
            again = subprocess.run(script, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(again.returncode, 0)
            self.assertIn("File exists", again.stderr)

            def verify(certificate, *asked):
                return subprocess.run(["openssl", "verify", "-CAfile", folder / "ca.crt", *asked, folder / certificate],
                                      capture_output=True, text=True, timeout=60)

            files = {name: {key: Path(file) for key, file in keys.items()} for name, keys in self.created().items()}
            worker = self.flags("ete-front")["--workers"].split(":")[1]
            asked = {"ete-worker-tls": ["-purpose", "sslserver", "-verify_hostname", worker],
                     "ete-front-client-tls": ["-purpose", "sslclient"],
                     "ete-front-tls": ["-purpose", "sslserver", "-verify_hostname", "ete-front"]}
            for secret, purpose in asked.items():
                for file in files[secret].values():
                    self.assertTrue((folder / file.name).exists(), file)
                found = verify(files[secret]["tls.crt"].name, *purpose)
                self.assertEqual(found.returncode, 0, found.stderr)
                keys = [subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=60).stdout for words in
                        (["x509", "-noout", "-pubkey", "-in", folder / files[secret]["tls.crt"].name],
                         ["pkey", "-pubout", "-in", folder / files[secret]["tls.key"].name])]
                self.assertEqual(keys[0], keys[1], secret)
            # What a server shows is not for clients, so it makes nobody a front.
            for secret in ("ete-worker-tls", "ete-front-tls"):
                self.assertNotEqual(verify(files[secret]["tls.crt"].name, "-purpose", "sslclient").returncode, 0, secret)


class Page(Manifests):
    def test_prometheus_finds_the_fronts(self):
        (job,) = snippets()["scrape_configs"]["scrape_configs"]
        self.assertEqual(job["scheme"], "https")
        (keep,) = [one for one in job["relabel_configs"] if one.get("action") == "keep"]
        self.assertEqual(keep["source_labels"], ["__meta_kubernetes_pod_container_port_name"])
        self.assertEqual([name for name in self.pods if keep["regex"] in self.ports(name)], ["ete-front"])
        self.assertEqual(job["kubernetes_sd_configs"][0]["namespaces"]["names"], [kustomization()["namespace"]])
        self.assertIn(f"DNS:{job['tls_config']['server_name']},", (KUBERNETES / "certificates.sh").read_text())

    def test_the_overlay_changes_what_is_there(self):
        overlay = snippets()["resources"]
        self.assertEqual([image["name"] for image in overlay["images"]], [image["name"] for image in kustomization()["images"]])
        for patch in overlay["patches"]:
            self.assertIn(patch["target"]["name"], self.of_kind(patch["target"]["kind"]))
            operations = yaml.safe_load(patch["patch"])
            self.assertEqual([one["op"] for one in operations], ["replace"] * len(operations))
            for one in operations:
                place = self.of_kind(patch["target"]["kind"])[patch["target"]["name"]]
                for step in one["path"].strip("/").split("/"):
                    place = place[int(step) if isinstance(place, list) else step]
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(BASE, Path(directory, "base"))
            Path(directory, "overlay").mkdir()
            Path(directory, "overlay", "kustomization.yaml").write_text(yaml.safe_dump(overlay))
            whole = kustomized(self, Path(directory, "overlay"))
        for one in whole:
            validate(one)
        image = overlay["images"][0]
        self.assertEqual({one["spec"]["template"]["spec"]["containers"][0]["image"] for one in whole
                          if one["kind"] in ("Deployment", "StatefulSet")},
                         {f"{image['newName']}:{image['newTag']}"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
