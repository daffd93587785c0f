"""A serving process, which the supervisor starts: `python -m polyrank.service.process.worker_process FD SLOT`.

SIGTERM, or the parent's end, drains it; further ones change nothing, for some supervisors tell every process of a
group. Ctrl-C is for the parent.
"""

import os
import pickle
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial

from prometheus_client import values

from polyrank.model.errors import RankingError
from polyrank.service.observe import logs
from polyrank.service.process.server import StopSignals, serve
from polyrank.service.process.supervisor import BEAT, FAILED, READY
from polyrank.service.settings import Settings


def main() -> int:
    """Serve with the settings that come on standard input; returns the exit status."""
    descriptor, slot = map(int, sys.argv[1:])
    signals = StopSignals(repeated=lambda: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Its files are named by the slot, not by the pid: who comes after it goes on with its counters.
    values.ValueClass = values.MultiProcessValue(lambda: slot)
    settings: Settings = pickle.load(sys.stdin.buffer)
    logs.configure(settings.log_level, settings.log_format)
    threading.Thread(target=_outlive_nobody, name="parent", daemon=True).start()
    try:
        serve(settings, socket.socket(fileno=descriptor), signals, partial(_tell, READY), partial(_tell, BEAT))
    except RankingError as error:
        _tell(f"{FAILED} {' '.join(str(error).split())}")
        return 1
    return 0


def _tell(words: str) -> None:
    with suppress(BrokenPipeError):  # `_outlive_nobody` sees to it
        os.write(sys.stdout.fileno(), f"{words}\n".encode())


def _outlive_nobody() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # past the buffer, whose lock the interpreter wants at its end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    os._exit(main())  # everything is closed and written; to take torch apart takes seconds
