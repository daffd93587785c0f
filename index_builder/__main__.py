"""`python -m polyrank.index_builder --store S --job ID`: run one queued index job to its end.

The job has a process of its own, so that it can be killed, run at low priority and run out of memory without the
service. SIGTERM, Ctrl-C and `JobStore.withdraw` cancel it, and nothing is left of it. Once it has begun to publish,
they are ignored. Exit status: 0 done, 1 failed or cancelled, 2 wrong usage.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.job_records import CANCELLED, FAILED, SUCCEEDED, JobRecord, JobRequest, JobStore
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.building.stages import PUBLISHING, OnProgress
from polyrank.index_builder.errors import FingerprintMismatch, GenerationNotFound, StoreBusy
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import CandidateEncoder
from polyrank.model.errors import RankingError
from polyrank.model.inference import disk_cache
from polyrank.model.inference.runners import AUTO

_REPORT_SECONDS = 0.5
_LOOK_FOR_WITHDRAWAL_SECONDS = 0.5
_END_WITHIN_SECONDS = 600.0  # a job that has ended waits so long to say so: nobody else knows what it has built
_NICENESS = 10  # the server on the same machine goes first


class _Cancelled(BaseException):
    """Raised by the signal handler, wherever the build is."""


class _Reporter:
    """Writes progress into the job's record: each new stage at once, the rest at most every half second.

    A signal stops the build at once. If it arrives inside a destructor, where Python swallows exceptions, the build
    stops at its next progress report.
    """

    def __init__(self, jobs: JobStore, record: JobRecord) -> None:
        self._jobs, self.record = jobs, record
        self._stage_began: dict[str, tuple[float, int]] = {}
        self._reported = -_REPORT_SECONDS
        self._cancelled = False

    def cancel(self, _number: int, _frame: FrameType | None) -> None:
        _handle_signals(signal.SIG_IGN)  # a second signal must not disturb the cleaning up
        self._cancelled = True
        raise _Cancelled

    def __call__(self, stage: str, count: int, total: int | None) -> None:
        if self._cancelled:
            raise _Cancelled
        if stage in PUBLISHING:
            _handle_signals(signal.SIG_IGN)  # a cancelled job must not leave a generation that others see
        now = time.monotonic()
        if stage not in self._stage_began:
            self._stage_began[stage] = now, count
        elif now - self._reported < _REPORT_SECONDS:
            return
        began, first = self._stage_began[stage]
        rate = (count - first) / (now - began) if count > first and now > began else None
        eta = (total - count) / rate if rate and total is not None else None
        self.record = self.record.evolve(stage=stage, done=count, total=total, rate=rate, eta_seconds=eta)
        with suppress(StoreBusy):  # progress is told the next time
            self._jobs.update(self.record)
        self._reported = now


def main() -> int:
    """Run the job that the command line names; its record says how it ended."""
    parser = argparse.ArgumentParser(prog="python -m polyrank.index_builder", description="Run one queued index job.")
    parser.add_argument("--store", type=Path, required=True, help="the store's directory")
    parser.add_argument("--job", required=True, help="the job's id")
    arguments = parser.parse_args()
    jobs = JobStore(arguments.store)
    try:
        with jobs.running(arguments.job) as record:
            return _run(arguments.store, _Reporter(jobs, record), jobs)
    except RankingError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(root: Path, reporter: _Reporter, jobs: JobStore) -> int:
    os.nice(_NICENESS)
    ended = threading.Event()
    arguments = (jobs, reporter.record.id, ended)
    try:
        _handle_signals(reporter.cancel)
        threading.Thread(target=_watch_for_withdrawal, args=arguments, name="withdrawal", daemon=True).start()
        generation, notes = _generation(reporter.record.request, root, reporter)
    except _Cancelled:
        final = reporter.record.finish(CANCELLED)
    except RankingError as error:
        final = reporter.record.finish(FAILED, error=_message(error, reporter.record.request))
    except Exception as error:
        record = reporter.record.finish(FAILED, error=f"{type(error).__name__}: {error}")
        with suppress(StoreBusy):  # the error says more
            jobs.update(record, within_seconds=_END_WITHIN_SECONDS)
        raise
    else:
        final = reporter.record.evolve(notes=notes).finish(SUCCEEDED, generation=generation)
    finally:
        ended.set()
        _handle_signals(signal.SIG_IGN)  # how the job ended is recorded, even if it is cancelled now
    jobs.update(final, within_seconds=_END_WITHIN_SECONDS)
    return 0 if final.state == SUCCEEDED else 1


def _message(error: RankingError, request: JobRequest) -> str:
    """Return what went wrong, with the name of the model that was asked for in place of where it lies."""
    from polyrank.model.checkpoint.lookup import called  # takes a while to import

    return str(error) if request.model is None else str(error).replace(request.model, called(request.model))


def _watch_for_withdrawal(jobs: JobStore, job_id: str, ended: threading.Event) -> None:
    while not jobs.is_withdrawn(job_id):
        if ended.wait(_LOOK_FOR_WITHDRAWAL_SECONDS):
            return
    os.kill(os.getpid(), signal.SIGTERM)


def _handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _generation(request: JobRequest, root: Path, progress: OnProgress) -> tuple[str, list[str]]:
    """Build what the job asks for; returns the id of the generation, and what is to be known about it."""
    # The server's Redis holds the lease; shards read vectors from the disk, so they need no copy there.
    url, cluster = (os.environ.get(f"POLYRANK_{name}") or None for name in ("REDIS_URL", "CLUSTER"))
    if request.compacts:
        result = compact(root, redis_url=url, copies_vectors=cluster is None, progress=progress)
        fields = []
    else:
        pool, store = read_pool(request.pool, root, request.encoding), GenerationStore(root)
        encoder, parts = _encoder(request, store), 1
        options = BuildOptions(
            activate=request.activate, revision=request.revision, redis_url=url, copies_vectors=cluster is None
        )
        if (active := store.active_or_none()) is not None:  # who chose its dtype and parts is not asked again
            options, parts = replace(options, dtype=active.dtype), len(active.parts)
        result = build(encoder, pool, root, options, parts=parts, progress=progress)
        fields = pool.fields.lines()
    notes = [*fields, *result.reuse_notes, *result.notes]
    with suppress(BrokenPipeError):  # the server that would log it may be gone
        sys.stderr.writelines(f"{note}\n" for note in notes)
    return result.generation, notes


def _load(name: str) -> CandidateEncoder:
    from polyrank.model.rankers import load as checkpoint  # may import torch: only after the job was taken

    backend = os.environ.get("POLYRANK_BACKEND") or AUTO
    precision = os.environ.get("POLYRANK_PRECISION") or AUTO
    return checkpoint.load_retriever(name, backend, precision, disk_cache.configured(os.environ))


def _encoder(request: JobRequest, store: GenerationStore) -> CandidateEncoder:
    """The model that is named, or that of the active generation under its original name, not the path of its copy."""
    if request.model:
        return _load(request.model)
    current = store.current()
    if current is None:
        raise GenerationNotFound(f"{store.root} has no active generation whose model could be used; name a model")
    encoder, reference = _load(str(store.model_directory(current))), store.manifest(current).model
    if encoder.fingerprint != reference.fingerprint:
        raise FingerprintMismatch(reference.fingerprint, encoder.fingerprint)
    encoder.name = reference.name
    return encoder


if __name__ == "__main__":
    sys.exit(main())
