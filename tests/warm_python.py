"""A Python that has imported what servers, builders and commands import, so that each starts in milliseconds.

`WarmPython` forks a process for each order, and tells how it ended. A test orders one by `WarmPython.start`. The
product orders one where `WarmPython.executable` stands for `sys.executable`. A forked process imports nothing by
itself: where the start is what is tested, the real Python must start it.

Run as a script (ADDRESS ARGUMENT…), as `executable` does, it orders a process and ends as that one does.
"""

import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

TESTS = os.path.dirname(os.path.abspath(__file__))
MOST_FILES = 64  # with lower numbers are passed on
NUMBER = struct.Struct("q")  # of a process, of bytes, or an exit status


class Order(NamedTuple):
    """A command line behind the interpreter's name, and what it is to be run with.

    Attributes:
        files: numbers of the files that are open in it.
        file_size: the soft and the hard limit of a file's bytes (`ulimit -f`).
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    files: Sequence[int]
    file_size: tuple[int, int]

    @classmethod
    def here(cls, arguments: Sequence[str], files: Sequence[int] = (0, 1, 2), **environment: str) -> "Order":
        """As a child of this process would be run."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        return cls(arguments, {**os.environ, **environment}, os.getcwd(), files, limits)


class WarmProcess:
    """A process that was ordered, with those methods of `subprocess.Popen` that the tests use.

    It is killed when nobody holds its connection any more.

    Args:
        address: of the Unix socket that takes orders.
        files: open here, in the same order as in the order.
    """

    def __init__(self, address: str, order: Order, files: Sequence[int]) -> None:
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        content = json.dumps(order).encode()
        socket.send_fds(self._connection, [NUMBER.pack(len(content))], files)
        self._connection.sendall(content)
        self.pid = self._number()

    def _number(self) -> int:
        return int(NUMBER.unpack(self._connection.recv(NUMBER.size))[0])

    def poll(self) -> int | None:
        """Return its exit status, or None: it runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns its exit status, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = self._number()
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; returns the rest of its standard output, and all of its standard error."""
        with self.stdout:
            out = self.stdout.read()
        self.wait(timeout)
        if self.stderr is None:
            return out, ""
        with self.stderr:
            self.stderr.seek(0)
            return out, self.stderr.read()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        with suppress(ProcessLookupError):  # it has ended, and its status is still on the way
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """The process that forks the others.

    Args:
        modules: what it imports beforehand; by default all that servers, builders and commands import.

    Attributes:
        executable: a file to be run as Python is. It passes SIGTERM and SIGINT on; nobody outlives it.
    """

    def __init__(self, *modules: str) -> None:
        import subprocess
        import tempfile

        self._directory = tempfile.mkdtemp(prefix="wp-")  # a Unix socket's path must be short
        self._address = f"{self._directory}/s"
        self.executable = f"{self._directory}/python"
        with open(self.executable, "w") as script:
            script.write(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{self._address}" "$@"\n')
        os.chmod(self.executable, 0o755)
        command = [sys.executable, f"{TESTS}/warm_nursery.py", self._address, self.executable, *modules]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout.readline() == b"ready\n", "it could not import what it preloads"

    def start(self, *arguments: object, stderr: IO[str] | None = None, **environment: str) -> WarmProcess:
        """Start what `python ARGUMENTS` would start, in the repository, its standard output a pipe.

        Args:
            arguments: flags -P and -u; then -c, -m or a script's path; then the rest.
            stderr: the file that its standard error goes to; None: one that `communicate` reads.
            environment: beside this process's own.
        """
        import tempfile

        order = Order.here([str(each) for each in arguments], **environment)._replace(directory=os.path.dirname(TESTS))
        errors = tempfile.TemporaryFile("w+") if stderr is None else stderr  # noqa: SIM115  # `communicate` closes it
        reading, writing = os.pipe()
        with open(os.devnull) as nothing, open(writing, "w"):
            process = WarmProcess(self._address, order, [nothing.fileno(), writing, errors.fileno()])
        process.stdout = open(reading)  # noqa: SIM115  # `communicate` closes it
        process.stderr = errors if stderr is None else None
        return process

    def close(self) -> None:
        """End it, and all that it has started."""
        self._process.communicate()
        shutil.rmtree(self._directory)


def _was_given(file: int) -> bool:
    try:
        return os.get_inheritable(file)  # what Python opens by itself is not
    except OSError:
        return False


def _stand_for(address: str, arguments: Sequence[str]) -> None:
    given = [each for each in range(MOST_FILES) if _was_given(each)]
    process = WarmProcess(address, Order.here(arguments, given), given)

    def pass_on(number: int, _frame: Any) -> None:
        os.kill(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    status = process.wait()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    _stand_for(sys.argv[1], sys.argv[2:])
