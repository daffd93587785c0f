"""Makes a build's vectors by encoders: processes of a Ray cluster, each with the model and one processor.

The builder hands out chunks and takes back their vectors; it alone writes matrix and journal. Each encoder has one
chunk at a time, and at most twice as many chunks as encoders are read ahead. A chunk whose encoder was lost is encoded
again: it comes first in the order, so the next free encoder gets it. Ray starts a lost encoder again where it can.

Vectors depend on what made them, so the builder resolves "auto" before, and every chunk says which model, back-end,
precision and software made it. A chunk that differs ends the build.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.scale.cluster import require_token
from polyrank.index_builder.vectors.encoder import CandidateEncoder, Model
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model import processor
from polyrank.model.errors import RankingError
from polyrank.model.inference import disk_cache
from polyrank.model.inference.compiler import code, versions
from polyrank.model.inference.runners import Runner
from polyrank.model.rankers import load as checkpoint
from polyrank.model.representations import Representations

_MOST_LOSSES = 5  # of encoders by one chunk, or of one encoder before it has begun
_LONGEST_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_SAY_WHO_WAITS_AFTER_SECONDS = 30.0


class Maker(NamedTuple):
    """What vectors depend on beside their texts. `software`: of polyrank and the libraries that run the model."""

    fingerprint: str
    backend: str
    precision: str
    software: str

    @classmethod
    def of(cls, model: Model) -> "Maker":
        software = [f"{name} {version}" for name, version in versions().items()]
        own = f"polyrank's model code {code('.')[:12]}"
        return cls(model.fingerprint, model.backend, model.rounding, ", ".join([own, *software]))

    def difference(self, other: "Maker") -> str:
        """Say how another differs: "backend torch, not openvino"; empty: it does not."""
        pairs = zip(self._fields, self, other, strict=True)
        return "; ".join(f"{name} {theirs}, not {ours}" for name, ours, theirs in pairs if ours != theirs)


class EncoderReport(NamedTuple):
    """What an encoder reports when it has loaded the model, and of each chunk that it has encoded."""

    maker: Maker
    host: str
    processor: str  # tells kinds apart
    truncated: int = 0


class Encoder:
    """The work of an encoder, in a process that Ray has started; its errors reach the builder as `BuildError`."""

    def __init__(self, model: str, runner: Runner, dtype: str) -> None:
        self._name, self._runner, self._dtype = model, runner, dtype

    def begin(self) -> EncoderReport:
        with _host_named():
            require_token()
            return EncoderReport(Maker.of(self._model), socket.gethostname(), processor.identity())

    def encode(self, texts: Sequence[str]) -> tuple[EncoderReport, Representations]:
        """Encode the texts of a chunk, and round the vectors to the store's dtype; they are fetched in their turn."""
        with _host_named():
            tokens, truncated = self._model.tokenize_candidates(texts)
            vectors = rounded_all(self._model.represent_candidates(tokens), self._dtype)
            return EncoderReport(Maker.of(self._model), socket.gethostname(), processor.identity(), truncated), vectors

    @cached_property
    def _model(self) -> CandidateEncoder:
        return checkpoint.load_retriever(self._name, *self._runner, disk=disk_cache.configured(os.environ))


@contextmanager
def _host_named() -> Iterator[None]:
    """Turn what is raised on purpose into an error that says where, and that can be sent."""
    try:
        yield
    except RankingError as error:
        raise BuildError(f"the encoder on {socket.gethostname()}: {error}") from error


@dataclass(eq=False, slots=True)
class _Job:
    """A chunk that was read ahead."""

    chunk: ChunkTexts
    is_assigned: bool = False  # whether an encoder has it, or has had it and was not lost
    report: EncoderReport | None = None  # what the encoder said when it was ready
    vectors: Any = None  # Ray's reference to what was made
    counted: bool = False  # whether its rows were told as progress; if it is lost afterwards they are not told again
    losses: int = 0  # how often its encoder, or what was made, was lost


@dataclass(eq=False, slots=True)
class _Worker:
    """An encoder as the builder sees it."""

    actor: Any
    begun: EncoderReport | None = None  # what it has said of itself since it was lost last; None: it is not ready
    answer: Any = None  # Ray's reference to what it was asked for; None: it was asked for nothing
    job: _Job | None = None
    losses: int = 0
    ask_at: float = 0.0  # when to ask it again, by time.monotonic


