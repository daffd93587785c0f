"""The records of index jobs on disk: what was asked for, how far the job is, how it ended.

STORE/jobs/<id>.json    the record, replaced atomically
STORE/jobs/<id>.jsonl   candidates that came with the request, if any; removed when the job ends
STORE/jobs/<id>.lock    held by the process that runs the job; the kernel releases it however that process ends
STORE/jobs/<id>.cancel  asks that process, wherever it runs, to stop; removed when the job ends
STORE/jobs/alone.lock   held by a process that looks at several stores before it queues a job
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.errors import JobConflict, JobNotFound, StoreBusy
from polyrank.index_builder.layout import is_time_id, new_time_id
from polyrank.index_builder.store.locks import is_locked, locked, try_locked
from polyrank.model.durable import make_directory, write_atomically
from polyrank.model.errors import shortage_in
from polyrank.model.inputs import read_input

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = "queued", "running", "succeeded", "failed", "cancelled"
DONE = "done"  # the stage of a job that has succeeded

# A job that is queued for longer is never started: the process that should have started it is gone.
_QUEUED_AT_MOST = timedelta(seconds=60)
KEPT_RECORDS = 100


def _now() -> str:
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What to build."""

    pool: tuple[str, ...]
    encoding: str | None = None  # of its CSV files, see `read_pool`
    model: str | None = None  # checkpoint or base model; None: the active generation's
    activate: bool = True
    revision: int | None = None
    compacts: bool = False  # compact the active generation; the other fields do not count then


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it was last recorded; its times are in ISO 8601, UTC."""

    id: str
    request: JobRequest
    created: str
    state: str = QUEUED
    # Of a build, see `build`, or DONE. `done`, `total`, `rate` (candidates a second), `eta_seconds` belong to this
    # stage, and are None while they are unknown.
    stage: str | None = None
    done: int = 0
    total: int | None = None
    rate: float | None = None
    eta_seconds: float | None = None
    error: str | None = None
    generation: str | None = None
    notes: list[str] = field(default_factory=list)  # to be known: the pool's fields, the choice of the index
    started: str | None = None
    finished: str | None = None
    pid: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.state not in (QUEUED, RUNNING)

    def evolve(self, **changes: Any) -> "JobRecord":
        return replace(self, **changes)

    def finish(self, state: str, *, error: str | None = None, generation: str | None = None) -> "JobRecord":
        """A copy of the record that ends now; the stage is the last one, or "done" if the job has succeeded."""
        ended = self.evolve(state=state, error=error, generation=generation, finished=_now(), eta_seconds=None)
        return ended.evolve(stage=DONE, done=1, total=1, rate=None) if state == SUCCEEDED else ended


class JobStore:
    """The jobs of a store; safe to use from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._jobs = root / "jobs"

    def new_id(self) -> str:
        """Make an id that sorts after every other: old records are those that sort first, and they are removed."""
        return new_time_id(self._ids(), secrets.token_hex(4))

    def inline_pool(self, job_id: str) -> Path:
        """The file for candidates that come with a request, to be written before `create`; its directory is made."""
        make_directory(self._jobs)
        return self._path(job_id, ".jsonl")

    @contextmanager
    def alone_among(self, others: Iterable["JobStore"]) -> Iterator[None]:
        """Let nobody else who asks for the same queue a job here or there for the block.

        Each has a lock that is made before those of the others are looked for, so two always find one in common. One
        that this process may not write to is left out: no job can be queued there from here.
        """
        make_directory(self._jobs)
        own, *rest = (store._jobs.resolve() / "alone.lock" for store in (self, *others))
        with try_locked(own):
            pass  # it is there now
        with ExitStack() as stack:
            for lock in sorted({own, *rest}):  # in one order, so that two never wait for each other
                if os.access(lock, os.W_OK):
                    stack.enter_context(locked(lock))
            yield

    def create(self, request: JobRequest, job_id: str | None = None) -> JobRecord:
        """Queue a job and remove old records. Raises JobConflict, and removes the inline pool, if another is active."""
        make_directory(self._jobs)
        with locked(self._jobs / "create.lock"):
            record = JobRecord(id=job_id or self.new_id(), request=request, created=_now())
            if (active := self.active()) is not None:
                self._path(record.id, ".jsonl").unlink(missing_ok=True)
                raise JobConflict(active.id)
            self.update(record)
            for old in self._ids()[:-KEPT_RECORDS]:
                for suffix in (".json", ".jsonl", ".lock", ".cancel"):
                    self._path(old, suffix).unlink(missing_ok=True)
        return record

    def update(self, record: JobRecord, *, within_seconds: float | None = None) -> None:
        """Write a record. When the job has ended, its inline candidates are removed.

        `within_seconds`: how long to wait for the lock; None: as long as for every other.
        """
        with locked(self._jobs / "update.lock", within_seconds=within_seconds):
            self._write(record)

    def _write(self, record: JobRecord) -> None:
        write_atomically(self._path(record.id, ".json"), orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2))
        if record.is_finished:
            for suffix in (".jsonl", ".cancel"):
                self._path(record.id, suffix).unlink(missing_ok=True)

    def get(self, job_id: str) -> JobRecord:
        """Read a job's record, else raise JobNotFound. A job whose process has died counts as failed."""
        record = self._read(job_id)
        if (current := self._as_of_now(record)) is record:
            return record
        with suppress(OSError, StoreBusy), locked(self._jobs / "update.lock"):
            # The process that knows how the job ended may have written it meanwhile: read again, alone.
            record = self._read(job_id)
            if (current := self._as_of_now(record)) is not record:
                self._write(current)
        return current  # where this process may not write, every reader comes to the same conclusion

    def records(self) -> list[JobRecord]:
        """All jobs, newest first. A record that cannot be read is left out."""
        records = []
        for job_id in reversed(self._ids()):
            with suppress(JobNotFound):
                records.append(self.get(job_id))
        return records

    def active(self) -> JobRecord | None:
        return next((record for record in self.records() if not record.is_finished), None)

    @contextmanager
    def running(self, job_id: str) -> Iterator[JobRecord]:
        """Run a job in the block: no other process can take it. Raises JobConflict if it is not queued (any more)."""
        self._read(job_id)
        with try_locked(self._path(job_id, ".lock")) as has_lock:
            record = self._read(job_id)
            if not has_lock or record.state != QUEUED:
                raise JobConflict(job_id)
            record = record.evolve(state=RUNNING, started=_now(), pid=os.getpid())
            self.update(record)
            yield record

    def withdraw(self, job_id: str) -> JobRecord:
        """Cancel a queued job, or ask the process that runs it to stop. A job that has ended stays as it is."""
        if not self.get(job_id).is_finished:
            with try_locked(self._path(job_id, ".lock")) as has_lock:
                record = self._read(job_id)
                if has_lock and record.state == QUEUED:  # no process can take it now
                    self.update(record.finish(CANCELLED))
                elif not has_lock:
                    self._path(job_id, ".cancel").touch()
        return self.get(job_id)

    def is_withdrawn(self, job_id: str) -> bool:
        return self._path(job_id, ".cancel").exists()

    def _as_of_now(self, record: JobRecord) -> JobRecord:
        """Return the record itself, or another one: failed if nobody will end the job, or younger.

        A queued job of the future was created before the clock was set back. Its age is unknown and counts from now on.
        """
        if record.state == RUNNING and not is_locked(self._path(record.id, ".lock")):
            return record.finish(FAILED, error="interrupted: the process that ran it is gone")
        age = datetime.now(UTC) - datetime.fromisoformat(record.created)
        if record.state == QUEUED and age > _QUEUED_AT_MOST:
            return record.finish(FAILED, error="it was never started")
        if record.state == QUEUED and age < -_QUEUED_AT_MOST:
            return record.evolve(created=_now())
        return record

    def _ids(self) -> list[str]:
        return sorted(path.stem for path in self._jobs.glob("*.json") if is_time_id(path.stem))

    def _path(self, job_id: str, suffix: str) -> Path:
        if not is_time_id(job_id):  # a request's text must not become a path
            raise JobNotFound(job_id[:80])
        return self._jobs / f"{job_id}{suffix}"

    def _read(self, job_id: str) -> JobRecord:
        try:
            content = orjson.loads(read_input(self._path(job_id, ".json")))
            request = content.pop("request")
            return JobRecord(request=JobRequest(**{**request, "pool": tuple(request["pool"])}), **content)
        # The record is gone, no file, damaged, or of another version.
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise shortage_in(error) or JobNotFound(job_id) from error
