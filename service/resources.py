"""Objects that live as long as the app (models, store, caches): made at start-up, closed at shutdown."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import Any, TypeVar

from polyrank.index_builder.building.job_records import SUCCEEDED, JobRecord, JobRequest, JobStore
from polyrank.index_builder.errors import disk_full_named
from polyrank.index_builder.scale.cluster import connected
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model import threads
from polyrank.model.errors import RankingError, Shortage, shortage_in
from polyrank.model.inference.runners import AUTO, INT8, TORCH, Runner
from polyrank.model.rankers.classifier import Classifier
from polyrank.service import machine
from polyrank.service.auth.buckets import SharedBuckets
from polyrank.service.auth.keys import Access
from polyrank.service.caching.result_cache import ResultCache
from polyrank.service.caching.vector_cache import Lru
from polyrank.service.caching.vectors import Caches
from polyrank.service.changes.jobs import Compacting, Jobs
from polyrank.service.changes.updating import Updating
from polyrank.service.errors import FeedbackUnusable, NotReady, PoolNotFound, SettingsError, StoreReadOnly
from polyrank.service.feedback.recording import Feedback
from polyrank.service.feedback.redaction import Redaction, named
from polyrank.service.live.models import (
    LoadClassifier,
    Loaders,
    LoadScorer,
    PairScorer,
    warm_up_classifier,
    warm_up_scorer,
)
from polyrank.service.live.searchable import Opener
from polyrank.service.live.switching import Holder, Live
from polyrank.service.live.trial import Trials
from polyrank.service.observe.logs import POOL
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.ranking.engine import Engine
from polyrank.service.ranking.here import Here
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.unranked import probe
from polyrank.service.scale.calls import Shards
from polyrank.service.scale.ray_shards import RayShards
from polyrank.service.scale.replica_choice import ReplicaChoice
from polyrank.service.scale.replicas import Replicas
from polyrank.service.scale.shard_holder import OnShards
from polyrank.service.scheduling.stages import FairThread
from polyrank.service.settings import Settings

LOOK_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
TIDY_SECONDS = 5.0
# Larger batches gain nothing on a CPU, and make others wait longer: docs/measurements/load.md.
CPU_BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 8_192  # twice as many take nearly twice as long: docs/measurements/gpu.md

NO_STORE = "this server has no store; start it with --store to rank a pool"

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resources:
    """What routes work with."""

    pool: str  # the name of the pool; empty where it has none
    metrics: Metrics
    store: GenerationStore
    live: Live[Serving]
    trials: Trials[Serving]  # the generation that is on trial beside the live one
    jobs: Jobs
    updating: Updating
    loader: ThreadPoolExecutor  # the one thread that opens the pool's generations and switches to them
    feedback: Feedback | None  # records rankings and what becomes of them; None: nothing does

    # The same for all pools of a server.
    settings: Settings
    runtime: Runtime
    engine: Engine
    trial_engine: Engine
    reading: FairThread  # the one thread that checks requests of many values
    access: Access
    results: ResultCache | None  # answers of /rank; None: they are not kept

    def engine_for(self, serving: Serving) -> Engine:
        """Return what ranks over a generation: a model that is not the live one's has a thread of its own."""
        live = self.live.current
        return self.engine if live is None or serving.ranker is live.ranker else self.trial_engine

    @property
    def has_pool(self) -> bool:
        """Whether there is a pool; without one only reranker and classifier serve."""
        return self.live.absent is None


