"""Processes to be killed, forked from one that has imported everything: starting each takes milliseconds.

The child's side (`serve`, `tell`) belongs into a script; the test's side is `Nursery`. Lines go over the child's
standard output: "pid <pid>" of a new process, then what it tells, and "dead <status>" when it was reaped.

A process is killed by its own timer, since on a busy machine the test may hear of a short step long after its end. It
handles no signal, so SIGALRM ends it as SIGKILL does.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

TESTS = Path(__file__).parent


class Kill:
    """When this process is to be killed: so many seconds after it has told of a step for the nth time."""

    ahead: "Kill | None" = None

    def __init__(self, step: str, occurrence: str, seconds: str) -> None:
        self.step, self.occurrence, self.seconds = step, int(occurrence), float(seconds)

    def hear(self, words: Sequence[object]) -> None:
        """Set the timer where these words tell of that step."""
        self.occurrence -= words == ("step", self.step)
        if self.occurrence == 0:
            Kill.ahead = None
            signal.setitimer(signal.ITIMER_REAL, self.seconds)


def tell(*words: object) -> None:
    """Write a line at once; the pipe is gone when the parent is."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
    if Kill.ahead is not None:
        Kill.ahead.hear(words)


def serve(run: Callable[[Path, int], None]) -> None:
    """Fork a process for each line of input that works in the directory named on the command line.

    A line is a number, and where the process is to be killed the step, its occurrence and seconds.
    """
    root = Path(sys.argv[1])
    for line in sys.stdin:
        number, *kill = line.split()
        pid = os.fork()
        if pid == 0:
            tell("pid", os.getpid())
            Kill.ahead = Kill(*kill) if kill else None
            run(root, int(number))
        _, status = os.waitpid(pid, 0)
        tell("dead", status)


class Nursery:
    """Starts a script's processes one after the other, and follows what they tell."""

    def __init__(self, script: str, root: Path) -> None:
        environment = {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
        command = [sys.executable, str(TESTS / script), str(root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._lines = self._read()

    def _read(self) -> Iterator[list[str]]:
        rest = b""
        while piece := os.read(self._output.fileno(), 65536):  # unbuffered: a kill must follow the step at once
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode().split() for line in lines)

    def start(self, number: int, *kill: object) -> int:
        """Start a process that is to be killed at a `Kill`, if one is given; returns its pid."""
        self._input.write((" ".join(map(str, (number, *kill))) + "\n").encode())
        self._input.flush()
        word, pid = next(self._lines)
        assert word == "pid"
        return int(pid)

    def next(self) -> list[str]:
        """The words of the next line that is told."""
        line = next(self._lines)
        assert line != ["dead", "256"], "the process failed by itself"
        return line

    def close(self) -> None:
        """End the nursery; no process lives any more."""
        self._input.close()
        assert self._process.wait(10) == 0
        self._output.close()


class Told(Protocol):
    """What a process has said, and the step that it is at."""

    step: str

    def take(self, line: list[str]) -> None:
        """Take in what it says, a line's words."""


class Killer:
    """Kills processes at random moments of steps that they tell of, each in turn at first, then the one hit least.

    Attributes:
        hits: kills by step.
    """

    def __init__(self, nursery: Nursery, told: Told, steps: Sequence[str], kills: int, chance: random.Random) -> None:
        self._nursery, self._told, self._steps, self._kills, self._chance = nursery, told, steps, kills, chance
        self.hits: Counter[str] = Counter()

    def learn(self, rounds: int) -> None:
        """Let a first process run for some rounds of steps, to know how long each takes here, and kill it."""
        pid, began = self._nursery.start(0), time.perf_counter()
        seconds: dict[str, list[float]] = {}
        while len(seconds.get(self._steps[-1], [])) < rounds:
            line = self._nursery.next()
            if line[0] == "step":
                seconds.setdefault(self._told.step, []).append(time.perf_counter() - began)
                began = time.perf_counter()
            self._told.take(line)
        os.kill(pid, signal.SIGKILL)
        self._take_rest(signal.SIGKILL)
        self._seconds = {step: median(each) for step, each in seconds.items()}

    def strike(self, number: int, most: Callable[[str], int]) -> None:
        """Start a process and kill it somewhere in a step, the first or a later time that it comes to it.

        Args:
            number: of the kill, from 1.
            most: how often a step may have to come at most.
        """
        # Later the step hit least: the shortest ones are easily missed.
        in_turn = self._steps[number % len(self._steps)]
        target = in_turn if number <= self._kills // 2 else min(self._steps, key=self.hits.__getitem__)
        occurrence = self._chance.randint(1, most(target))
        seconds = max(self._chance.uniform(0, self._seconds[target]), 1e-6)  # 0 sets no timer
        self._nursery.start(number, target, occurrence, f"{seconds:f}")
        self._take_rest(signal.SIGALRM)
        self.hits[self._told.step] += 1

    def _take_rest(self, ended_by: signal.Signals) -> None:
        """Take what the process says until its end."""
        while (line := self._nursery.next())[0] != "dead":
            self._told.take(line)
        assert int(line[1]) == ended_by
