"""What an app holds while it runs: made when it starts, let go of when it ends."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import torch
from starlette.requests import Request

from polyrank.index_builder.build.job_records import SUCCEEDED, JobRecord, JobRequest, JobStore
from polyrank.index_builder.errors import GenerationError, StoreUnavailable, disk_full_named
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.inference.names import AUTO, TORCH
from polyrank.service import processors
from polyrank.service.auth.access import Access
from polyrank.service.caching.caches import Caches
from polyrank.service.caching.lru import Lru
from polyrank.service.changes.compacting import Compacting
from polyrank.service.changes.jobs import Jobs
from polyrank.service.changes.updating import Updating
from polyrank.service.errors import SettingsError, StoreReadOnly
from polyrank.service.live.models import LoadRanker, LoadScorer, PairScorer, warm_up_scorer
from polyrank.service.live.serving import Opener
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.ranking.engine import Engine, EngineSettings
from polyrank.service.ranking.result_cache import ResultCache
from polyrank.service.settings import Settings

FOLLOW_SECONDS = 1.0
# Larger batches gain nothing on a CPU, and make others wait longer: docs/measurements/load.md.
CPU_BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 16_384

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts that routes work with; `loader` is the thread that opens generations."""

    settings: Settings
    metrics: Metrics
    store: GenerationStore
    live: Live
    engine: Engine
    jobs: Jobs
    updating: Updating
    loader: ThreadPoolExecutor
    access: Access
    results: ResultCache | None


def resources(request: Request) -> Resources:
    """Return the resources of the app that the request came to."""
    return cast(Resources, request.app.state.resources)


@contextmanager
def writing(held: Resources) -> Iterator[None]:
    """Tell a store that is full or read-only from a failure of ours."""
    with disk_full_named(held.settings.store):
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise StoreReadOnly from error
            raise


@asynccontextmanager
async def opened(
    settings: Settings, metrics: Metrics, tracing: Tracing, load: LoadRanker, load_cross: LoadScorer
) -> AsyncIterator[Resources]:
    """Load the models and the generation, and follow the store until the end of the block.

    Raises:
        SettingsError: the keys file is missing or broken.
        ModelError, InvalidInput: the cross-encoder cannot be loaded, or is none. (A generation that cannot is no error:
            readiness tells of it.)
    """
    loop = asyncio.get_running_loop()
    torch.set_num_threads(_threads(settings))
    access = Access(settings.keys_file, (settings.rate_limit_per_s, settings.rate_limit_burst), metrics)
    store = GenerationStore(settings.store, needs_matrix=settings.vectors == "local")
    caches = Caches(settings, metrics)
    results = _results(settings, metrics, caches)
    live = Live(store, Opener(metrics.count_cache, caches, load, device_of(settings)), metrics)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as loader:
        scorer = await loop.run_in_executor(loader, _load_scorer, settings, load_cross, metrics)
        await loop.run_in_executor(loader, live.start)

        async def switch() -> None:
            await loop.run_in_executor(loader, live.follow)
            await loop.run_in_executor(loader, collect, settings, store, live)

        def backend(request: JobRequest) -> str:
            """For the model that serves, what was chosen for it: measured beside a server it could be another one."""
            if live.current is None or request.model is not None or device_of(settings) != "cpu":
                return settings.backend
            return live.current.ranker.backend

        def ended(job: JobRecord) -> None:
            metrics.count_job(job.state)
            show_last_build(metrics, [job])

        show_last_build(metrics, await asyncio.to_thread(JobStore(settings.store).records))
        jobs = Jobs(settings, backend, on_success=switch, on_end=ended)
        engine = Engine(_bounds(settings), metrics, scorer, tracing)
        updating = Updating(store, live, engine, metrics)
        compacting = Compacting(store, live, jobs, settings.compact_after)

        async def follow() -> None:
            await loop.run_in_executor(loader, live.follow)

        async def probe() -> None:
            if live.current is not None:
                await engine.probe(live.current)

        async def look_at_keys() -> None:
            await asyncio.to_thread(access.look)

        looks = (follow, updating.follow, compacting.look, probe, look_at_keys)
        following = [asyncio.create_task(_repeat(look)) for look in looks]
        try:
            yield Resources(settings, metrics, store, live, engine, jobs, updating, loader, access, results)
        finally:
            for each in following:  # first: nothing may begin any more
                each.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await jobs.close()
            await asyncio.to_thread(updating.close)
            await asyncio.to_thread(engine.close)
            live.current = None
            caches.close()


def device_of(settings: Settings) -> str:
    """Where the models run.

    Raises:
        SettingsError: there is no such GPU.
    """
    if settings.device == "auto":
        return "cuda" if torch.cuda.is_available() and settings.backend in (AUTO, TORCH) else "cpu"
    if torch.device(settings.device).type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device: there is no GPU for {settings.device!r}, or torch is built without CUDA")
    return settings.device


def _results(settings: Settings, metrics: Metrics, caches: Caches) -> ResultCache | None:
    lifetime = settings.result_cache_ttl_s
    if not lifetime:
        return None
    return ResultCache(Lru(settings.result_cache_mb * 2**20), lifetime, metrics.count_cache, caches.server)


def _threads(settings: Settings) -> int:
    return settings.threads or min(torch.get_num_threads(), processors.available())  # torch heeds OMP_NUM_THREADS


def _bounds(settings: Settings) -> EngineSettings:
    batch_tokens = settings.batch_tokens or (CPU_BATCH_TOKENS if device_of(settings) == "cpu" else GPU_BATCH_TOKENS)
    return EngineSettings(0 if settings.deterministic else batch_tokens, settings.max_queue_tokens, _threads(settings))


def _load_scorer(settings: Settings, load_cross: LoadScorer, metrics: Metrics) -> PairScorer | None:
    if settings.reranker is None:
        return None
    scorer = load_cross(settings.reranker)
    warm_up_scorer(scorer)
    metrics.show_model("reranker", scorer.name, scorer.architecture, scorer.fingerprint, scorer.backend)
    return scorer


async def _repeat(look: Callable[[], Awaitable[None]]) -> None:
    """Look once a second what others have done to the store or the keys file."""
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        try:
            await look()
        except Exception:
            log.exception("the store or the keys file could not be followed")


def show_last_build(metrics: Metrics, jobs: Iterable[JobRecord]) -> None:
    """Tell when the last of the jobs that read a pool succeeded, if one did; a compaction reads none."""
    succeeded = (job.finished for job in jobs if job.state == SUCCEEDED and not job.request.compacts)
    if last := max(filter(None, succeeded), default=None):
        metrics.show_last_build(datetime.fromisoformat(last).timestamp())


def collect(settings: Settings, store: GenerationStore, live: Live) -> None:
    """Remove old generations, unless the active one is not the one that is served: then any may be needed."""
    try:
        if live.current is None or live.current.generation.id != store.current():
            return
        removed = store.gc(settings.keep_generations, settings.redis())
    except (GenerationError, StoreUnavailable, OSError) as error:
        log.warning("old generations could not be removed", extra={"fields": {"why": error}})
        return
    if removed:
        log.info("old generations removed", extra={"fields": {"generations": removed}})
