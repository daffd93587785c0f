"""Where a server's time goes: tables that add up."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from benchmarks.gpu.model_speed import POLY
from benchmarks.load import drive, overhead
from benchmarks.load.figures import Answer
from benchmarks.load.overhead import overhead_ms, processor_ms, rows, waits
from benchmarks.load.stamped import PARTS
from benchmarks.random_models import TINY, loaded, write_base

from polyrank.model.inference.runners import Runner


def test_what_a_thread_had_of_a_processor_is_counted() -> None:
    own, number = drive.Running("", os.getpid()), threading.get_native_id()
    before = own.spent_by_thread()[number]
    while time.thread_time() < before + 0.1:
        pass
    assert own.spent_by_thread()[number] >= before + 0.05


STAGES = {"queue": 2.0, "tokenize": 1.0, "encode": 10.0, "retrieve": 4.0, "fetch": 0.5, "score": 0.0, "rerank": 0.0}


def test_processor_time_of_all_threads_is_that_of_an_answer() -> None:
    called = {1: "MainThread", 2: "model", 3: "search_0", 4: "tokenizer_0", 5: "candidates_0"}
    used = {1: 0.1, 2: 1.0, 3: 0.3, 4: 0.02, 5: 0.01, 99: 0.05}
    found = processor_ms(used, called, count=100)
    assert found == pytest.approx(
        {"event loop": 1.0, "model": 10.0, "search": 3.0, "tokenizer": 0.2, "other threads": 0.6}
    )


def test_the_parts_of_a_wait_add_up_and_what_is_not_stamped_is_on_the_way() -> None:
    answers = [_answered(0.025, 19.0, "a"), _answered(0.021, 18.0, "b")]
    found = waits(answers, {"a": {"encode": 0.010, "scan": 0.008}, "b": {"encode": 0.012}})
    assert [list(each) for each in found] == [["network and client", *PARTS]] * 2
    assert [sum(each.values()) for each in found] == pytest.approx([0.025, 0.021])
    told = {row["part"]: row for row in rows(found)}
    assert told["encode"] == {"part": "encode", "mean, ms": "11.00", "p50": "10.00", "p99": "12.00"}
    assert told["network and client"]["mean, ms"] == "8.00"
    assert told["whole"]["mean, ms"] == "23.00", "the mean of 25 and 21 ms"


def test_overhead_is_what_is_neither_model_nor_search() -> None:
    found = overhead_ms([_answered(0.025, 19.0), _answered(0.021, 18.0), _answered(0.020, 18.0)])
    assert list(found.values()) == pytest.approx([21.0, 7.0, 4.0])


def test_every_part_of_a_real_servers_answers_is_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(write_base(tmp_path / "base", TINY), "poly", "cpu", Runner("torch", "float32"), **POLY)
    monkeypatch.setattr(drive, "WARM_SECONDS", 0.5)
    given = ["overhead", "--model", str(tmp_path / "poly"), "--seconds", "0.5", "--callers", "1", "3"]
    monkeypatch.setattr(sys, "argv", given)
    assert overhead.main() == 0
    one, three = json.loads(capsys.readouterr().out.splitlines()[-1])["loads"]
    for load in (one, three):
        p50 = {row["part"]: float(row["p50"]) for row in load["wait"]}
        assert list(p50) == ["network and client", *PARTS, "whole"]
        assert min(p50[part] for part in PARTS if part != "waiting for a batch") > 0
        assert p50["network and client"] < p50["whole"] / 2
        assert load["processor_ms"]["model"] > 0
    assert one["wait"][5] == {"part": "waiting for a batch", "mean, ms": "0.00", "p50": "0.00", "p99": "0.00"}


def _answered(seconds: float, total: float, request_id: str = "") -> Answer:
    return Answer(0, 0.0, 0.0, seconds, 200, None, {**STAGES, "total": total}, request_id)