@contextmanager
def writing(resources: Resources) -> Iterator[None]:
    """Raise DiskFull or StoreReadOnly where the store cannot be written to for these reasons."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreReadOnly from error
        with disk_full_named(resources.store.root):
            raise


@asynccontextmanager
async def opened(
    settings: Settings, metrics: Metrics, tracing: Tracing, loaders: Loaders, shared: SharedBuckets | None = None
) -> AsyncIterator[dict[str, Resources]]:
    """Load the models and the pools, and follow their stores until the end of the block; yields each by its name.

    There is always one without a name, if only an empty one. A generation that cannot be loaded is no error: the server
    starts, and `/readyz` says why it is not ready. `shared` counts the calls of a key if other processes serve beside
    this one. Raises SettingsError if the keys file is missing or broken.
    """
    threads.choose(_threads(settings))
    with ExitStack() as stack:
        open_pool: _OpenPool = _pool_here
        if settings.cluster is not None:
            ray = stack.enter_context(connected(settings.cluster))
            open_pool = partial(_pool_on_shards, RayShards(ray, str(settings.store[""].resolve()), settings.threads))
        access = Access(settings.keys_file, settings.rate_limit_per_s, metrics, shared=shared)
        async with _opened(settings, metrics, tracing, loaders, access, open_pool) as pools:
            yield pools


@dataclass(frozen=True, slots=True)
class _Look:
    """Something to look at once a second, or after another `pause`; `what` and `pool` name it in the log."""

    what: str
    look: Callable[[], Awaitable[None]]
    pause: float = field(default_factory=lambda: LOOK_SECONDS)
    longest_pause: float = 4 * LOOK_SECONDS  # after failures
    pool: str = ""


@dataclass(frozen=True, slots=True)
class _PoolSetup:
    """What a pool is opened with; `absent` as of `Live`, `loader` as of `Resources`, `redaction` as of `Feedback`."""

    name: str
    root: Path
    absent: Callable[[], RankingError] | None
    loader: ThreadPoolExecutor
    settings: Settings
    metrics: Metrics
    opener: Opener
    scorer: PairScorer | None
    redaction: Redaction | None

    def live(self, store: GenerationStore, holder: Holder[Serving]) -> Live[Serving]:
        reads_words = self.scorer is not None and self.scorer.evidence is not None
        return Live(store, holder, self.metrics, reads_words, self.absent)

    async def in_loader(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.loader, work, *arguments)


@dataclass(frozen=True, slots=True)
class _OpenedPool:
    """A pool as it is served: in this process, or by shards."""

    store: GenerationStore
    live: Live[Serving]
    longest_pause: float  # after failures to follow the store, in seconds
    looks: tuple[_Look, ...] = ()  # what keeps it up to date besides


_OpenPool = Callable[[_PoolSetup], AbstractAsyncContextManager[_OpenedPool]]


@asynccontextmanager
async def _pool_here(setup: _PoolSetup) -> AsyncIterator[_OpenedPool]:
    store = GenerationStore(setup.root, needs_matrix=setup.settings.vectors == "local")
    live = setup.live(store, Here(store, setup.opener))
    try:
        yield _OpenedPool(store, live, longest_pause=LONGEST_PAUSE_SECONDS)
    finally:
        live.current = live.beside = None


@asynccontextmanager
async def _pool_on_shards(shards: Shards, setup: _PoolSetup) -> AsyncIterator[_OpenedPool]:
    settings, metrics = setup.settings, setup.metrics
    choice = ReplicaChoice(metrics, settings.hedge_ms / 1000)
    replicas = Replicas(shards, choice, metrics, settings.shard_replicas)
    store = GenerationStore(setup.root)
    on_shards = OnShards(store, setup.opener, replicas, choice, metrics, settings.max_timeout_ms / 1000)
    live = setup.live(store, on_shards)
    look = _Look("the shards", partial(asyncio.to_thread, on_shards.look))
    try:
        yield _OpenedPool(store, live, 4 * LOOK_SECONDS, (look,))  # shards are back in seconds
    finally:
        live.current = live.beside = None
        await choice.close()
        await asyncio.to_thread(on_shards.close)


@asynccontextmanager
async def _opened(
    settings: Settings, metrics: Metrics, tracing: Tracing, loaders: Loaders, access: Access, open_pool: _OpenPool
) -> AsyncIterator[dict[str, Resources]]:
    async with AsyncExitStack() as stack:
        metrics.open.set(settings.is_open)
        redaction, hook = None, settings.feedback_redact
        if settings.feedback == "texts":
            redaction = Redaction(None if hook is None else named(hook))
        caches = Caches(settings, metrics)
        stack.callback(caches.close)
        reading = FairThread("reading")
        stack.callback(reading.close)
        loading = {
            name: stack.enter_context(ThreadPoolExecutor(1, "loader", POOL.set, (name,)))
            for name in dict.fromkeys(["", *settings.store])
        }
        in_loader = partial(asyncio.get_running_loop().run_in_executor, loading[""])
        scorer = await in_loader(_load_scorer, settings, loaders.scorer, metrics)
        classifier = await in_loader(_load_classifier, settings, loaders.classifier, metrics)
        opener = Opener(metrics.count_cache, caches, loaders.ranker, device_of(settings))
        opening = [
            _PoolSetup(
                *(name, *_place(settings, name)),
                loader=loader,
                settings=settings,
                metrics=metrics.of(name),
                opener=opener,
                scorer=scorer,
                redaction=redaction,
            )
            for name, loader in loading.items()
        ]
        pools = [(setup, await stack.enter_async_context(open_pool(setup))) for setup in opening]
        for setup, pool in pools:
            await setup.in_loader(pool.live.start)
        batch_tokens = CPU_BATCH_TOKENS if device_of(settings) == "cpu" else GPU_BATCH_TOKENS
        bounds = RuntimeSettings(
            batch_tokens=0 if settings.deterministic else batch_tokens,
            max_queue_tokens=settings.max_queue_tokens,
            threads=_threads(settings),
            min_searched=settings.min_searched,
        )
        runtime = Runtime(bounds, metrics, scorer, tracing, classifier)
        stack.push_async_callback(asyncio.to_thread, runtime.close)
        results, lifetime = None, settings.result_cache_ttl_s
        if lifetime:
            memory = Lru(settings.result_cache_mb * 2**20)
            results = ResultCache(memory, lifetime, metrics.count_cache, caches.server)
        make = partial(
            Resources,
            settings=settings,
            runtime=runtime,
            engine=Engine(runtime),
            trial_engine=Engine(runtime.for_trials()),
            reading=reading,
            access=access,
            results=results,
        )
        stores = {setup.name: JobStore(pool.store.root) for setup, pool in pools}
        resources = {setup.name: await _followed(stack, make, runtime, setup, pool, stores) for setup, pool in pools}
        lives = [one.live for one in resources.values() if one.has_pool] or [resources[""].live]
        looks = [
            _Look("the model", partial(_probe, runtime, lives)),
            _Look("the keys file", partial(asyncio.to_thread, access.look)),
            _Look("memory", partial(asyncio.to_thread, machine.Tidying().tidy), TIDY_SECONDS, LONGEST_PAUSE_SECONDS),
        ]
        for setup, pool in pools:
            looks += _looks(resources[setup.name], pool)
        async with _looking(looks):
            yield resources


def _place(settings: Settings, name: str) -> tuple[Path, Callable[[], RankingError] | None]:
    """Return the directory of a pool's store, and what is raised if there is no pool: then nobody makes it."""
    if (root := settings.store.get(name)) is not None:
        return root, None
    nowhere = Path(gettempdir(), f"polyrank-{token_hex()}")  # to be guessed by nobody else either
    return nowhere, partial(PoolNotFound, name) if settings.store else partial(NotReady, NO_STORE)


