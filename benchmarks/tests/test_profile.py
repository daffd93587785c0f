"""The profile of a server: what counts as work, and how wide it is drawn."""

import os
import threading
import time

from benchmarks.load.flame import Box, boxes
from benchmarks.load.profile import folded, spent


def test_threads_that_wait_and_frames_that_all_have_are_left_out() -> None:
    lines = [
        "thread (7): search_0;Thread.run (threading.py:982);top_k (model/search/topk.py:3) 5",
        "thread (7): search_0;Thread.run (threading.py:982);_worker (concurrent/futures/thread.py:81) 70",
        "thread (8): model;Batcher._next (service/ranking/batcher.py:192);Condition.wait (threading.py:331) 9",
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
