"""The `polyrank` command: parses arguments, runs a command, and turns an error into one line and an exit status.

Exit status: 0 done, 1 the work failed, 2 wrong usage.
"""

import atexit
import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NoReturn

from polyrank import __version__
from polyrank.model.errors import RankingError, WrongKind
from polyrank.service.cli.arguments import foreign_files_named
from polyrank.service.cli.output import Progress, UsageError, no_interrupt_lost
from polyrank.service.cli.parsing import CommandParser
from polyrank.service.errors import SettingsError
from polyrank.service.observe import logs

# Modules of commands, in the order in which the help lists them, and commands that stand in the module of another.
_MODULES = (
    *("demo", "convert", "train", "mine", "evaluate", "quantise", "export"),
    *("build", "store", "serve", "rank", "candidates", "feedback", "loop"),
)
_WITHIN = {"pretrain": "train", "shards": "store", "keys": "serve"}


def command() -> NoReturn:
    """Run the command of this process, and end the process: to unload torch would take another second."""
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses Ctrl-C twice would see where Python is
    atexit._run_exitfuncs()  # among them those that write what waits
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if sys.stderr is None:  # it was closed: the next file to be opened would take its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        return _say("standard output is closed; where nobody reads it, send it to /dev/null", 1)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack letters of replies
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        status = _run(argv)
        sys.stdout.flush()
    except (UsageError, SettingsError, WrongKind) as error:
        return _say(f"{error}", 2)
    except RankingError as error:
        return _say(f"{error}", 1)
    except ModuleNotFoundError as missing:
        return _say(f"this needs {missing.name}, which is not installed: pip install 'polyrank[server]'", 2)
    except OSError as error:  # a full disk, a directory that may not be written
        where = "standard output: " if _unwritable() else ""
        return _say(f"{where}{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 1)
    except KeyboardInterrupt as interrupt:  # a command may say what it leaves
        return _say(f"interrupted; {str(interrupt) or 'nothing was left half-written'}", 1)
    return status


def _run(argv: Sequence[str] | None) -> int:
    began, words = time.monotonic(), sys.argv[1:] if argv is None else [*argv]
    for word in words:
        printable = word.encode(errors="backslashreplace").decode()
        if printable != word:  # no JSON may say it, nor Arrow open it
            raise UsageError(f"{printable} is not of the locale's encoding; rename the file, or type it again")
    try:
        arguments = parser(*words[:1]).parse_args(words)
    except SystemExit as end:
        if end.code:
            raise
        return 0  # --help or --version
    arguments.began = began
    logs.show_warnings()
    with ExitStack() as stack:
        stack.enter_context(no_interrupt_lost())
        if words[0] not in ("serve", "demo") and words[:2] != ["loop", "run"]:  # these say themselves what they do
            stack.enter_context(Progress(""))
        if words[0] != "convert":
            stack.enter_context(foreign_files_named(arguments))
        status: int = arguments.run(arguments)
    return status


def _unwritable() -> bool:
    """Whether standard output takes nothing; it is dropped then, or Python would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _say(message: str, status: int) -> int:
    line = " ".join(message.splitlines())  # a library or a server may have said several lines
    print(f"polyrank: {logs.harmless(line)}", file=sys.stderr)
    return status


def modules_of(called: str = "") -> list[Any]:
    """Import the module of the command that is called, and return it; of no command those of all."""
    module = _WITHIN.get(called, called)
    names = [module] if module in _MODULES else _MODULES
    return [import_module(f"polyrank.service.cli.commands.{name}") for name in names]


def parser(called: str = "") -> CommandParser:
    """Return the parser of the command that is called; of no command that of all."""
    top = CommandParser(prog="polyrank", description="Retrieve and rank replies with Poly-encoders.")
    top.add_argument("--version", action="version", version=f"polyrank {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in modules_of(called):
        module.add_to(commands)
    return top
