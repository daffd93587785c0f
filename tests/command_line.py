"""The `polyrank` command, called in the test's process or run as one of its own."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from warm_python import WarmProcess, WarmPython

from polyrank.service.cli import main, parser

REPOSITORY = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "polyrank.service.cli"]
READY = "polyrank is ready on "
# What a command says that works for long: on a busy machine each one may.
WAITS = re.compile(r"(?:: \d+ s|: \d+ of \d+, \d+ s|\(\S+ \S+/s\))(?:  .*)?$")


class Terminal(io.StringIO):
    """What is written is kept, and shown to somebody."""

    def isatty(self) -> bool:
        return True


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """The one JSON object on standard output."""
        assert self.status == 0, self.err
        [line] = self.out.splitlines()
        value = json.loads(line)
        assert type(value) is dict
        return value

    def failure(self, status: int = 1) -> str:
        """The one line that a failed command writes, without its beginning."""
        assert (self.status, self.out) == (status, ""), self
        [line] = self.err.splitlines()
        assert line.startswith("polyrank: ")
        return line.removeprefix("polyrank: ")

    @property
    def misuse(self) -> str:
        """What is wrong with options that cannot be read; the lines before it say how the command is used."""
        assert (self.status, self.out) == (2, ""), self
        _, error, said = self.err.splitlines()[-1].partition(": error: ")
        assert error
        return said


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run a command in this process."""
    capsys.readouterr()
    try:
        status = main([str(each) for each in arguments])
    except SystemExit as end:  # argparse
        status = int(end.code or 0)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C went through the command")
    out, err = capsys.readouterr()
    return Outcome(status, out, _without_waits(err))


def options() -> Iterator[tuple[str, argparse.Action]]:
    """Every option and argument of every command, with the command's name: "store gc"."""
    waiting = [("", parser())]
    while waiting:
        name, of = waiting.pop()
        of.fill()
        for action in of._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{name} {word}".strip(), each) for word, each in action.choices.items()]
            else:
                yield name, action


def forked(python: WarmPython, *arguments: object, **environment: str) -> WarmProcess:
    """Start a command as a process of its own that has nothing to import."""
    return python.start(*COMMAND[1:], *arguments, PYTHONDONTWRITEBYTECODE="1", **environment)


def start(*arguments: object, command: Iterable[str] = COMMAND, **environment: str) -> "subprocess.Popen[str]":
    """Start a command as a process of its own."""
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


def ended(process: "subprocess.Popen[str] | WarmProcess") -> Outcome:
    """Wait for its end."""
    out, err = process.communicate(timeout=60)
    return Outcome(process.returncode, out, _without_waits(err))


def _without_waits(err: str) -> str:
    return "".join(line for line in err.splitlines(keepends=True) if not WAITS.search(line.rstrip("\n")))


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """A `.jsonl` file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pool_rows(count: int, prefix: str = "c") -> list[dict[str, Any]]:
    """Candidates of two of the words that the small checkpoints know."""
    return [{"id": f"{prefix}{n}", "text": f"w{n % 40} w{n * 7 % 33}", "metadata": {"n": n}} for n in range(count)]


def left_half_written(store: Path) -> list[str]:
    """What lies in a store besides whole generations, logs, locks and fences."""
    known = {"CURRENT", "HISTORY", "ID", "FENCE", "build.lock", "pointer.lock", "log/write.lock"}
    files = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    return sorted(
        name for name in files - known if not name.startswith(("generations/2", "rejected/2", "log/2"))
    ) + sorted(str(path) for path in (store / "generations").glob(".*"))
