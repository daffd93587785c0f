"""The process behind `WarmPython`: imports everything once, then forks a process for each order.

Run as a script with two paths: of the Unix socket to listen on, and of `WarmPython.executable`. Names of modules may
follow, to be imported in place of `PRELOADED`. "ready" on standard output says that it takes orders. When its standard
input ends, it ends, and all processes that it has forked.

A connection is for one process. The size of an order comes first, with the files to be open in the process, then the
order itself as JSON. The process's number goes back, and its exit status when it has ended. When the connection ends
first, the process is killed.
"""

import atexit
import gc
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib import import_module
from itertools import takewhile
from types import FrameType
from typing import NoReturn

from warm_python import MOST_FILES, NUMBER, TESTS, Order

PRELOADED = (
    "polyrank.service.app", "polyrank.service.process.server", "polyrank.service.process.draining",
    "polyrank.service.cli", "polyrank.index_builder.building.compaction",
    "polyrank.model.rankers.load", "transformers.models.bert.modeling_bert",
)  # fmt: skip


class Nursery:
    """Forks processes, and tells whoever ordered one how it ended."""

    def __init__(self, address: str) -> None:
        self._running: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._ended, told = socket.socketpair()  # a byte for each SIGCHLD
        for each in (self._ended, told):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, _note)
        signal.set_wakeup_fd(told.fileno())
        self._told = told
        self._selector = selectors.DefaultSelector()
        for each in (self._listener, self._ended, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ)

    def next_order(self) -> Order:
        """Serve until standard input ends; returns in each process that is forked, with what it is to run."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end()
                elif key.fileobj is self._ended:
                    self._reap()
                elif key.fileobj is not self._listener:
                    self._drop(key.data)
                elif (order := self._take()) is not None:
                    return order

    def _take(self) -> Order | None:
        """Fork; returns None in this process, and where the one that orders was killed meanwhile."""
        connection, _ = self._listener.accept()
        size, files, _, _ = socket.recv_fds(connection, NUMBER.size, MOST_FILES)
        with connection.makefile("rb") as told:
            wanted = NUMBER.unpack(size)[0] if size else 1
            content = told.read(wanted)
        if len(content) < wanted:
            connection.close()
            for file in files:
                os.close(file)
            return None
        order = Order(*json.loads(content))
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._leave()
            _put(files, order.files)
            return order
        for file in files:
            os.close(file)
        with suppress(BrokenPipeError):  # it is dropped then
            connection.sendall(NUMBER.pack(pid))
        self._running[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)
        return None

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listener, self._ended, self._told, *self._running.values()):
            each.close()

    def _reap(self) -> None:
        self._ended.recv(4096)
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._forget(pid) as connection, suppress(BrokenPipeError):
                    connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))

    def _drop(self, pid: int) -> None:
        """End a process that nobody waits for."""
        if pid in self._running:
            self._forget(pid).close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _forget(self, pid: int) -> socket.socket:
        connection = self._running.pop(pid)
        self._selector.unregister(connection)
        return connection

    def _end(self) -> NoReturn:
        for pid in list(self._running):
            self._drop(pid)
        os._exit(0)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Be woken by the signal."""


def _put(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files the numbers that the process is to know them by."""
    beyond = [fcntl(file, F_DUPFD_CLOEXEC, MOST_FILES) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(beyond, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


class _Exit:
    """Ends a forked process once it has ended its threads and called all other functions for the exit.

    Python would then take apart all that was imported, for half a second, and copy the pages of this on the way.
    """

    status: int | None = None

    def __call__(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)


def _run(order: Order, executable: str) -> None:
    """Be the process that was ordered."""
    os.chdir(order.directory)
    tempfile.tempdir = None  # TMPDIR may be another one
    sys.executable = executable  # so that what it starts is forked, too
    resource.setrlimit(resource.RLIMIT_FSIZE, order.file_size)
    os.environ.clear()
    os.environ.update(order.environment)
    flags = list(takewhile(lambda each: each in ("-P", "-u"), order.arguments))
    kind, *arguments = order.arguments[len(flags) :]
    sys.path.remove(TESTS)
    if "-P" not in flags:
        sys.path.insert(0, order.directory if kind in ("-c", "-m") else os.path.dirname(kind))
    if "-u" in flags:
        sys.stdout.reconfigure(write_through=True)
    sys.argv = [kind, *arguments[kind in ("-c", "-m") :]]
    if kind == "-c":
        exec(arguments[0], {"__name__": "__main__"})
    elif kind == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    """Import everything, and fork."""
    exit_ = _Exit()
    atexit.register(exit_)  # the first one is called last
    for module in sys.argv[3:] or PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # or a process that looks for garbage would copy all of it
    nursery = Nursery(sys.argv[1])
    os.write(1, b"ready\n")
    order = nursery.next_order()
    try:
        _run(order, sys.argv[2])
    except SystemExit as end:
        exit_.status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    exit_.status = 0


if __name__ == "__main__":
    main()
