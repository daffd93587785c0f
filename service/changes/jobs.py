"""Rebuilds: at most one at a time, each in a process of its own, supervised until the new generation is served."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.build.job_records import (
    CANCELLED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    JobRecord,
    JobRequest,
    JobStore,
)
from polyrank.index_builder.build.progress import PUBLISHING
from polyrank.index_builder.errors import JobConflict, JobNotFound, PoolInvalid
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.updates import UpdateLogs
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.service.changes.confine import confined
from polyrank.service.changes.environment import of_builder
from polyrank.service.changes.idempotency import IdempotencyKeys
from polyrank.service.settings import Settings

GRACE_SECONDS = 10.0
TAIL_BYTES = 4096
SWITCHING = "switch"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A new generation to build.

    Attributes:
        pool: a path under the pool root; None: the candidates below are the pool.
        candidates: the pool's rows, as objects with id, text and metadata.
        model: a path under the model root; None: the active generation's model.
        activate: whether the generation is served once it is built.
    """

    pool: str | None = None
    candidates: Sequence[Mapping[str, Any]] = ()
    model: str | None = None
    activate: bool = True


class Jobs:
    """Starts, watches and cancels rebuilds of one store.

    Args:
        settings: the store, the roots and Redis.
        backend: what is to run a job's model.
        on_success: serves the new generation; the job counts as running until it returns.
        on_end: told each job that has ended.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Callable[[JobRequest], str],
        on_success: Callable[[], Awaitable[None]],
        on_end: Callable[[JobRecord], None],
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._on_success = on_success
        self._on_end = on_end
        self._store = JobStore(settings.store)
        self._keys = IdempotencyKeys(settings.store)
        self._starting = asyncio.Lock()
        self._builds: dict[str, _Build] = {}

    async def start(self, rebuild: Rebuild, raw: bytes, key: str | None, has_active: bool) -> JobRecord:
        """Start a rebuild; a key that was used before gives the job that it started.

        Args:
            rebuild: what to build.
            raw: the request's body, which tells a repeated request from another one with the same key.
            key: the Idempotency-Key, checked.
            has_active: there is an active generation, whose model can be used.

        Raises:
            JobConflict: another job has not finished.
            IdempotencyMismatch: the key was used with another rebuild.
            InvalidInput: the pool or the model is not where the request says.
        """
        async with self._starting:
            record, is_new = await asyncio.to_thread(self._create, rebuild, raw, key, has_active)
            if is_new:
                await self._spawn(record)
        return self._seen(record)

    async def compact(self) -> JobRecord:
        """Start a compaction of the active generation.

        Raises:
            JobConflict: another job has not finished.
        """
        async with self._starting:
            record = await asyncio.to_thread(self._create_compaction)
            await self._spawn(record)
        return self._seen(record)

    def _create_compaction(self) -> JobRecord:
        self._refuse_second()
        return self._store.create(JobRequest(pool=(), compacts=True))

    def _create(self, rebuild: Rebuild, raw: bytes, key: str | None, has_active: bool) -> tuple[JobRecord, bool]:
        digest = sha256(raw).hexdigest()
        if key is not None and (job_id := self._keys.job_of(key, digest)) is not None:
            with suppress(JobNotFound):  # the record of an old job may be gone
                return self._store.get(job_id), False
        self._refuse_second()
        record = self._queue(rebuild, has_active)
        if key is not None:
            self._keys.remember(key, digest, record.id)
        return record, True

    def _refuse_second(self) -> None:
        if (active := self._store.active()) is not None:
            raise JobConflict(active.id)
        if self._builds:  # its record has ended, its process has not
            raise JobConflict(next(iter(self._builds)))

    def _queue(self, rebuild: Rebuild, has_active: bool) -> JobRecord:
        if rebuild.model is None and not has_active:
            raise InvalidInput("model: no generation is active whose model could be used; name one")
        model = None if rebuild.model is None else str(confined(self._settings.model_root, rebuild.model, "model"))
        job_id = self._store.new_id()
        if rebuild.pool is not None:
            pool = confined(self._settings.pool_root, rebuild.pool, "pool")
            _check_kind(pool)
            return self._store.create(JobRequest(pool=(str(pool),), model=model, activate=rebuild.activate), job_id)
        pool = self._store.inline_pool(job_id)
        try:
            with pool.open("wb") as file:
                for candidate in rebuild.candidates:
                    file.write(orjson.dumps(candidate, option=orjson.OPT_APPEND_NEWLINE))
            revision = UpdateLogs(self._settings.store).highest()  # what comes after the request is newer than its pool
            request = JobRequest(pool=(str(pool),), model=model, activate=rebuild.activate, revision=revision)
            return self._store.create(request, job_id)
        except BaseException:
            pool.unlink(missing_ok=True)
            raise

    async def _spawn(self, record: JobRecord) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: nothing is imported from the folder that the server was started in.
                *(sys.executable, "-P", "-m", "polyrank.index_builder"),
                *("--store", str(self._settings.store), "--job", record.id),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=of_builder(self._settings.redis(), self._backend(record.request)),
                start_new_session=True,  # Ctrl-C at the server's terminal is for the server
            )
        except OSError as error:
            failed = record.finish(FAILED, error=f"the builder could not be started: {error.strerror}")
            await asyncio.to_thread(self._store.update, failed)
            self._on_end(failed)
            return
        build = _Build(process, partial(self._is_publishing, record.id))
        self._builds[record.id] = build
        build.task = asyncio.create_task(self._supervise(record.id, build))

    async def _supervise(self, job_id: str, build: "_Build") -> None:
        """Wait for the builder's end, see that the record tells of it, and serve what was built."""
        try:
            tail = await build.wait()
            record = await asyncio.to_thread(self._settle, job_id, build, tail)
            fields = {"job": job_id, "state": record.state, "error": record.error, "said": tail or None}
            log.info("rebuild ended", extra={"fields": fields})
            if record.state == SUCCEEDED:
                await self._on_success()
            self._on_end(record)
        except Exception:
            log.exception("rebuild %s could not be seen through", job_id)
        finally:
            del self._builds[job_id]

    def _settle(self, job_id: str, build: "_Build", tail: str) -> JobRecord:
        """Write the end down where the builder could not."""
        record = self._store.get(job_id)
        status = build.process.returncode
        # "interrupted" is what a reader of the record concludes before this does; here, more is known.
        if record.is_finished and not (record.error or "").startswith("interrupted"):
            return record
        if build.cancelled:
            self._discard(record)
            record = record.finish(CANCELLED)
        else:
            record = record.finish(FAILED, error=f"the builder ended with status {status}: {tail or 'it said nothing'}")
        self._store.update(record)
        return record

    def _discard(self, record: JobRecord) -> None:
        """Remove what a builder has left that had to be killed; what stays nevertheless, the next build removes."""
        if record.started is None:
            return
        store = GenerationStore(self._settings.store)
        try:
            store.discard_killed(datetime.fromisoformat(record.started), self._settings.redis())
        except (OSError, RankingError) as error:
            log.warning("a cancelled build has left something", extra={"fields": {"job": record.id, "why": error}})

    def _is_publishing(self, job_id: str) -> bool:
        try:
            return self._store.get(job_id).stage in PUBLISHING
        except JobNotFound:
            return False

    async def get(self, job_id: str) -> JobRecord:
        """Look a job up.

        Raises:
            JobNotFound: no job has this id.
        """
        ending = set(self._builds)
        return self._seen(await asyncio.to_thread(self._store.get, job_id), ending)

    async def list(self, limit: int) -> list[JobRecord]:
        """The latest jobs, newest first."""
        ending = set(self._builds)
        return [self._seen(record, ending) for record in (await asyncio.to_thread(self._store.records))[:limit]]

    async def running(self) -> JobRecord | None:
        """The job that has not ended, if any."""
        return next((record for record in await self.list(limit=10) if not record.is_finished), None)

    def _seen(self, record: JobRecord, ending: Collection[str] = ()) -> JobRecord:
        """As clients see it: a job has not ended before its builder is gone and what it built is served.

        Args:
            record: as it was read.
            ending: the builds that had not ended when the reading began: what was read may since have been amended.
        """
        if record.is_finished and (record.id in self._builds or record.id in ending):
            stage = SWITCHING if record.state == SUCCEEDED else record.stage
            return record.evolve(state=RUNNING, stage=stage, error=None, finished=None)
        return record

    async def cancel(self, job_id: str) -> JobRecord:
        """Ask a job to stop, whichever server started it; one that has ended stays as it is.

        Raises:
            JobNotFound: no job has this id.
        """
        build = self._builds.get(job_id)
        if build is not None:
            build.cancel()
        else:
            await asyncio.to_thread(self._store.withdraw, job_id)
        return await self.get(job_id)

    async def close(self) -> None:
        """Cancel what is running and wait for it."""
        for build in list(self._builds.values()):
            build.cancel()
            if build.task is not None:
                await build.task


class _Build:
    """A builder's process.

    Args:
        process: just started.
        is_publishing: tells whether it ends soon by itself, and would leave what others see if it were killed.
    """

    def __init__(self, process: asyncio.subprocess.Process, is_publishing: Callable[[], bool]) -> None:
        self.process = process
        self._is_publishing = is_publishing
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """SIGTERM now, SIGKILL when the grace is over and it does not publish meanwhile; at the first call only."""
        if self.cancelled or self.process.returncode is not None:
            return
        self.cancelled = True
        with suppress(ProcessLookupError):
            self.process.terminate()
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        if self.process.returncode is None and not self._is_publishing():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def wait(self) -> str:
        """Wait for the end; returns the last line it said on standard error."""
        assert self.process.stderr is not None, "opened as a pipe"
        tail = b""
        while chunk := await self.process.stderr.read(TAIL_BYTES):
            tail = (tail + chunk)[-TAIL_BYTES:]
        await self.process.wait()
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _check_kind(pool: Path) -> None:
    try:
        read_pool([pool])
    except PoolInvalid as error:
        raise InvalidInput(f"pool: {error.reason}") from error