async def _followed(
    stack: AsyncExitStack,
    make: Callable[..., Resources],
    runtime: Runtime,
    setup: _PoolSetup,
    pool: _OpenedPool,
    jobs: Mapping[str, JobStore],
) -> Resources:
    """Make what routes work with of an open pool; `jobs` are those of all pools."""
    settings, metrics, store, live = setup.settings, setup.metrics, pool.store, pool.live
    show_last_build(metrics, await asyncio.to_thread(jobs[setup.name].records))
    feedback = await setup.in_loader(_feedback, setup)
    if feedback is not None:
        stack.push_async_callback(asyncio.to_thread, feedback.close)
    trials = Trials(store, live, metrics, feedback is not None)
    await setup.in_loader(trials.try_to_follow_trial)
    updating = Updating(store, live, runtime, metrics, setup.name)
    stack.push_async_callback(asyncio.to_thread, updating.close)
    own = Jobs(
        settings,
        store,
        partial(_runner_of_job, settings, live),
        partial(setup.in_loader, _switch, settings, store, live),
        partial(_show_job, metrics),
        {name: other for name, other in jobs.items() if name != setup.name},
    )
    stack.push_async_callback(own.close)
    return make(
        pool=setup.name,
        metrics=metrics,
        store=store,
        live=live,
        trials=trials,
        jobs=own,
        updating=updating,
        loader=setup.loader,
        feedback=feedback,
    )


def _feedback(setup: _PoolSetup) -> Feedback | None:
    """Return what records for a pool; None: nothing does. Raises SettingsError."""
    settings, root = setup.settings, setup.settings.store.get(setup.name)
    if root is None or settings.feedback == "off":
        return None
    try:
        return Feedback(root, setup.redaction, settings.feedback_days, settings.feedback_mb << 20, setup.metrics)
    except (FeedbackUnusable, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"feedback cannot be recorded in {root}: {why}") from error


def _looks(resources: Resources, pool: _OpenedPool) -> Iterator[_Look]:
    in_loader = partial(asyncio.get_running_loop().run_in_executor, resources.loader)
    live, trials = resources.live, resources.trials
    compacting = Compacting(resources.store, live, resources.jobs, resources.settings.compact_after)
    for look in (
        _Look("the active generation", partial(in_loader, live.follow_current), longest_pause=pool.longest_pause),
        _Look("the trial", partial(in_loader, trials.follow_trial), longest_pause=pool.longest_pause),
        _Look("the updates of the trial", partial(asyncio.to_thread, trials.receive)),
        *pool.looks,
        _Look("the log of updates", resources.updating.take_over),
        _Look("compaction", compacting.look),
    ):
        yield replace(look, pool=resources.pool)


