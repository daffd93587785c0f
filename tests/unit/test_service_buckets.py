"""Token buckets: of one process, and of several, whichever of them are stopped or killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyrank.service.auth import buckets
from polyrank.service.auth.buckets import PLACES, SharedBuckets, TokenBucket, shared_memory

REPOSITORY = Path(__file__).parents[2]
# What a process is told to do with the bucket `b`.
BEGIN = """
import sys, time
from polyrank.service.auth import buckets
table = buckets.SharedBuckets(int(sys.argv[1]))
b = table.bucket("shop", float(sys.argv[2]), int(sys.argv[3]))
"""
COUNT = """
buckets.PATIENCE_SECONDS = 60
print("begins", flush=True)
sys.stdin.read()
taken = 0
while not b.take():
    taken += 1
print(taken)
"""
HOLD = """
with table.locked(b._place):
    print("holds", flush=True)
    time.sleep(60)
"""
FOR_EVER = """
for _ in range(10):
    b.take()
print("begins", flush=True)
while True:
    b.take()
"""
Start = Callable[[str, float, int], "subprocess.Popen[str]"]


@pytest.fixture
def memory() -> Iterator[int]:
    with shared_memory() as descriptor:
        yield descriptor


@pytest.fixture
def start(memory: int) -> Iterator[Start]:
    """Starts a process that does something with the bucket `shop` of a rate and a burst; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(does: str, rate: float, burst: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", BEGIN + does, str(memory), str(rate), str(burst)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY, pass_fds=[memory]))
        assert started[-1].stdout.readline()
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.wait()
        for pipe in (each.stdin, each.stdout):
            pipe.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_burst_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3, clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    clock.now += 0.25
    assert bucket.take() == 0.25
    clock.now += 0.25
    assert bucket.take() == 0.0
    assert bucket.take() == 0.5


def test_a_pause_fills_it_to_the_burst_and_no_further() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 2, clock)
    clock.now += 3600
    assert [bucket.take() > 0 for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("rate", "seconds"), [(1.0, 60), (7.0, 13), (0.1, 300)])
def test_over_time_it_is_the_rate(rate: float, seconds: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, 2, clock)
    taken = 0
    for _ in range(seconds * 100):
        clock.now += 0.01
        taken += not bucket.take()
    assert taken == pytest.approx(rate * seconds, abs=2.5)


def test_waiting_as_long_as_it_says_is_enough() -> None:
    clock = Clock()
    bucket = TokenBucket(3.0, 1, clock)
    bucket.take()
    for _ in range(50):
        clock.now += bucket.take() + 1e-9
        assert bucket.take() == 0.0


def test_several_processes_at_once_take_every_token_once(start: Start) -> None:
    processes = [start(COUNT, 0.001, 4000) for _ in range(2)]
    assert sum(int(each.communicate("go", timeout=30)[0]) for each in processes) == 4000


@pytest.mark.parametrize(("does", "taken"), [(HOLD, 0), (FOR_EVER, 3)], ids=["holding", "counting"])
def test_a_process_that_is_stopped_or_killed_holds_nobody_up(
    start: Start, memory: int, does: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start(does, 1e-3, 3)
    bucket = SharedBuckets(memory).bucket("shop", 1e-3, 3)
    other.send_signal(signal.SIGSTOP)
    assert sum(not bucket.take() for _ in range(5)) == 3 - taken
    other.kill()
    other.wait()
    monkeypatch.setattr(buckets, "PATIENCE_SECONDS", 600.0)  # longer than a test may take
    assert bucket.take() > 0


def test_whenever_a_process_is_killed_no_token_comes_back(start: Start, memory: int) -> None:
    bucket = SharedBuckets(memory).bucket("shop", 0.001, 1_000_000)
    for pause in (0.003, 0.007, 0.011, 0.013):
        other = start(FOR_EVER, 0.001, 1_000_000)
        time.sleep(pause)
        before = left(bucket)
        other.kill()
        other.wait()
        assert left(bucket) <= before
    assert bucket.take() == 0.0


def left(bucket: TokenBucket) -> float:
    bucket.take()
    return bucket._tokens


def test_a_row_is_anothers_when_its_bucket_is_full_again(memory: int) -> None:
    clock, table = Clock(), SharedBuckets(memory)
    made = [table.bucket(f"{n}", 1.0, 2, clock) for n in range(2 * PLACES)]
    for bucket in made:
        bucket._place = 7  # as if the hashes of all were alike
    for bucket in made[:PLACES]:
        assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 1.0]
    clock.now += 1.5
    assert [bucket.take() for bucket in made[:PLACES]] == [0.0] * PLACES, "each has a row of its own"
    clock.now += 2.0
    for bucket in made[PLACES:]:
        assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 1.0]
    assert made[0].take() == 0.0, "where there is no room, the one that is full first makes some"


def test_beyond_linux_the_memory_is_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with shared_memory() as descriptor:
        assert [SharedBuckets(descriptor).bucket("a", 1.0, 1).take() > 0 for _ in range(2)] == [False, True]
        assert list(tmp_path.iterdir()) == []
