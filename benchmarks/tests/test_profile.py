"""Where a server's time goes: what counts as work, how wide it is drawn, and tables that add up."""

import os
import threading
import time

import pytest
from benchmarks.load.figures import Answer
from benchmarks.load.flame import Box, boxes
from benchmarks.load.overhead import overhead_ms, processor_ms, rows, wait_ms
from benchmarks.load.profile import folded
from benchmarks.load.threads import spent


def test_threads_that_wait_and_frames_that_all_have_are_left_out() -> None:
    lines = [
        "thread (7): search_0;Thread.run (threading.py:982);top_k (model/search/topk.py:3) 5",
        "thread (7): search_0;Thread.run (threading.py:982);_worker (concurrent/futures/thread.py:81) 70",
        "thread (8): model;Scheduler._step (service/ranking/scheduler.py:192);Condition.wait (threading.py:331) 9",
        "thread (6): MainThread;<module> (polyrank:8);Runner.run (asyncio/runners.py:118);post (service/http/a.py:1) 3",
        "thread (6): MainThread;<module> (polyrank:8);Runner.run (asyncio/runners.py:118);get (service/http/b.py:1) 1",
        "thread (9);Thread.run (threading.py:982);run (a.py:1) 1",
        "thread (9);Thread.run (threading.py:983);run (a.py:1) 2",
    ]
    assert folded(lines, {6: 0.1, 7: 0.5, 8: 0.01, 9: 0.2}) == [
        "search_0;top_k (model/search/topk.py:3) 500",
        "MainThread;post (service/http/a.py:1) 75",
        "MainThread;get (service/http/b.py:1) 25",
        "nameless;run (a.py:1) 200",
    ]


def test_what_a_thread_had_of_a_processor_is_counted() -> None:
    before = spent(os.getpid())[threading.get_native_id()]
    while time.thread_time() < before + 0.1:
        pass
    assert spent(os.getpid())[threading.get_native_id()] >= before + 0.05


def test_a_function_is_as_wide_as_all_that_it_calls_and_itself() -> None:
    stacks = {("model", "infer"): 6, ("model", "pad"): 1, ("model",): 1, ("main", "infer"): 2}
    assert list(boxes(stacks)) == [
        Box(0, 8, 0, "model"),
        Box(0, 6, 1, "infer"),
        Box(6, 7, 1, "pad"),
        Box(8, 10, 0, "main"),
        Box(8, 10, 1, "infer"),
    ]


STAGES = {"queue": 2.0, "tokenize": 1.0, "encode": 10.0, "retrieve": 4.0, "fetch": 0.5, "score": 0.0, "rerank": 0.0}


def test_processor_time_of_all_threads_adds_up_to_that_between_two_answers() -> None:
    called = {1: "MainThread", 2: "model", 3: "search_0", 4: "tokenizer_0", 5: "candidates_0"}
    used = {1: 0.1, 2: 1.0, 3: 0.3, 4: 0.02, 5: 0.01, 99: 0.05}
    found = processor_ms(used, called, seconds=2.0, count=100)
    assert found == pytest.approx(
        {
            "model": 10.0, "search": 3.0, "tokenizer": 0.2, "event loop: HTTP, checks, JSON": 1.0,
            "other threads": 0.6, "the core idles": 5.2,
        }
    )  # fmt: skip
    assert sum(found.values()) == pytest.approx(20.0), "50 answers a second"


def test_a_caller_waits_for_every_stage_and_the_rest() -> None:
    answers = [_answered(0.025, 19.0), _answered(0.021, 18.0)]
    found = wait_ms(answers)
    assert found == pytest.approx(
        {
            "model": 10.0, "search": 4.5, "tokenizer": 1.0, "waiting for a turn": 2.0,
            "event loop: HTTP, checks, JSON": 1.0, "between client and server": 4.5,
        }
    )  # fmt: skip
    assert sum(found.values()) == pytest.approx(23.0), "the mean of 25 and 21 ms"


def test_overhead_is_what_is_neither_model_nor_search() -> None:
    found = overhead_ms([_answered(0.025, 19.0), _answered(0.021, 18.0), _answered(0.020, 18.0)])
    assert list(found.values()) == pytest.approx([21.0, 7.0, 4.0])


def test_both_columns_of_the_table_end_with_their_sum() -> None:
    told = rows({"model": 1.25, "the core idles": 2.0}, {"model": 3.5, "waiting for a turn": 1.0})
    assert told[0] == {"part": "model", "processor, ms": "1.25", "wait, ms": "3.50"}
    assert told[-1] == {"part": "whole", "processor, ms": "3.25", "wait, ms": "4.50"}
    assert {row["part"]: row["wait, ms"] for row in told}["the core idles"] == ""


def _answered(seconds: float, total: float) -> Answer:
    return Answer(0, 0.0, 0.0, seconds, 200, None, {**STAGES, "total": total})
