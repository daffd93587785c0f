"""Sides that do the same work in turns, each in a process of its own."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.load.drive import REPOSITORY

# The threads of the one before may go on spinning for a moment.
PAUSE_SECONDS = 0.3


class Side:
    """A worker (worker.py) that is ready.

    Attributes:
        name: of the side.
        about: what it tells of itself: versions, precision.
    """

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self.name = name
        self.about: dict[str, Any] = self._heard()["about"]

    def seconds(self, call: str, inputs: Sequence[Any]) -> list[float]:
        """How long a call takes on each input, one after another."""
        return list(self._asked({"call": call, "inputs": inputs})["seconds"])

    def results(self, call: str, inputs: Sequence[Any]) -> list[Any]:
        """What comes of each input."""
        return list(self._asked({"call": call, "inputs": inputs, "show": True})["results"])

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "piped"
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "piped"
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; to see why, run {shlex.join(map(str, self._process.args))}")
        heard: dict[str, Any] = json.loads(line)
        return heard


def limits(threads: int) -> dict[str, str]:
    """Environment variables of everything that is compared: threads, and no look at a hub."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


def pinned(command: Sequence[object], cores: Iterable[int]) -> list[str]:
    """The command, on these cores."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *map(str, command)]


@contextmanager
def sides(commands: Mapping[str, Sequence[object]], threads: int) -> Iterator[list[Side]]:
    """Run all workers for the block, each on the first `threads` cores; some measure while they start, so one by one.

    Args:
        commands: of each worker, by name; `--threads N` is added.
        threads: of each.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    if len(cores) < threads:
        raise SystemExit(f"{threads} threads need as many cores; there are {len(cores)}")
    with ExitStack() as stack:
        found = []
        for name, command in commands.items():
            command = pinned([*command, "--threads", threads], cores)
            piped = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            process = stack.enter_context(piped(command, env=limits(threads), cwd=REPOSITORY, text=True))
            stack.callback(process.terminate)
            found.append(Side(process, name))
        yield found


def in_turns(competitors: Sequence[Side], call: str, inputs: Sequence[Any], rounds: int) -> dict[str, list[float]]:
    """Let each do all inputs, in turns, every other round in the opposite order; one round before is not measured.

    Returns:
        Seconds for all inputs, of each side and round.
    """
    took: dict[str, list[float]] = {side.name: [] for side in competitors}
    for number in range(rounds + 1):
        for side in competitors[:: -1 if number % 2 else 1]:
            time.sleep(PAUSE_SECONDS)
            seconds = sum(side.seconds(call, inputs))
            if number:
                took[side.name].append(seconds)
    return took
