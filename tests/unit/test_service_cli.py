"""The command's frame: how it ends, and what it costs to start."""

import errno
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import COMMAND, REPOSITORY, call

from polyrank import __version__
from polyrank.index_builder.errors import StoreUnavailable
from polyrank.service import cli
from polyrank.service.cli import parser
from polyrank.service.cli.commands import store
from polyrank.service.cli.output import UsageError
from polyrank.service.errors import SettingsError

Capture = pytest.CaptureFixture[str]

COMMANDS = ["demo", "evaluate", "build", "store", "keys", "serve", "rank"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `store list` raise."""

    def make(error: BaseException) -> None:
        def run(_arguments: object) -> int:
            raise error

        monkeypatch.setattr(store, "_with_store", lambda _run, arguments: run(arguments))

    return make


@pytest.mark.parametrize(("error", "status", "line"), [
    (UsageError("give one of them"), 2, "give one of them"),
    (SettingsError("port: too large"), 2, "port: too large"),
    (StoreUnavailable("Redis failed"), 1, "Redis failed"),
    (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "No space left on device: /x/y"),
    (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "Permission denied: /x"),
    (OSError("odd"), 1, "odd"),
    (StoreUnavailable("a server said:\r\nno\n"), 1, "a server said: no"),
    (KeyboardInterrupt(), 1, "interrupted; nothing was left half-written"),
])  # fmt: skip
def test_a_failure_is_a_status_and_one_line(
    capsys: Capture, failing: Callable[[BaseException], None], error: BaseException, status: int, line: str
) -> None:
    failing(error)
    assert call(capsys, "store", "list", "--store", ".").failure(status) == line


@pytest.mark.parametrize("name", [*cli._MODULES, *cli._WITHIN])
def test_the_parser_of_one_command_is_as_that_of_all(capsys: Capture, name: str) -> None:
    for made in (parser(name), parser()):
        with pytest.raises(SystemExit) as end:
            made.parse_args([name, "--help"])
        assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown == 2 * shown[: len(shown) // 2]


def test_the_process_ends_when_what_waits_is_written() -> None:
    code = "import atexit, os, signal; from polyrank.service import cli; cli.main = lambda: 3"
    interrupted = "atexit.register(os.kill, os.getpid(), signal.SIGINT)"  # Ctrl-C was pressed twice
    at_the_end = f"atexit.register(os.write, 1, b'written'); {interrupted}; cli.command()"
    done = subprocess.run([sys.executable, "-c", f"{code}; {at_the_end}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "written", "")


def test_a_warning_says_where_and_why(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_arguments: object) -> int:
        logging.getLogger("polyrank.model").warning("models cannot be kept", extra={"fields": {"why": "a full disk"}})
        return 0

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process that runs a command alone
    monkeypatch.setattr(store, "_with_store", lambda _run, arguments: run(arguments))
    outcome = call(capsys, "store", "list", "--store", ".")
    assert outcome.err.endswith(" WARNING polyrank.model models cannot be kept why=a full disk\n")


def test_a_bug_is_not_hidden(capsys: Capture, failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        call(capsys, "store", "list", "--store", ".")


def test_help_and_version_are_no_failures(capsys: Capture) -> None:
    assert call(capsys, "--version") == (0, f"polyrank {__version__}\n", "")
    shown = call(capsys, "--help")
    assert (shown.status, shown.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^ +{command} ", shown.out, re.MULTILINE), command
        assert call(capsys, command, "--help").status == 0


def test_the_command_line_starts_without_torch_and_runs_as_a_module() -> None:
    light = "import sys, polyrank.service.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], cwd=REPOSITORY).returncode == 0
    module = [sys.executable, "-m", "polyrank.service.cli", "store", "list", "--store", "no/such/store"]
    ended = subprocess.run(module, cwd=REPOSITORY, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "polyrank: no/such/store is no directory; polyrank build makes a store\n"


def test_a_closed_standard_error_changes_neither_output_nor_status() -> None:
    """An error is said to nobody, and not on standard output."""
    closed = ["sh", "-c", '"$@" 2>&-', "sh", *COMMAND, "store", "list", "--store", "no/such/store"]
    ended = subprocess.run(closed, cwd=REPOSITORY, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")


@pytest.mark.parametrize(
    "line", [["--version"], ["store", "list", "--store", "."], ["store", "list", "--store", ".", "--json"]]
)
@pytest.mark.parametrize("output", [">/dev/full", ">&-", "| :"])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, line: list[str], output: str) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    told = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$@" {output}', "bash", *COMMAND, *line],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=buffered,
        check=False,
    )
    [said] = told.stderr.splitlines()
    assert (told.returncode, said.startswith("polyrank: standard output")) == (1, True)
