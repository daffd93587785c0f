"""Rebuild and compaction jobs: at most one at a time, each in a builder's process.

A job is queued (its record is on the disk), its builder is started, and a task watches it to its end: the record says
how it ended, the new generation is served, and only then clients see the job as ended. An Idempotency-Key starts one
job, also across restarts.
"""

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from polyrank.index_builder.building.job_records import (
    CANCELLED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    JobRecord,
    JobRequest,
    JobStore,
)
from polyrank.index_builder.building.stages import PUBLISHING
from polyrank.index_builder.errors import JobConflict, JobNotFound, PoolInvalid
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import UpdateLogs
from polyrank.model.checkpoint.lookup import LEXICAL
from polyrank.model.durable import write_atomically
from polyrank.model.errors import InvalidInput, RankingError, shortage_in
from polyrank.model.inference.runners import Runner
from polyrank.model.inputs import read_input
from polyrank.service import PREFIX
from polyrank.service.errors import HeaderInvalid, IdempotencyMismatch, NotConfigured, OtherPoolBuilt
from polyrank.service.live.switching import Live
from polyrank.service.ranking.parts import Serving
from polyrank.service.settings import Settings

KEY_PATTERN = r"^[\x21-\x7e]{1,255}$"
KEY = re.compile(KEY_PATTERN)
KEY_KEPT = timedelta(hours=24)
MOST_LOG_BYTES = 32 << 20  # some 35,000 updates of usual texts; their texts and vectors are in memory
FEWEST_COUNTED = 100  # of a smaller pool's words, half as many changes say little: under 50 texts no word counts at all
SWITCHING = "switch"
GRACE_SECONDS = 10.0  # of a builder that is asked to end
TAIL_BYTES = 4096  # of what it said

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A new generation to build."""

    pool: str | None = None  # a path under the pool root; None: the candidates below are the pool
    encoding: str | None = None  # of that file if it is CSV
    # The pool's rows, as objects with id, text and metadata; read once, in a thread.
    candidates: Iterable[Mapping[str, Any]] = ()
    model: str | None = None  # a path under the model root, or "lexical"; None: the active generation's model
    activate: bool = True  # serve the generation once it is built


def checked_key(key: str | None) -> str | None:
    """Return the value of the header if it is a key.

    Raises HeaderInvalid if it is empty, too long or has other than visible ASCII characters.
    """
    if key is not None and not KEY.fullmatch(key):
        raise HeaderInvalid("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return key


class IdempotencyKeys:
    """The keys of the last 24 hours, in `STORE/jobs/idempotency.json`; to be used by one caller at a time."""

    def __init__(self, store: Path) -> None:
        self._path = store / "jobs" / "idempotency.json"

    def job_of(self, key: str, body_sha256: str) -> str | None:
        """Return the id of the job that this key started, if any.

        Raises IdempotencyMismatch if it started one with another body.
        """
        entry = self._read().get(key)
        if entry is None:
            return None
        if entry["body_sha256"] != body_sha256:
            raise IdempotencyMismatch(entry["job"])
        return str(entry["job"])

    def remember(self, key: str, body_sha256: str, job_id: str) -> None:
        """Bind the key to a job, and forget keys older than 24 hours."""
        now = datetime.now(UTC)
        entries = {
            old: entry for old, entry in self._read().items() if now - datetime.fromisoformat(entry["at"]) < KEY_KEPT
        }
        entries[key] = {"job": job_id, "body_sha256": body_sha256, "at": now.isoformat()}
        write_atomically(self._path, orjson.dumps(entries))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            entries: dict[str, dict[str, Any]] = orjson.loads(read_input(self._path))
        except (OSError, orjson.JSONDecodeError) as error:
            if shortage := shortage_in(error):
                raise shortage from error
            return {}
        return entries


class Jobs:
    """Starts, watches and cancels the jobs of one store.

    `runner_of` returns what runs a job's model. `on_success` serves the new generation; the job counts as
    running until it returns. `on_end` receives every job that has ended. `others` are the jobs of the server's other
    pools: builders take processors and memory, so one of all pools runs at a time.
    """

    def __init__(
        self,
        settings: Settings,
        generations: GenerationStore,
        runner_of: Callable[[JobRequest], Runner],
        on_success: Callable[[], Awaitable[None]],
        on_end: Callable[[JobRecord], None],
        others: Mapping[str, JobStore] = MappingProxyType({}),
    ) -> None:
        self._settings, self._generations = settings, generations
        self._runner_of, self._on_success, self._on_end = runner_of, on_success, on_end
        self._store, self._keys = JobStore(generations.root), IdempotencyKeys(generations.root)
        self._others = others
        self._starting = asyncio.Lock()
        self._builders: dict[str, tuple[BuilderProcess, asyncio.Task[None]]] = {}

    async def start(self, rebuild: Rebuild, raw: bytes, key: str | None, has_active: bool) -> JobRecord:
        """Start a rebuild; an Idempotency-Key that was used before returns the job that it started.

        The request's raw body distinguishes a repeated request from another one with the same key. With `has_active`
        there is an active generation, whose model can be used.

        Raises:
            JobConflict: another job has not finished.
            IdempotencyMismatch: the key was used with another rebuild.
            NotConfigured: the request names a pool or a model, but the server has no root for them.
            InvalidInput: the pool or the model is not where the request says.
        """
        async with self._starting:
            record, is_new = await asyncio.to_thread(self._queue_once, rebuild, raw, key, has_active)
            if is_new:
                await self._spawn(record)
        return self._seen(record)

    async def compact(self) -> JobRecord:
        """Start a compaction of the active generation. Raises JobConflict if another job has not finished."""
        async with self._starting:
            record = await asyncio.to_thread(self._create, JobRequest(pool=(), compacts=True))
            await self._spawn(record)
        return self._seen(record)

    # --- queueing, in a thread

    def _queue_once(self, rebuild: Rebuild, raw: bytes, key: str | None, has_active: bool) -> tuple[JobRecord, bool]:
        """Return the key's job, or queue a new one; and whether it is new."""
        digest = sha256(raw).hexdigest()
        if key is not None and (job_id := self._keys.job_of(key, digest)) is not None:
            with suppress(JobNotFound):  # the record of an old job may be gone
                return self._store.get(job_id), False
        self._refuse_second()  # before a pool is read
        record = self._queue(rebuild, has_active)
        if key is not None:
            self._keys.remember(key, digest, record.id)
        return record, True

    def _create(self, request: JobRequest, job_id: str | None = None) -> JobRecord:
        """Queue a job while nobody queues one of another pool."""
        with self._store.alone_among(self._others.values()):
            self._refuse_second()
            return self._store.create(request, job_id)

    def _refuse_second(self) -> None:
        if (active := self._store.active()) is not None:
            raise JobConflict(active.id)
        if self._builders:  # the job's record has ended, its process has not
            raise JobConflict(next(iter(self._builders)))
        for pool, jobs in self._others.items():
            if (active := jobs.active()) is not None:
                raise OtherPoolBuilt(active.id, pool)

    def _queue(self, rebuild: Rebuild, has_active: bool) -> JobRecord:
        if rebuild.model is None and not has_active:
            raise InvalidInput("model: no generation is active whose model could be used; name one")
        model = rebuild.model
        if model not in (None, LEXICAL):
            model = str(confined(self._settings.model_root, model, "model"))
        job_id = self._store.new_id()
        if rebuild.pool is not None:
            pool = confined(self._settings.pool_root, rebuild.pool, "pool")
            try:
                read_pool([pool])
            except PoolInvalid as error:
                raise InvalidInput(f"pool: {error.reason}") from error
            wanted = JobRequest(pool=(str(pool),), encoding=rebuild.encoding, model=model, activate=rebuild.activate)
            return self._create(wanted, job_id)
        pool = self._store.inline_pool(job_id)
        try:
            with pool.open("wb") as file:
                for candidate in rebuild.candidates:
                    file.write(orjson.dumps(candidate, option=orjson.OPT_APPEND_NEWLINE))
            revision = UpdateLogs(self._generations.root).highest()  # updates after the request are newer than its pool
            request = JobRequest(pool=(str(pool),), model=model, activate=rebuild.activate, revision=revision)
            return self._create(request, job_id)
        except BaseException:
            pool.unlink(missing_ok=True)
            raise

    # --- running

    async def _spawn(self, record: JobRecord) -> None:
        runner, is_publishing = self._runner_of(record.request), partial(self._is_publishing, record.id)
        try:
            builder = await BuilderProcess.start(
                self._settings, self._generations.root, record.id, runner, is_publishing
            )
        except OSError as error:
            failed = record.finish(FAILED, error=f"the builder could not be started: {error.strerror}")
            await asyncio.to_thread(self._store.update, failed)
            self._on_end(failed)
            return
        self._builders[record.id] = builder, asyncio.create_task(self._watch(record.id, builder))

    def _is_publishing(self, job_id: str) -> bool:
        try:
            return self._store.get(job_id).stage in PUBLISHING
        except JobNotFound:
            return False

    async def _watch(self, job_id: str, builder: "BuilderProcess") -> None:
        """Wait for the builder's end, see that the record says how it ended, and serve what was built."""
        try:
            status, lines = await builder.wait()
            record = await asyncio.to_thread(self._settled, job_id, builder.cancelled, status, lines)
            said = "; ".join(lines) or None
            fields = {"job": job_id, "state": record.state, "error": record.error, "said": said}
            log.info("rebuild ended", extra={"fields": fields})
            if record.state == SUCCEEDED:
                await self._on_success()
            self._on_end(record)
        except Exception:
            log.exception("rebuild %s could not be seen through", job_id)
        finally:
            del self._builders[job_id]

    def _settled(self, job_id: str, cancelled: bool, status: int, lines: Sequence[str]) -> JobRecord:
        """Return the record of a job whose builder has ended; write the end down where the builder could not."""
        record = self._store.get(job_id)
        # A reader may have concluded "interrupted" a moment ago; here the reason is known.
        if record.is_finished and not (record.error or "").startswith("interrupted"):
            return record
        if cancelled:
            self._discard(record)
            record = record.finish(CANCELLED)
        else:
            said = lines[-1].strip() if lines else "it said nothing"
            record = record.finish(FAILED, error=f"the builder ended with status {status}: {said}")
        self._store.update(record)
        return record

    def _discard(self, record: JobRecord) -> None:
        """Remove what a killed builder has left; if that fails, the next build removes it."""
        if record.started is None:
            return
        try:
            self._generations.discard_killed(datetime.fromisoformat(record.started), self._settings.redis())
        except (OSError, RankingError) as error:
            log.warning("a cancelled build has left something", extra={"fields": {"job": record.id, "why": error}})

    # --- looking, cancelling, ending

    async def get(self, job_id: str) -> JobRecord:
        ending = set(self._builders)
        return self._seen(await asyncio.to_thread(self._store.get, job_id), ending)

    async def list(self, limit: int) -> list[JobRecord]:
        """Return the latest jobs, newest first."""
        ending = set(self._builders)
        return [self._seen(record, ending) for record in (await asyncio.to_thread(self._store.records))[:limit]]

    async def running(self) -> JobRecord | None:
        return next((record for record in await self.list(limit=10) if not record.is_finished), None)

    def _seen(self, record: JobRecord, ending: Collection[str] = ()) -> JobRecord:
        """Return a job as clients see it: it runs until its builder is gone and what it built is served.

        `ending` are the jobs that had builders when the reading began; what was read may have been amended since.
        """
        if record.is_finished and (record.id in self._builders or record.id in ending):
            running = record.evolve(state=RUNNING, error=None, finished=None)
            return running.evolve(stage=SWITCHING, done=0) if record.state == SUCCEEDED else running
        return record

    async def cancel(self, job_id: str) -> JobRecord:
        """Ask a job to stop, whichever server started it; one that has ended stays as it is."""
        if job_id in self._builders:
            self._builders[job_id][0].cancel()
        else:
            await asyncio.to_thread(self._store.withdraw, job_id)
        return await self.get(job_id)

    async def close(self) -> None:
        """Cancel what is running and wait for its end."""
        for builder, watching in list(self._builders.values()):
            builder.cancel()
            await watching


