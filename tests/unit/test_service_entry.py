"""An interrupt before the command is there ends it as one that comes later: one line, no traceback."""

import subprocess
import sys
import tomllib
from pathlib import Path

SCRIPT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["polyrank"]
MODULE, FUNCTION = SCRIPT.split(":")
# Presses Ctrl-C when the last of the commands is about to be imported.
INTERRUPTED = f"""
import signal, sys
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "polyrank.service.cli.commands.train":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, {{how}})
sys.meta_path.insert(0, Interrupting)
sys.argv = ["polyrank", "--version"]
from {MODULE} import {FUNCTION}
{FUNCTION}()
"""


def pressed(how: str) -> "subprocess.CompletedProcess[str]":
    code = INTERRUPTED.format(how=how)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_interrupt_while_it_is_imported_is_one_line() -> None:
    ended = pressed("signal.default_int_handler")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "polyrank: interrupted; nothing was begun\n"


def test_one_that_the_shell_has_ignored_stays_ignored() -> None:
    ended = pressed("signal.SIG_IGN")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("polyrank ")


def test_after_the_import_it_is_the_commands_own() -> None:
    code = f"import signal; from polyrank.service import cli; from {MODULE} import {FUNCTION}\n"
    code += f"cli.command = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n{FUNCTION}()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
