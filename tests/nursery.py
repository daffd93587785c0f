"""Processes to be killed, forked from one that has imported everything: starting each takes milliseconds.

The child's side (`serve`, `tell`) belongs into a script; the test's side is `Nursery`. Lines go over the child's
standard output: "pid <pid>" of a new process, then what it tells, and "dead <status>" when it was reaped.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def tell(*words: str) -> None:
    """Write a line at once; the pipe is gone when the parent is."""
    os.write(1, (" ".join(words) + "\n").encode())


def serve(run: Callable[[Path, int], None]) -> None:
    """Fork a process for each line of input, a number, that works in the directory named on the command line."""
    root = Path(sys.argv[1])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tell("pid", str(os.getpid()))
            run(root, int(line))
        _, status = os.waitpid(pid, 0)
        tell("dead", str(status))


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

    def start(self, number: int) -> int:
        """Start a process; returns its pid."""
        self._input.write(f"{number}\n".encode())
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
