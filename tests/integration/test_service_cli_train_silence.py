"""`polyrank train` is never silent for five seconds, neither on a terminal nor in a log."""

import os
import pty
import re
import select
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import COMMAND, REPOSITORY, write_rows
from tiny import write_base
from tiny_training import orders

MOST_SECONDS = 5.0
ROWS = 150_000  # read four times, and each takes seconds on a fast machine, too
RECIPE = [
    *("--architecture", "poly", "--steps", "6", "--batch-size", "8", "--warmup-steps", "2", "--dropout", "0"),
    *("--max-context-tokens", "40", "--max-candidate-tokens", "16"),
]


def marks(descriptor: int, process: "subprocess.Popen[bytes]") -> tuple[list[float], str]:
    """Read to the end; returns the times at which something came, the beginning and the end among them, and what."""
    found, said = [time.monotonic()], b""
    while True:
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # a terminal that nobody writes to any more
                piece = b""
            if not piece:
                break
            found.append(time.monotonic())
            said += piece
    assert process.wait() == 0, said.decode()
    return [*found, time.monotonic()], said.decode()


@pytest.mark.parametrize("terminal", [False, True])
def test_no_silence_is_long(tmp_path: Path, terminal: bool) -> None:
    base = write_base(tmp_path / "base", seed=0)
    data = write_rows(tmp_path / "orders.jsonl", orders(ROWS))
    given = ["train", "--base", base, "--train", data, "--output", tmp_path / "out", *RECIPE]
    reading, writing = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*COMMAND, *map(str, given)], stdout=writing, stderr=writing, cwd=REPOSITORY, env=environment
    )
    os.close(writing)
    times, said = marks(reading, process)
    os.close(reading)
    longest, began = max((after - before, before - times[0]) for before, after in pairwise(times))
    busy = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))  # whoever tells waits for the processor, too
    assert longest < MOST_SECONDS * busy, f"silent from second {began:.1f} on: {said}"
    assert times[-1] - times[0] > MOST_SECONDS, "there was something to say"
    assert "reading orders.jsonl: " in said
    told = re.search(r"out: trained 6 steps in (\d+) s", said)
    assert told
    assert times[-1] - times[0] == pytest.approx(int(told[1]), abs=5), "the seconds are those of the whole command"