def confined(root: Path | None, given: str, field: str) -> Path:
    """Return the path that a client names in a field; it must lie below the root, links followed.

    Raises:
        NotConfigured: the root is not set.
        InvalidInput: the path leads out of the root, or to nothing.
    """
    if root is None:
        raise NotConfigured(f"{field}: this server reads none; start it with the setting {field}_root")
    with suppress(OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL byte
        base = root.resolve()
        path = (base / given).resolve()
        if path != base and path.is_relative_to(base) and path.exists():
            return path
    raise InvalidInput(f"{field}: there is no {given[:200]!r} under the server's {field} root")


class BuilderProcess:
    """The process of a builder, `python -m polyrank.index_builder --job ID`.

    `is_publishing` returns whether it is about to end by itself, and would leave what others see if it were killed now.
    `cancelled`: `cancel` was called before its end.
    """

    def __init__(self, process: asyncio.subprocess.Process, is_publishing: Callable[[], bool]) -> None:
        self._process, self._is_publishing = process, is_publishing
        self.cancelled = False

    @classmethod
    async def start(
        cls, settings: Settings, store: Path, job_id: str, runner: Runner, is_publishing: Callable[[], bool]
    ) -> "BuilderProcess":
        process = await asyncio.create_subprocess_exec(
            # -P: nothing is imported from the folder that the server was started in.
            *(sys.executable, "-P", "-m", "polyrank.index_builder", "--store", str(store), "--job", job_id),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(settings, runner),
            start_new_session=True,  # Ctrl-C at the server's terminal is for the server
        )
        return cls(process, is_publishing)

    def cancel(self) -> None:
        """Send SIGTERM, and SIGKILL when the grace is over, unless it publishes then; a second call does nothing."""
        if self.cancelled or self._process.returncode is not None:
            return
        self.cancelled = True
        with suppress(ProcessLookupError):
            self._process.terminate()
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        if self._process.returncode is None and not self._is_publishing():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> tuple[int, list[str]]:
        """Wait for its end; returns the exit status and the last lines on standard error."""
        assert self._process.stderr is not None, "opened as a pipe"
        tail = b""
        while chunk := await self._process.stderr.read(TAIL_BYTES):
            tail = (tail + chunk)[-TAIL_BYTES:]
        status = await self._process.wait()
        return status, tail.decode("utf-8", "replace").strip().splitlines()


def _environment(settings: Settings, runner: Runner) -> dict[str, str]:
    """The server's environment, with its Redis and cluster, what runs the job's model, and where that is kept."""
    told = {
        "REDIS_URL": settings.redis(),
        "CLUSTER": settings.cluster,
        "BACKEND": runner.backend,
        "PRECISION": runner.precision,
        "COMPILED_CACHE_DIR": str(settings.compiled_cache_dir or ""),
        "COMPILED_CACHE_MB": str(settings.compiled_cache_mb),
    }
    return {**os.environ, **{f"{PREFIX}{name}": value or "" for name, value in told.items()}}


class Compacting:
    """Starts a compaction when updates have changed many rows.

    So many upserts and deletions as `after` make one due, or a log of so many bytes as MOST_LOG_BYTES. Where words
    count, half as many as there were texts when they were counted do so too, because how rare each word is has changed
    then. After one was begun, or could not be, twice as much makes the next one due. `after` 0: it never is.
    """

    def __init__(self, store: GenerationStore, live: Live[Serving], jobs: Jobs, after: int) -> None:
        self._store, self._live, self._jobs, self._after = store, live, jobs, after
        self._generation, self._due = "", 1.0

    async def look(self) -> None:
        """Start one if it is due and nothing else is being built.

        Raises OSError if the system lacks something for the moment, such as descriptors; the next look tries again.
        """
        current = self._live.current
        if not self._after or current is None:
            return
        if current.generation.id != self._generation:
            self._generation, self._due = current.generation.id, 1.0
        changed = current.snapshot.changes
        share = max(changed / self._after, current.log.size / MOST_LOG_BYTES)
        if (words := current.generation.words) is not None:
            share = max(share, 2 * changed / max(words.table.statistics.texts, FEWEST_COUNTED))
        if share < self._due or not current.snapshot.count:
            return
        if not all(part.has_matrix for part in current.parts):
            return
        if await asyncio.to_thread(self._store.current_or_none) != current.generation.id:
            return  # another one stands in for the active generation
        try:
            record = await self._jobs.compact()
        except JobConflict:
            return  # tried again at the next look
        except OSError as error:
            if shortage_in(error):
                raise
            self._due = 2 * share
            log.warning("nothing can be compacted from here", extra={"fields": {"why": error}})
            return
        self._due = 2 * share  # if this one fails, the next try comes later
        log.info("compacting", extra={"fields": {"job": record.id, "changed": changed, "log_bytes": current.log.size}})
