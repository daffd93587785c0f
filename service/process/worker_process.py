"""A serving process, started by the supervisor: `python -m polyrank.service.process.worker_process SOCKET RATES SLOT`.

SIGTERM or the parent's end drains it. A second signal changes nothing, because some supervisors send theirs to every
process of a group. Ctrl-C is for the parent.
"""

import logging
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from functools import partial

from prometheus_client import values

from polyrank.model.errors import RankingError
from polyrank.service.auth.buckets import SharedBuckets
from polyrank.service.observe import logs
from polyrank.service.process.listening import inherited
from polyrank.service.process.server import StopSignals, serve
from polyrank.service.process.supervisor import BEAT, FAILED, READY
from polyrank.service.settings import Settings


def main() -> int:
    """Serve with the settings from standard input; returns the exit status."""
    listener, rates, slot = map(int, sys.argv[1:])
    signals = StopSignals(repeated=lambda: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Its files of metrics are named by the slot instead of the pid, so that its successor goes on with its counters.
    values.ValueClass = values.MultiProcessValue(lambda: slot)
    settings: Settings = pickle.load(sys.stdin.buffer)
    logs.configure(settings.log_level, settings.log_format, tells=slot == 0)  # one speaks for all
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        reports = partial(_say, READY), partial(_say, BEAT)
        serve(settings, inherited(listener), signals, *reports, SharedBuckets(rates))
    except RankingError as error:
        _say(f"{FAILED} {' '.join(str(error).split())}")
        return 1
    return 0


def _say(words: str) -> None:
    with suppress(BrokenPipeError):  # the parent is gone, which `_end_with_parent` notices
        os.write(sys.stdout.fileno(), f"{words}\n".encode())


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not by sys.stdin: the interpreter wants its lock at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # all is closed and written; unloading torch would take seconds