class Encoders:
    """A `VectorSource` for one build; the encoders end with it, or with this process.

    Args:
        model: the builder's own, whose back-end and precision are no longer "auto".
        source: the directory or name by which each encoder loads it.
        count: encoders to start. Those without a free processor begin when there is one.
        tell: called with a line for the user where encoders are missing, lost or of another kind.

    Calling it raises BuildError where an encoder cannot load the model or makes vectors by something else than the
    builder would, where no encoder stays alive, and where one chunk has ended five encoders.
    """

    def __init__(
        self, ray: Any, model: Model, source: str, dtype: str, count: int, tell: Callable[[str], None]
    ) -> None:
        self._ray, self._count, self._tell = ray, count, tell
        self._maker, self._processors = Maker.of(model), {processor.identity()}
        everywhere = str(Path(source).resolve()) if Path(source).is_dir() else source
        self._arguments = everywhere, Runner(model.backend, model.precision).asked_again(), dtype
        self._workers: list[_Worker] = []
        self._say_who_waits_at = 0.0
        self.retries = 0  # how often a chunk was encoded again because its encoder was lost

    def __call__(self, chunks: Iterator[ChunkTexts], on_done: Callable[[int], None]) -> Iterator[EncodedChunk]:
        jobs: deque[_Job] = deque()
        self._start()
        try:
            while self._read_ahead(chunks, jobs):
                self._ask(jobs)
                first = jobs[0]
                if first.report is None:
                    self._listen(on_done)
                elif (vectors := self._fetched(first)) is not None:
                    jobs.popleft()
                    yield EncodedChunk(first.chunk, vectors, first.report.truncated)
        finally:
            for worker in self._workers:
                self._ray.kill(worker.actor)

    def _start(self) -> None:
        kind = self._ray.remote(Encoder).options(
            num_cpus=1, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._workers = [_Worker(kind.remote(*self._arguments)) for _ in range(self._count)]
        self._say_who_waits_at = time.monotonic() + _SAY_WHO_WAITS_AFTER_SECONDS

    def _read_ahead(self, chunks: Iterator[ChunkTexts], jobs: deque[_Job]) -> bool:
        """Read up to twice as many chunks as there are encoders; returns whether any is left to yield."""
        while len(jobs) < 2 * self._count and (chunk := next(chunks, None)) is not None:
            jobs.append(_Job(chunk))
        return bool(jobs)

    def _ask(self, jobs: deque[_Job]) -> None:
        """Ask new and lost encoders to begin, and give each free one the first chunk that none has."""
        open_jobs = (job for job in jobs if not job.is_assigned)
        for worker in (each for each in self._workers if each.answer is None):
            if worker.begun is None:
                if time.monotonic() >= worker.ask_at:
                    worker.answer = worker.actor.begin.remote()
            elif (job := next(open_jobs, None)) is not None:
                job.is_assigned, worker.job = True, job
                worker.answer, job.vectors = worker.actor.encode.options(num_returns=2).remote(job.chunk.texts)

    def _listen(self, on_done: Callable[[int], None]) -> None:
        """Wait for an answer, but not for long, and take it in."""
        waiting = {worker.answer: worker for worker in self._workers if worker.answer is not None}
        if not waiting:  # all were lost, and are asked again in a while
            time.sleep(_LOOK_SECONDS)
            return
        answered, _ = self._ray.wait(list(waiting), timeout=_LOOK_SECONDS)
        for answer in answered:
            self._hear(waiting[answer], on_done)
        self._say_who_waits()

    def _hear(self, worker: _Worker, on_done: Callable[[int], None]) -> None:
        answer, job = worker.answer, worker.job
        worker.answer = worker.job = None
        try:
            report = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise _failed(error.cause) from error
        except self._ray.exceptions.RayError as error:
            self._lost(worker, job, error)
            return
        if difference := self._maker.difference(report.maker):
            raise BuildError(
                f"the encoder on {report.host} would make other vectors than this machine: {difference}; "
                "all machines need the same model and software"
            )
        if job is None:
            worker.begun, worker.losses = report, 0
            if report.processor not in self._processors:
                self._processors.add(report.processor)
                self._tell(
                    f"{report.host} has another processor than this machine: vectors may differ in their last bits"
                )
        else:
            job.report = report
            if not job.counted:
                job.counted = True
                on_done(len(job.chunk.ids))

    def _lost(self, worker: _Worker, job: _Job | None, error: Exception) -> None:
        """Take note that an encoder was lost; it is asked again, each time later, and its chunk is free again."""
        if getattr(error, "actor_init_failed", False):
            raise _failed(error) from error
        host = f"the encoder on {worker.begun.host}" if worker.begun else "an encoder"
        worker.begun = None
        worker.losses += 1
        worker.ask_at = time.monotonic() + min(_LONGEST_PAUSE_SECONDS, 2.0 ** (worker.losses - 2))
        reason = str(error).strip().partition("\n")[0]
        if all(each.losses >= _MOST_LOSSES for each in self._workers):
            raise BuildError(f"no encoder stays alive; the last one: {reason}")
        if job is None:
            self._tell(f"{host} was lost before it had begun: {reason}")
        else:
            self._free(job, host, reason)

    def _fetched(self, job: _Job) -> Representations | None:
        """Fetch what was made of a chunk; None: it was lost meanwhile, and the chunk is free again."""
        try:
            vectors: Representations = self._ray.get(job.vectors)
        except self._ray.exceptions.RayError as error:
            self._free(job, "what was made", str(error).strip().partition("\n")[0])
            return None
        return vectors

    def _free(self, job: _Job, what: str, reason: str) -> None:
        job.losses += 1
        if job.losses >= _MOST_LOSSES:
            raise BuildError(
                f"the chunk from row {job.chunk.start} has ended {job.losses} encoders; the last: {reason}"
            )
        self.retries += 1
        self._tell(f"{what} was lost; {len(job.chunk.ids)} candidates from row {job.chunk.start} are encoded again")
        job.is_assigned, job.report, job.vectors = False, None, None

    def _say_who_waits(self) -> None:
        if time.monotonic() < self._say_who_waits_at:
            return
        self._say_who_waits_at = float("inf")
        if waiting := sum(worker.begun is None and not worker.losses for worker in self._workers):
            processors = self._ray.cluster_resources().get("CPU", 0)
            self._tell(
                f"{waiting} of {self._count} encoders have not begun; each waits for one of the cluster's "
                f"{processors:.0f} processors, or loads the model"
            )


def _failed(cause: BaseException) -> BuildError:
    """Return what an encoder has raised, as one line."""
    if isinstance(cause, BuildError):
        return BuildError(str(cause))
    lines = str(cause).strip().splitlines() or [""]
    return BuildError(f"an encoder failed: {type(cause).__name__}: {lines[-1]}")
