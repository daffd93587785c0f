"""What is named is one thing at a time; what several processes counted is read as one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.multiprocess import mark_process_dead

from polyrank.model.inference.runners import Runner
from polyrank.service.observe import metrics as metrics_module
from polyrank.service.observe.metrics import DIRECTORY, KEPT_SECONDS, Metrics

# One process's part: it serves two generations, one after the other, answers requests and tells its own numbers.
WORK = """
import json, os, sys
from polyrank.model.inference.runners import Runner
from polyrank.service.observe.metrics import Metrics
given = json.loads(sys.argv[1])
metrics = Metrics()
for generation in given["generations"]:
    metrics.show_generation(generation, "f", 1, 5.0)
    metrics.show_model("ranker", generation, "poly", "f", Runner("torch", "float32"))
metrics.show_model("reranker", "cross", "cross", "x", Runner("openvino", "bfloat16"))
metrics.show_trial(("tried", "f", 1))
metrics.show_trial(None)
metrics.show_snapshot(given["revision"], 100, 3)
metrics.show_scan("bytes", False)
metrics.queue_depth.inc(given["waiting"])
for _ in range(given["answers"]):
    metrics.observe_request("/rank", "POST", 200, 0.1)
metrics.in_flight.inc()
sys.stdout.write(metrics.render().decode())
sys.stdout.write(f"pid {os.getpid()}\\n")
"""


def work(directory: Path, **given: object) -> str:
    command = [sys.executable, "-c", WORK, json.dumps(given)]
    environment = {**os.environ, DIRECTORY: str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def series(text: str, name: str) -> dict[str, float]:
    lines = [line.removeprefix(f"polyrank_{name}") for line in text.splitlines() if line.startswith(f"polyrank_{name}")]
    return {labels: float(value) for labels, value in (line.rsplit(" ", 1) for line in lines)}


def test_what_belongs_to_a_named_pool_has_its_label() -> None:
    every = Metrics(["a", "b"])
    for pool in ("a", "b"):
        of = every.of(pool)
        for generation in ("one", "two"):
            of.show_generation(f"{pool} {generation}", "f", 1, 5.0)
        of.series(of.switches, "ok").inc()
        of.observe_request("/rank", "POST", 200, 0.1)
    (of_b := every.of("b")).series(of_b.switches, "ok").inc()
    every.observe_request("/livez", "GET", 200, 0.1)
    text = every.render().decode()
    assert series(text, "index_info") == {
        '{format="1",generation="a two",model="f",pool="a"}': 1.0,
        '{format="1",generation="b two",model="f",pool="b"}': 1.0,
    }
    switches = series(text, "index_switches_total")
    assert {label: value for label, value in switches.items() if "ok" in label} == {
        '{pool="a",result="ok"}': 1.0,
        '{pool="b",result="ok"}': 2.0,
    }
    assert set(series(text, "http_requests_total")) == {
        '{code="200",method="POST",pool="a",route="/rank"}',
        '{code="200",method="POST",pool="b",route="/rank"}',
        '{code="200",method="GET",pool="",route="/livez"}',
    }
    for unnamed in ([], [""]):
        assert "pool=" not in Metrics(unnamed).of("").render().decode()


def test_the_generation_and_each_role_s_model_are_named_once() -> None:
    metrics = Metrics()
    for generation in ("one", "two"):
        metrics.show_generation(generation, "f", 1, 5.0)
        metrics.show_model("ranker", generation, "poly", "f", Runner("torch", "float32"))
        metrics.show_model("reranker", "c", "cross", "x", Runner("openvino", "bfloat16"))
    text = metrics.render().decode()
    assert series(text, "index_info") == {'{format="1",generation="two",model="f"}': 1.0}
    late = '{architecture="poly",backend="torch",fingerprint="f",name="two",precision="float32",role="ranker"}'
    pairs = '{architecture="cross",backend="openvino",fingerprint="x",name="c",precision="bfloat16",role="reranker"}'
    assert series(text, "model_info") == {late: 1.0, pairs: 1.0}


def test_a_trial_is_named_while_there_is_one(tmp_path: Path) -> None:
    metrics = Metrics()
    for trial in (None, ("one", "f", 1), ("two", "f", 1), None, ("one", "g", 1)):
        metrics.show_trial(trial)
    assert series(metrics.render().decode(), "trial_info") == {'{format="1",generation="one",model="g"}': 1.0}
    metrics.show_trial(None)
    time.sleep(KEPT_SECONDS)
    assert series(metrics.render().decode(), "trial_info{") == {}
    text = work(tmp_path, generations=["one"], revision=0, waiting=0, answers=0)
    assert series(text, "trial_info") == {'{format="1",generation="tried",model="f"}': 0.0}, "one of many cannot forget"


def test_the_scan_that_serves_is_named_once_and_again_when_it_changes() -> None:
    metrics = Metrics()
    for kind, fallback in (("gpu", False), ("gpu", False), ("stored rows", True)):
        metrics.show_scan(kind, fallback)
    assert series(metrics.render().decode(), "scan_info") == {'{fallback="true",kind="stored rows"}': 1.0}


def test_several_processes_are_read_as_one_and_what_a_dead_one_held_is_gone(tmp_path: Path) -> None:
    work(tmp_path, generations=["one", "two"], revision=7, waiting=2, answers=3)
    text = work(tmp_path, generations=["one"], revision=5, waiting=1, answers=4)
    text, pid = text.rsplit("pid ", 1)
    assert series(text, 'http_requests_total{code="200"') == {',method="POST",route="/rank"}': 7.0}
    assert series(text, "http_request_duration_seconds_count") == {'{code_class="2xx",route="/rank"}': 7.0}
    assert series(text, "index_info") == {
        '{format="1",generation="one",model="f"}': 1.0,
        '{format="1",generation="two",model="f"}': 1.0,
    }, "one of them lags behind"
    assert series(text, "scan_info") == {'{fallback="false",kind="bytes"}': 1.0}
    assert series(text, "index_revision") == {"": 5.0}
    assert series(text, "index_candidates") == {"": 100.0}
    assert series(text, "queue_depth") == {"": 3.0}
    assert series(text, "http_requests_in_flight") == {"": 2.0}
    mark_process_dead(int(pid), str(tmp_path))
    text = work(tmp_path, generations=["two"], revision=9, waiting=0, answers=1)
    assert series(text, 'http_requests_total{code="200"') == {',method="POST",route="/rank"}': 8.0}
    assert {labels for labels, value in series(text, "index_info").items() if value == 1} == {
        '{format="1",generation="two",model="f"}'
    }
    assert series(text, "index_revision") == {"": 7.0}


def test_the_text_is_kept_for_a_tenth_of_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(metrics_module, "time", SimpleNamespace(monotonic=lambda: now))
    metrics = Metrics()
    made = metrics.render()
    metrics.series(metrics.jobs, "failed").inc()
    now += 0.09
    assert metrics.render() is made
    now += 0.02
    assert 'jobs_total{state="failed"} 1.0' in metrics.render().decode()
