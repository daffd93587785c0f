"""The parent of several serving processes on one listening socket: starts them, replaces those that end, stops them.

It imports neither torch nor FAISS, forks nothing, and never accepts a connection. A worker reads its settings from its
standard input; the end of that input means that the parent is gone. On standard output the worker writes READY, BEAT
about once a second, or FAILED and the reason.

uvicorn's own supervisor does not keep our promises, as a trial of 0.54 showed: its workers outlive a killed parent; one
worker that cannot be replaced ends all; a worker whose event loop hangs is not noticed, because a thread answers for
it; and the parent learns neither that all are ready nor why one cannot start.
"""

import asyncio
import errno
import logging
import os
import pickle
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

from polyrank.model.telling import telling
from polyrank.service import machine
from polyrank.service.auth.buckets import shared_memory
from polyrank.service.errors import WorkerFailed
from polyrank.service.observe import metrics
from polyrank.service.observe.metrics import Mode
from polyrank.service.process.listening import refuse_new
from polyrank.service.settings import Settings

_GAUGES: Final = tuple(f"gauge_{mode}" for mode in get_args(Mode))
# The files of a process, as prometheus_client names them.
KINDS: Final = ("counter", "histogram", *_GAUGES)
# prometheus_client's own first size, which it doubles where there is more to count. Untouched pages take no memory.
_BYTES: Final = 1 << 16


