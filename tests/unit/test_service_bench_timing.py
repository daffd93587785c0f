"""The clockwork of the benches."""

import json
import time

import pytest

from polyrank.service.cli.measuring.timing import alternate, machine, percentiles


def test_callables_take_turns_after_one_call_unmeasured_each() -> None:
    calls: list[str] = []
    took = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0)
    assert calls == ["a", "b"] * 4
    assert list(took) == ["a", "b"]


def test_the_median_of_each_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("polyrank.service.cli.measuring.timing.time.perf_counter", lambda: now[0])
    durations = iter([9.0, 0.001, 0.004, 0.5])

    def call() -> None:
        now[0] += next(durations)

    assert alternate({"call": call}, 0) == {"call": pytest.approx(4.0)}


def test_it_goes_on_for_the_seconds_asked() -> None:
    rounds: list[None] = []
    began = time.perf_counter()
    alternate({"call": lambda: rounds.append(None)}, 0.05)
    assert time.perf_counter() - began >= 0.05
    assert len(rounds) > 4


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([n / 1000 for n in range(1, 102)]) == {"p50_ms": 51.0, "p99_ms": 100.0}
    assert percentiles([0.25]) == {"p50_ms": 250.0, "p99_ms": 250.0}


def test_a_machine_is_described_in_json() -> None:
    described = machine()
    assert set(described) == {"processor", "cores", "torch_threads", "python", "torch"}
    assert json.loads(json.dumps(described)) == described
    assert described["processor"]
