"""How calls are timed: in turns, by a clock of choice."""

import json
import time

import pytest
from benchmarks.timing import in_turns, machine, medians_ms, percentiles, processor_seconds


def test_calls_take_turns_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    took = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert list(took) == ["a", "b"]
    assert list(map(len, took.values())) == [3, 3]


def test_the_order_may_be_reversed_in_every_other_round() -> None:
    calls: list[str] = []
    in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, back_and_forth=True)
    assert "".join(calls) == "abbaabba"


def test_calls_may_time_themselves() -> None:
    seconds = iter([9.0, 1.0, 2.0])
    assert in_turns({"call": lambda: next(seconds)}, 2, measure=lambda call: call()) == {"call": [1.0, 2.0]}


def test_medians_are_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: now[0])
    durations = iter([9.0, 0.001, 0.004, 0.5])

    def call() -> None:
        now[0] += next(durations)

    assert medians_ms({"call": call}, 0) == {"call": pytest.approx(4.0)}


def test_it_goes_on_for_the_seconds_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 1.0

    assert in_turns({"call": call}, 3, seconds=5.5) == {"call": [1.0] * 6}


def test_processor_time_is_read_from_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0])
    monkeypatch.setattr("benchmarks.timing.time.process_time", lambda: next(times))
    assert processor_seconds(lambda: time.sleep(0)) == 2.0


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([n / 1000 for n in range(1, 102)]) == {"p50_ms": 51.0, "p99_ms": 100.0}
    assert percentiles([0.25]) == {"p50_ms": 250.0, "p99_ms": 250.0}


def test_a_machine_is_described_in_json() -> None:
    described = machine()
    assert set(described) == {"processor", "cores", "torch_threads", "python", "torch"}
    assert json.loads(json.dumps(described)) == described
    assert described["processor"]
