"""Sides of a comparison: they do the same work in turns, each in a process of its own."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

from benchmarks.load.drive import REPOSITORY
from benchmarks.timing import in_turns

# Threads of the side before may go on spinning for a moment.
PAUSE_SECONDS = 0.3


class Side:
    """A worker process (worker.py) that is ready.

    Attributes:
        name: name of the side.
        about: what the worker says about itself: versions, precision.
    """

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self.name = name
        self.about: dict[str, Any] = self._heard()["about"]

    def seconds(self, call: str, inputs: Sequence[Any]) -> list[float]:
        """Return how long a call takes on each input, one after another."""
        return list(self._asked({"call": call, "inputs": inputs})["seconds"])

    def results(self, call: str, inputs: Sequence[Any]) -> list[Any]:
        """Return the result of a call on each input."""
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
            command = cast(Sequence[str], self._process.args)  # as it was started
            raise SystemExit(f"{self.name} ended; to see why, run {shlex.join(map(str, command))}")
        heard: dict[str, Any] = json.loads(line)
        return heard


def limits(threads: int) -> dict[str, str]:
    """Return the environment of everything that is compared: number of threads, no access to a hub."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


def pinned(command: Sequence[object], cores: Iterable[int]) -> list[str]:
    """Return the command that runs another one on these cores."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *map(str, command)]


@contextmanager
def sides(commands: Mapping[str, Sequence[object]], threads: int) -> Iterator[list[Side]]:
    """Run all workers for the `with` block, each on the first `threads` cores.

    They start one by one, because some measure while they start.

    Args:
        commands: the command of each worker, by name; `--threads N` is added.
        threads: number of threads of each.
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


def contest(competitors: Sequence[Side], call: str, inputs: Sequence[Any], rounds: int) -> dict[str, list[float]]:
    """Let each side do all inputs, in turns, in every other round in the opposite order.

    Returns:
        Seconds for all inputs, of each side and round.
    """
    calls = {side.name: partial(_all_inputs, side, call, inputs) for side in competitors}
    return in_turns(calls, rounds, measure=lambda side_seconds: side_seconds(), back_and_forth=True)


def _all_inputs(side: Side, call: str, inputs: Sequence[Any]) -> float:
    time.sleep(PAUSE_SECONDS)
    return sum(side.seconds(call, inputs))
