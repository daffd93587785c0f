"""Where the `polyrank` command begins: an interrupt while it is being imported ends it in one line, too."""

import os
import signal
import sys
from typing import NoReturn


def command() -> NoReturn:
    """Import the command, and run it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else the shell has it ignored
        signal.signal(signal.SIGINT, _end)
    from polyrank.service import cli

    cli.modules_of(*sys.argv[1:2])
    signal.signal(signal.SIGINT, usual)
    cli.command()


def _end(*_: object) -> NoReturn:
    """End at once: a KeyboardInterrupt could be lost on its way through half-imported libraries."""
    os.write(2, b"polyrank: interrupted; nothing was begun\n")
    os._exit(1)