class MetricFiles:
    """The files in which so many processes count, so that each of them can answer for all.

    A process is named by its slot, so that its successor goes on with its counters.

    prometheus_client maps files of a directory. Where a disk or /dev/shm fills, writing to such a map kills the process
    (SIGBUS), and whatever cleans temporary directories removes them. So on Linux the files are memory without a name
    (memfd), which every process inherits from the parent. The directory holds links to them only. It can be made again
    at any time, and nothing that was counted is lost. `descriptors`: to be inherited by every process, under the same
    numbers.
    """

    def __init__(self, directory: Path, slots: int) -> None:
        self.directory = directory
        names = [f"{kind}_{slot}.db" for slot in range(slots) for kind in KINDS]
        self._files = {name: os.memfd_create(name) for name in names} if hasattr(os, "memfd_create") else {}
        for descriptor in self.descriptors:
            os.truncate(descriptor, _BYTES)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of all files; none where the system has no such memory, and the files are plain ones."""
        return list(self._files.values())

    def link(self) -> None:
        """Make the directory and the links in it, as far as they are missing or wrong."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "made by another user, or a link; remove it", str(self.directory))
        for name, descriptor in self._files.items():
            path, target = self.directory / name, f"/proc/self/fd/{descriptor}"
            if not path.is_symlink() or os.readlink(path) != target:
                path.unlink(missing_ok=True)
                path.symlink_to(target)

    def forget_gauges(self, slot: int) -> None:
        """Forget what a process that has ended showed of itself; what it counted stays."""
        self.link()
        for kind in _GAUGES:
            path = self.directory / f"{kind}_{slot}.db"
            if path.exists():
                with path.open("r+b") as file:
                    file.write(bytes(8))  # how many bytes are used; prometheus_client has no call for it

    def close(self) -> None:
        """Give the memory back, once no process holds it any more."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@contextmanager
def metric_files(slots: int) -> Iterator[MetricFiles]:
    """Keep the files for the block, in a temporary directory."""
    with TemporaryDirectory(prefix="polyrank-metrics-", ignore_cleanup_errors=True) as directory:
        files = MetricFiles(Path(directory), slots)
        try:
            files.link()
            yield files
        finally:
            files.close()


READY, BEAT, FAILED = "ready", "beat", "failed"
# A worker that was silent for so long hangs.
SILENT_SECONDS = 30.0
# Pauses between two tries to replace a worker that cannot be started.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0

log = logging.getLogger(__name__)


def run(settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> int:
    """Serve by `settings.workers` processes until a signal stops them; a second signal kills them.

    Without the setting `threads` the workers share the processors. `on_ready` is called once all workers are ready.

    Returns:
        The exit status: 0 after one signal, 1 after two.

    Raises:
        WorkerFailed: a worker could not be started.
    """
    if settings.threads is None:
        share = max(1, machine.processors() // settings.workers)
        settings = settings.model_copy(update={"threads": share})
    with metric_files(settings.workers) as files, shared_memory() as rates:
        return asyncio.run(_Supervisor(settings, listener, files, rates, on_ready).run())


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.is_ready = False  # it accepts requests
        self.failure = ""  # why it could not start; empty where it has not said so

    async def next_word(self, within_seconds: float | None) -> str:
        """Return its next word; empty at its end."""
        assert self.process.stdout is not None, "opened as a pipe"
        word, _, rest = (await asyncio.wait_for(self.process.stdout.readline(), within_seconds)).decode().partition(" ")
        if word == FAILED:
            self.failure = rest.strip()
        return word.strip()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class _Supervisor:
    def __init__(
        self, settings: Settings, listener: socket.socket, files: MetricFiles, rates: int, on_ready: Callable[[], None]
    ) -> None:
        self._settings, self._listener, self._files, self._on_ready = settings, listener, files, on_ready
        self._rates = rates
        self._workers: set[_Worker] = set()
        self._starting = ExitStack()
        self._stopping = asyncio.Event()
        self._was_ready = self._second_signal = False
        self._failure = self._unlinked = ""

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        with self._starting:
            await asyncio.gather(*(self._keep(slot) for slot in range(self._settings.workers)))
        if self._failure:
            raise WorkerFailed(self._failure)
        return int(self._second_signal)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._second_signal = True
            for worker in self._workers:
                worker.send(signal.SIGKILL)
        else:
            asyncio.get_running_loop().call_later(self._settings.drain_delay_s, self._close)
            self._stop()

    def _close(self) -> None:
        """Stop accepting; the workers, which drain meanwhile, close the socket a moment later."""
        refuse_new(self._listener)
        self._listener.close()

    def _stop(self) -> None:
        self._stopping.set()
        for worker in self._workers:
            worker.send(signal.SIGTERM)

    async def _keep(self, slot: int) -> None:
        """Keep one worker running; its successors in the slot go on with its counters."""
        pause = 0.0
        while not self._stopping.is_set():
            was_ready, why = await self._run_one(slot)
            if self._stopping.is_set():
                return
            if not self._was_ready:
                self._failure = why
                self._stop()
                return
            log.error("a worker has ended", extra={"fields": {"why": why}})
            pause = 0.0 if was_ready else min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run_one(self, slot: int) -> tuple[bool, str]:
        """Run a worker to its end; returns whether it had become ready, and why it ended."""
        try:
            worker = await self._start(slot)
        except OSError as error:
            return False, f"a serving process could not be started: {error.strerror}"
        try:
            while await self._heard(worker):
                pass
            status = await worker.process.wait()
        finally:
            self._workers.discard(worker)
            with suppress(OSError):  # the gauges of its successor take the place of its own
                self._files.forget_gauges(slot)
        return worker.is_ready, worker.failure or _ended(worker.process.pid, status)

    async def _start(self, slot: int) -> _Worker:
        self._files.link()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "polyrank.service.process.worker_process"),
            *(str(self._listener.fileno()), str(self._rates), str(slot)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._listener.fileno(), self._rates, *self._files.descriptors],
            env={**os.environ, metrics.DIRECTORY: str(self._files.directory)},
        )
        worker = _Worker(process)
        self._workers.add(worker)
        assert process.stdin is not None, "opened as a pipe"
        process.stdin.write(pickle.dumps(self._settings))
        if self._stopping.is_set():
            worker.send(signal.SIGTERM)
        return worker

    async def _heard(self, worker: _Worker) -> bool:
        """Wait for a worker's next word; returns whether there may be more."""
        try:
            word = await worker.next_word(SILENT_SECONDS if worker.is_ready else None)
            if word == READY:
                self._count_in(worker)
            elif word == BEAT:
                self._relink()
            return bool(word)
        except TimeoutError:
            if not self._stopping.is_set():  # a worker that stops is silent
                log.error("a worker hangs", extra={"fields": {"pid": worker.process.pid}})
                worker.send(signal.SIGKILL)
            return True

    def _relink(self) -> None:
        """Mend the directory of the metrics, if somebody has cleaned it away; a reason why not is logged once."""
        why = ""
        try:
            self._files.link()
        except OSError as error:
            if (why := str(error)) != self._unlinked:
                log.error("the directory of the metrics cannot be made again", extra={"fields": {"why": why}})
        self._unlinked = why

    def _count_in(self, worker: _Worker) -> None:
        worker.is_ready = True
        ready = sum(worker.is_ready for worker in self._workers)
        if self._was_ready:
            log.info("a worker is ready", extra={"fields": {"pid": worker.process.pid}})
        elif ready == self._settings.workers:
            self._was_ready = True
            self._starting.close()
            self._on_ready()
        elif ready == 1:  # until now the first worker may have told how far it is
            self._starting.enter_context(telling("waiting for the other workers"))


def _ended(pid: int, status: int) -> str:
    """Say how a process ended that has not said so itself."""
    if status != -signal.SIGBUS:
        return f"serving process {pid} ended with status {status}"
    return f"serving process {pid} was ended by SIGBUS: a file that it had mapped was cut short, or cannot be read"