@asynccontextmanager
async def _looking(looks: Iterable[_Look]) -> AsyncIterator[None]:
    """Look beside the block; at its end the looks end first, so that nothing new begins."""
    looking = [asyncio.create_task(_repeat(each)) for each in looks]
    try:
        yield
    finally:
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def _repeat(look: _Look) -> None:
    """Look again and again; after failures less often."""
    POOL.set(look.pool)
    pause = look.pause
    while True:
        await asyncio.sleep(pause)
        try:
            await look.look()
            pause = look.pause
        except Exception as error:
            pause = min(2 * pause, look.longest_pause)
            shortage = shortage_in(error)
            fields = {"what": look.what, "why": str(shortage or error), "again_in_seconds": pause}
            message = "what is looked at every second failed"
            log.error(message, exc_info=None if shortage else error, extra={"fields": fields})


async def _probe(runtime: Runtime, lives: Iterable[Live[Serving]]) -> None:
    for live in lives:
        await probe(runtime, live.current)


def _switch(settings: Settings, store: GenerationStore, live: Live[Serving]) -> None:
    """Serve what a job has built, and remove what is too old."""
    try:
        live.follow_current()
    except (Shortage, OSError) as error:  # tried again a second later
        log.warning("what was built is not served yet", extra={"fields": {"why": error}})
    collect(settings, store, live)


def collect(settings: Settings, store: GenerationStore, live: Live[Serving]) -> None:
    """Remove old generations, but none while another generation than the active one is served: any may be needed."""
    try:
        if live.current is None or live.current.generation.id != store.current():
            return
        removed = store.gc(settings.keep_generations, settings.redis())
    except (RankingError, OSError) as error:
        log.warning("old generations could not be removed", extra={"fields": {"why": error}})
        return
    if removed:
        log.info("old generations removed", extra={"fields": {"generations": removed}})


def _runner_of_job(settings: Settings, live: Live[Serving], request: JobRequest) -> Runner:
    """Return what is to run a job's model: for the model that is served, what runs it here.

    Where a setting is "auto", the job would measure beside a busy server and might choose something else.
    """
    if live.current is None or request.model is not None or device_of(settings) != "cpu":
        return Runner(settings.backend, settings.precision)
    ranker = live.current.ranker
    return Runner(ranker.backend, ranker.precision).asked_again()


def _show_job(metrics: Metrics, job: JobRecord) -> None:
    metrics.series(metrics.jobs, job.state).inc()
    show_last_build(metrics, [job])


def show_last_build(metrics: Metrics, jobs: Iterable[JobRecord]) -> None:
    """Show when the last of these jobs succeeded; compactions do not count, because they read no pool."""
    succeeded = (job.finished for job in jobs if job.state == SUCCEEDED and not job.request.compacts)
    if last := max(filter(None, succeeded), default=None):
        metrics.series(metrics.last_build).set(datetime.fromisoformat(last).timestamp())


def device_of(settings: Settings) -> str:
    """Return where the models run, "cpu" or a GPU. Raises SettingsError if there is no such GPU."""
    if settings.device == "auto":
        by_torch = settings.backend in (AUTO, TORCH) and settings.precision != INT8
        return "cuda" if by_torch and _has_gpu() else "cpu"
    if settings.device != "cpu" and not _has_gpu():
        raise SettingsError(f"device: there is no GPU for {settings.device!r}, or torch is built without CUDA")
    return settings.device


def _has_gpu() -> bool:
    """Whether torch finds a GPU; it is imported to look only where the system knows one."""
    if not machine.may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def _threads(settings: Settings) -> int:
    return settings.threads or min(threads.count(), machine.processors())


def _load_scorer(settings: Settings, load_cross: LoadScorer, metrics: Metrics) -> PairScorer | None:
    if settings.reranker is None:
        return None
    scorer = load_cross(settings.reranker)
    warm_up_scorer(scorer)
    runner = Runner(scorer.backend, scorer.precision)
    metrics.show_model("reranker", scorer.name, scorer.architecture, scorer.fingerprint, runner)
    return scorer


def _load_classifier(settings: Settings, load: LoadClassifier, metrics: Metrics) -> Classifier | None:
    if settings.classifier is None:
        return None
    classifier = load(settings.classifier)
    warm_up_classifier(classifier)
    network = classifier.network
    runner = Runner(network.backend, network.precision)
    metrics.show_model("classifier", network.name, network.architecture, network.fingerprint, runner)
    return classifier
