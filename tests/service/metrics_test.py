"""Metrics, logs and health of a front, over real processes.

Arguments: the paths of ete-front, toy_worker, fake_worker and ete.
"""

import concurrent.futures
import json
import re
import signal
import subprocess
import sys
import time
import unittest

from http_servers import TEMPLATE, free_port
from processes import Front, Processes, eventually

FRONT, TOY_WORKER, FAKE_WORKER, ETE = sys.argv[1:5]
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

    def toy(self, step_ms=1):
        path = self.processes.root / "worker"
        self.processes.start("toy", [TOY_WORKER, str(path), "toy", "4096", str(step_ms),
                                     str(self.processes.root / "template")])  # fmt: skip
        return f"unix:{path}"

    def toy_front(self, step_ms=1, grace=1):
        return Front(self.processes, FRONT, [self.toy(step_ms)], grace=grace).wait_until_healthy()

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
        first, next_ones = after["ete_time_to_first_token_seconds_sum"], after["ete_inter_token_seconds_sum"]
        self.assertGreater(first, 0.001 * 4)
        self.assertGreater(next_ones, 0.001 * (generated + 2 - 4))
        self.assertLess(first + next_ones, after["ete_request_seconds_sum"])
        self.assertGreater(after["ete_front_host_bytes"], 1 << 20)

    def test_the_time_to_the_first_token_begins_with_the_request(self):
        """Also when its worker is lost before that, and another session gives it."""
        front = self.toy_front(step_ms=5000)
        before = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            reply = pool.submit(front.post, "/v1/completions", prompt="hello", max_tokens=1)
            self.assertTrue(eventually(lambda: self.metrics(front)["ete_requests_running"] == 1))
            time.sleep(1)
            self.processes.end("toy", signal.SIGKILL)
            self.toy()
            self.assertEqual(reply.result()[0], 200)
        took = time.monotonic() - before
        metrics = self.metrics(front)
        first = metrics["ete_time_to_first_token_seconds_sum"]
        self.assertEqual(metrics["ete_time_to_first_token_seconds_count"], 1)
        self.assertTrue(1 < first <= metrics["ete_request_seconds_sum"] < took, (first, took))
        logged = float(front.events("request ended", outcome="ok")[0]["first_token_ms"])
        self.assertAlmostEqual(logged / 1000, first, places=2)

    def test_waiting_for_a_worker_is_part_of_the_time_to_the_first_token(self):
        front = self.toy_front()
        self.processes.end("toy", signal.SIGKILL)
        self.assertTrue(eventually(lambda: front.ask("GET", "/health")[0] != 200))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            reply = pool.submit(front.post, "/v1/completions", prompt="hello", max_tokens=1)
            time.sleep(1)
            self.toy()
            self.assertEqual(reply.result()[0], 200)
        self.assertGreater(self.metrics(front)["ete_time_to_first_token_seconds_sum"], 1)

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
        self.assertGreater(metrics[f"ete_worker_host_bytes{label}"], 1 << 20)
        # Those of FakeEngine::status, each another.
        expected = {"sessions": 0, "queued_sessions": 6, "queued_tokens": 7, "passes_total": 0, "pass_seconds_total": 1.25,
                    "last_pass_rows": 11, "decode_rows_total": 12, "prefill_rows_total": 13, "link_bytes_total": 14,
                    "device_bytes": 15, "session_bytes": 512, "prefix_cache_bytes": 2048, "prefix_lookups_total": 5,
                    "prefix_hits_total": 4, "reused_tokens_total": 300, "link_idle_ratio": 0.375}  # fmt: skip
        self.assertEqual({name: metrics[f"ete_worker_{name}{label}"] for name in expected}, expected)
        named = {re.sub(r"\{.*", "", key)[len("ete_worker_"):] for key in metrics if key.startswith("ete_worker_")}
        self.assertEqual(named, {*expected, "up", "host_bytes"})
        self.assertEqual(front.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4)[0], 200)
        self.assertTrue(eventually(lambda: self.metrics(front)[f"ete_worker_passes_total{label}"] > 0))

    def test_sessions_of_a_worker(self):
        address = f"127.0.0.1:{free_port()}"
        self.processes.start("worker", [FAKE_WORKER, "--model=held", f"--listen={address}"])
        front = Front(self.processes, FRONT, [address]).wait_until_healthy()
        name = f'ete_worker_sessions{{worker="{address}"}}'
        self.assertTrue(eventually(lambda: self.metrics(front).get(name) == 0))
        connections = [front.connection() for _ in range(2)]
        for count, connection in enumerate(connections, 1):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": [1, 2, 3], "stream": True}))
            self.assertTrue(eventually(lambda: self.metrics(front)[name] == count))
            self.assertEqual(self.metrics(front)[f'ete_worker_session_bytes{{worker="{address}"}}'], 512 + 512 * count)
        for connection in connections:
            connection.close()
        self.assertTrue(eventually(lambda: self.metrics(front)[name] == 0))

    def health(self, address):
        """ete health: what it printed, and its complaint after the address."""
        done = subprocess.run([ETE, "health", "--address", address], capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr.split(": ")[-1]

    def test_health_says_no_while_a_worker_loads(self):
        address = f"unix:{self.processes.root}/slow"
        self.processes.start("slow", [FAKE_WORKER, "--model=slow", f"--listen={address}"])
        self.assertTrue(eventually((self.processes.root / "slow").exists))
        self.assertEqual(self.health(address), "NOT_SERVING\n")

    def test_health_says_no_while_a_front_drains(self):
        front = self.toy_front(step_ms=20, grace=60)  # the request outlives what is looked at
        self.assertEqual(self.health(front.listen), "SERVING\n")
        connection, events = front.stream("/v1/completions", prompt="hello", max_tokens=4000)
        next(events)
        self.processes.running["front"].send_signal(signal.SIGTERM)
        self.assertTrue(eventually(lambda: "stopping" in self.processes.log("front")))
        self.assertEqual(self.health(front.listen), "NOT_SERVING\n")
        connection.close()

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
