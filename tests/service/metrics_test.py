"""Metrics, logs and health of a front, over real processes. Arguments: the paths of ete-front, toy_worker and fake_worker."""

import re
import sys
import unittest

from http_servers import TEMPLATE, free_port
from processes import Front, Processes, eventually

FRONT, TOY_WORKER, FAKE_WORKER = sys.argv[1:4]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})? (\S+)")


def parsed(text):
    """{name and labels: value} of the text format, version 0.0.4. Anything that it does not allow is an error."""
    assert text.endswith("\n")
    types, helps, samples = {}, set(), {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert re.fullmatch(NAME, name) and name not in helps, line
            helps.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram") and name not in types, line
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            family = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
            assert family in types and (family == name) == (types[family] != "histogram"), line
            key = f"{name}{{{labels}}}" if labels else name
            assert key not in samples, line
            samples[key] = float(value)
            assert types[family] == "gauge" or samples[key] >= 0
    assert set(types) == helps
    for name in (name for name, kind in types.items() if kind == "histogram"):
        buckets = [value for key, value in samples.items() if key.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == samples[f"{name}_count"]
        assert f'{name}_bucket{{le="+Inf"}}' in samples
    return samples


class Observability(unittest.TestCase):
    def setUp(self):
        self.processes = Processes()
        self.addCleanup(self.processes.close)
        (self.processes.root / "template").write_text(TEMPLATE)

    def toy_front(self):
        path = self.processes.root / "worker"
        self.processes.start("toy", [TOY_WORKER, str(path), "toy", "4096", "1", str(self.processes.root / "template")])
        return Front(self.processes, FRONT, [f"unix:{path}"]).wait_until_healthy()

    def metrics(self, front):
        status, text, headers = front.ask("GET", "/metrics")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        return parsed(text)

    def test_counters_add_up(self):
        front = self.toy_front()
        before = self.metrics(front)
        self.assertEqual(before['ete_requests_total{outcome="ok"}'], 0)
        prompt = generated = 0
        for count in (1, 5, 9):
            usage = front.post("/v1/completions", prompt="hello", max_tokens=count, seed=1)[1]["usage"]
            prompt, generated = prompt + usage["prompt_tokens"], generated + usage["completion_tokens"]
        front.post("/v1/completions", prompt="hello", max_tokens=2, seed=1, cache_salt="reuse")
        front.post("/v1/completions", prompt="hello", temperature=-1)
        after = self.metrics(front)
        expected = {
            'ete_requests_total{outcome="ok"}': 4,
            'ete_requests_total{outcome="invalid_argument"}': 1,
            "ete_requests_running": 0,
            "ete_prompt_tokens_total": prompt + 6,
            "ete_generated_tokens_total": generated + 2,
            "ete_reused_tokens_total": 1,
            "ete_time_to_first_token_seconds_count": 4,
            "ete_inter_token_seconds_count": generated + 2 - 4,
            "ete_queue_seconds_count": 4,
            "ete_request_seconds_count": 5,
            "ete_calls_refused_total": 0,
        }
        self.assertEqual({name: after[name] for name in expected}, expected)
        self.assertAlmostEqual(after["ete_queue_seconds_sum"], 4 * 0.25e-3)
        self.assertGreater(after["ete_inter_token_seconds_sum"], 0.001 * (generated + 2 - 4))
        self.assertGreater(after["ete_front_host_bytes"], 1 << 20)

    def test_running_requests(self):
        front = self.toy_front()
        connection, events = front.stream("/v1/completions", prompt="hello", max_tokens=4000)
        next(events)
        self.assertEqual(self.metrics(front)["ete_requests_running"], 1)
        connection.close()
        self.assertTrue(eventually(lambda: self.metrics(front)["ete_requests_running"] == 0))
        self.assertEqual(self.metrics(front)['ete_requests_total{outcome="cancelled"}'], 1)

    def test_workers_tell_of_themselves(self):
        address = f"127.0.0.1:{free_port()}"
        self.processes.start("worker", [FAKE_WORKER, "--model=fake", f"--listen={address}"])
        front = Front(self.processes, FRONT, [address, "unix:/none"]).wait_until_healthy()
        label = f'{{worker="{address}"}}'
        self.assertTrue(eventually(lambda: f"ete_worker_host_bytes{label}" in self.metrics(front)))
        metrics = self.metrics(front)
        self.assertEqual(metrics[f"ete_worker_up{label}"], 1)
        self.assertEqual(metrics['ete_worker_up{worker="socket 2"}'], 0)
        for name in ("sessions", "queued_sessions", "passes_total", "pass_seconds_total", "last_pass_rows", "link_bytes_total",
                     "decode_rows_total", "prefill_rows_total", "device_bytes", "prefix_hits_total"):  # fmt: skip
            self.assertIn(f"ete_worker_{name}{label}", metrics)

    def test_every_request_is_logged_without_its_text(self):
        front = self.toy_front()
        front.headers = {"traceparent": PARENT}
        secret = "the sea shore's shells"
        text = front.post("/v1/completions", prompt=secret, max_tokens=40, seed=3)[1]["choices"][0]["text"]
        front.headers = {"traceparent": "01-nonsense"}
        front.post("/v1/completions", prompt=secret, max_tokens=2, cache_salt=secret)
        first, second = front.events("request ended", outcome="ok", model="toy")
        self.assertEqual((first["traceparent"], first["generated_tokens"]), (PARENT, "40"))
        self.assertEqual(int(first["prompt_tokens"]), len(secret) + 1)
        self.assertGreater(float(first["ms"]), float(first["first_token_ms"]))
        self.assertNotIn("traceparent", second)
        for kept_back in (secret, text, "nonsense"):
            self.assertNotIn(kept_back, self.processes.log("front"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
