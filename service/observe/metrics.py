"""Every metric, declared once. An app has its own registry; series exist from the start, so rates begin at zero.

Several serving processes keep their values in files of one directory (supervisor.py names it), so that each can answer
for all. There labels cannot be removed: those that no longer hold are set to 0; and there is no process_*. A gauge
declares how the values of all processes become one: "livesum" adds those of the processes that live, "livemax" and
"livemin" choose, "livemostrecent" takes the one that was set last.
"""

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import product
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from polyrank.model.inference.runners import Runner
from polyrank.service.observe.labels import DEGRADED, LANES, PLANS, REPLACED, STAGES, Searched

RESULTS = {
    "redis": ("hit", "miss", "corrupt", "error"),
    "text": ("hit", "miss", "corrupt", "error", "write_error"),
    "matrix": ("hit",),
    "lru": ("hit", "miss"),
    "result": ("hit", "miss", "corrupt", "error", "write_error"),
}
REDIS_CALLS = ("get_redis", "get_text", "put_text", "get_result", "put_result")
REJECTED = (
    *("queue_full", "deadline", "too_large", "not_ready", "rate", "connections", "busy", "slow_head"),
    *("unread", "bodies", "host", "origin", "shards"),
)
REFUSED = ("corrupt", "fingerprint", "model", "shortage", "other")
UNMATCHED = "unmatched"
# Making the text takes some 10 ms of the event loop, and whoever asks may need no key.
KEPT_SECONDS = 0.1
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

Mode = Literal["livesum", "livemax", "livemin", "livemostrecent"]

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.04, 0.06),
    *(0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0),
)
COUNTS = tuple(float(2**n) for n in range(15))
RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75)

SHARES = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

M = TypeVar("M", Counter, Histogram)
P = TypeVar("P", Counter, Histogram, Gauge)


class Metrics:
    """The app's instruments. Modules use the public ones, by `series` where they are of a pool, or else call
    `observe_*`, `count_*` and `show_*`.

    Where one of the `pools` has a name, what belongs to a pool has the label `pool`, empty for what has no name.
    """

    def __init__(self, pools: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._rendered, self._rendered_at = b"", -math.inf
        of_pool: dict[str, Any] = {"pool": pools} if any(pools) else {}
        self._pool: tuple[str, ...] = ("",) if any(pools) else ()
        self._shown: dict[tuple[Gauge, tuple[str, ...]], list[tuple[str, ...]]] = {}  # by gauge and pool
        ProcessCollector(registry=self.registry)
        self.in_flight = self._gauge("polyrank_http_requests_in_flight", "Requests being answered")
        self._requests = self._counter(
            "polyrank_http_requests_total", "Requests answered", **of_pool, route=(), method=(), code=()
        )
        self._duration = self._histogram(
            "polyrank_http_request_duration_seconds", "Arrival to answer", **of_pool, route=(), code_class=()
        )
        stages = self._histogram(
            "polyrank_stage_duration_seconds", "Time in each stage of /rank", stage=(*STAGES, "serialize")
        )
        self.stages = {stage: stages.labels(stage) for stage in (*STAGES, "serialize")}
        self._scored = self._histogram("polyrank_candidates_scored", "Candidates scored a request", COUNTS)
        self._cache = self._counter(
            "polyrank_cache_requests_total", "Vectors and answers asked for, and what came", tier=(), result=()
        )
        for tier, results in RESULTS.items():
            for result in results:
                self._cache.labels(tier, result)
        self.queue_depth = self._gauge("polyrank_queue_depth", "Requests in progress, waiting or being worked on")
        self.queue_tokens = self._gauge("polyrank_queue_tokens", "Tokens of the requests in progress")
        self.queue_wait = self._histogram("polyrank_queue_wait_seconds", "Wait for a batch", lane=LANES)
        self.batch_size = self._histogram("polyrank_batch_size", "Sequences a batch", COUNTS, lane=LANES)
        self.batch_tokens = self._histogram(
            "polyrank_batch_tokens", "Tokens a batch, padding included", COUNTS, lane=LANES
        )
        self.batch_padding = self._histogram("polyrank_batch_padding_ratio", "Share of padding", RATIOS, lane=LANES)
        self.cancelled = self._counter(
            "polyrank_client_cancelled_total", "Requests whose clients disconnected before the answer"
        )
        self.redis = self._histogram(
            "polyrank_redis_duration_seconds", "Calls of Redis: how long requests waited", op=REDIS_CALLS
        )
        self.breaker = self._gauge(
            "polyrank_redis_breaker_state", "Whether Redis is asked: 0 yes, 1 once to see, 2 no", "livemax"
        )
        self._retrievals = self._counter(
            "polyrank_retrievals_total", "Requests that retrieved candidates, by how", plan=PLANS
        )
        self.certified = self._counter(
            "polyrank_retrieval_certified_total", "Answers found by an index: shown exact", exact=("true", "false")
        )
        self.decisions = self._counter(
            "polyrank_decisions_total",
            "Rankings asked whether their first result is an answer",
            answer=("true", "false"),
        )
        self._degraded = self._counter("polyrank_degraded_total", "Answers that did without something", reason=DEGRADED)
        self._rejected = self._counter("polyrank_rejected_total", "Requests turned away", reason=REJECTED)
        self.batch_entries = self._counter(
            "polyrank_batch_entries_total", "Rankings of POST /rank/batch, by their status", **of_pool, code=()
        )
        self.feedback_rankings = self._counter(
            "polyrank_feedback_rankings_total",
            "Rankings to record, and whether there was room",
            **of_pool,
            outcome=("recorded", "dropped"),
        )
        self.feedback_events = self._counter(
            "polyrank_feedback_events_total", "Events of feedback recorded", **of_pool, kind=()
        )
        self.feedback_textless = self._counter(
            "polyrank_feedback_textless_total",
            "Lines recorded without texts: feedback_redact failed",
            **of_pool,
        )
        self.feedback_bytes = self._state("polyrank_feedback_bytes", "Size of the files of feedback", of_pool)
        self.log_dropped = self._counter(
            "polyrank_log_lines_dropped_total", "Lines of the log that nobody read in time"
        )
        self.open = self._gauge(
            "polyrank_open", "Whether callers on other machines need no key: 1 yes, 0 no", "livemax"
        )
        self.keys_reloads = self._counter(
            "polyrank_keys_reloads_total", "Changes of the keys file", result=("ok", "refused")
        )
        generation = (*of_pool, "generation", "model", "format")
        self._index_info = self._info("polyrank_index_info", "The generation served", generation)
        self._trial_info = self._info("polyrank_trial_info", "The generation on trial", generation)
        self._canary_share = self._gauge(
            "polyrank_canary_share",
            "Share of the conversations for the trial",
            "livemin",
            (*of_pool, "of"),
        )
        self._canary_rankings = self._counter(
            "polyrank_canary_rankings_total", "Rankings while a trial has a share", **of_pool, side=("live", "trial")
        )
        self._canary_replaced = self._counter(
            "polyrank_canary_replaced_total",
            "Rankings of the trial's share that the live one answered",
            **of_pool,
            why=REPLACED,
        )
        self._scan_info = self._info(
            "polyrank_scan_info", "What is searched for a request", (*of_pool, "kind", "fallback")
        )
        self._index_candidates = self._state(
            "polyrank_index_candidates", "Candidates served, updates included", of_pool
        )
        self._index_revision = self._gauge(
            "polyrank_index_revision", "Revision of the last update served", "livemin", of_pool
        )
        self._index_changed = self._state(
            "polyrank_index_changed_rows", "Upserts and deletions since the generation was built", of_pool
        )
        self._index_loaded = self._state(
            "polyrank_index_loaded_timestamp_seconds", "When the generation was switched to", of_pool
        )
        self.switches = self._counter(
            "polyrank_index_switches_total", "Attempts to serve another generation", **of_pool, result=("ok", "refused")
        )
        self.verify_failures = self._counter(
            "polyrank_index_verify_failures_total", "Generations refused", **of_pool, kind=REFUSED
        )
        self.updates = self._counter(
            "polyrank_updated_candidates_total", "Candidates changed by clients", **of_pool, kind=("upsert", "delete")
        )
        self.jobs = self._counter(
            "polyrank_build_jobs_total", "Rebuilds that ended", **of_pool, state=("succeeded", "failed", "cancelled")
        )
        self.last_build = self._gauge(
            "polyrank_build_last_success_timestamp_seconds",
            "When a rebuild last succeeded; 0: none is known",
            "livemax",
            of_pool,
        )
        self._shard_seconds = self._histogram("polyrank_shard_seconds", "Calls of shards that were answered", part=())
        self._shard_calls = self._counter(
            "polyrank_shard_calls_total", "Calls of shards, by how they ended", part=(), result=()
        )
        self._hedges = self._counter(
            "polyrank_shard_hedges_total", "Second replicas asked: answered first", won=("true", "false")
        )
        self._struck = self._gauge("polyrank_shard_struck", "Replicas that were slow or gone lately", labels=("part",))
        self.searched = self._histogram("polyrank_searched_share", "Share of the pool that was searched", SHARES)
        self._ready = self._gauge(
            "polyrank_shard_ready", "Replicas that hold what is served of a part", labels=("part",)
        )
        self._model_info = self._info(
            "polyrank_model_info",
            "Models loaded",
            (*of_pool, "role", "name", "architecture", "fingerprint", "backend", "precision"),
        )

    def of(self, pool: str) -> "Metrics":
        """Return the same instruments for one pool: what belongs to a pool is counted and shown as that pool's."""
        one = copy(self)
        one._pool = (pool,) if self._pool else ()
        return one

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Counter:
        """Declare a counter with its labels, each with all its values; none where they are not known ahead."""
        return _with_series(Counter(name, text, labels, registry=self.registry), labels)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = SECONDS, **labels: Sequence[str]
    ) -> Histogram:
        """Declare a histogram; labels as of `_counter`."""
        histogram = Histogram(name, text, labels, registry=self.registry, buckets=buckets)
        return _with_series(histogram, labels)

    def _gauge(self, name: str, text: str, mode: Mode = "livesum", labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)

    def _info(self, name: str, text: str, labels: Iterable[str]) -> Gauge:
        """Declare a gauge that is 1 where any process sets it, so that a process that lags behind is seen."""
        return self._gauge(name, text, "livemax", labels)

    def _state(self, name: str, text: str, labels: Iterable[str]) -> Gauge:
        return self._gauge(name, text, "livemostrecent", labels)

    def series(self, metric: P, *labels: str) -> P:
        """Return the metric's series of the pool with these further labels."""
        labels = (*self._pool, *labels)
        return metric.labels(*labels) if labels else metric

    def create_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """Create the series of the app's own routes: (path template, method)."""
        for path, method in routes:
            self.series(self._requests, path, method, "200")
            self.series(self._duration, path, "2xx")

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.series(self._requests, route, method, str(status)).inc()
        self.series(self._duration, route, f"{status // 100}xx").observe(seconds)

    def observe_rank(
        self, seconds: Mapping[str, float], scored: int, degraded: Iterable[str], plan: str | None
    ) -> None:
        """Count a ranked request: seconds by stage, candidates scored, what it did without, how it retrieved."""
        if plan is not None:
            self._retrievals.labels(plan).inc()
        for stage, value in seconds.items():
            self.stages[stage].observe(value)
        self._scored.observe(scored)
        for reason in degraded:
            self._degraded.labels(reason).inc()

    def count_cache(self, tier: str, result: str, count: int) -> None:
        """Count what was asked of a cache tier, by result."""
        if count:
            self._cache.labels(tier, result).inc(count)

    def count_rejected(self, reason: str) -> None:
        """Count a request that was turned away."""
        self._rejected.labels(reason).inc()

    def observe_shard(self, part: str, seconds: float) -> None:
        """Observe a call of a shard that was answered, hedged or not."""
        self._shard_seconds.labels(part).observe(seconds)

    def count_shard_call(self, part: str, result: str) -> None:
        """Count a call of a shard by how it ended: "ok", the kind of a `Reply`, or "late", and at its end once more."""
        self._shard_calls.labels(part, result).inc()

    def count_hedge(self, won: bool) -> None:
        """Count a second replica asked."""
        self._hedges.labels(str(won).lower()).inc()

    def show_struck(self, part: str, replicas: int) -> None:
        """Show how many replicas of a part are not asked, or tried, because they were slow or gone."""
        self._struck.labels(part).set(replicas)

    def show_ready(self, part: str, replicas: int) -> None:
        """Show how many replicas of a part hold what is served of it."""
        self._ready.labels(part).set(replicas)

    def forget_part(self, part: str) -> None:
        """Show no shards any more of a part that no generation has."""
        for gauge in (self._struck, self._ready):
            with suppress(KeyError):  # nothing was shown of it
                gauge.remove(part)

    def show_generation(self, generation: str, model: str, fmt: int, loaded_at: float) -> None:
        """Show which generation is served from now on."""
        self._set_info(self._index_info, 0, (generation, model, str(fmt)))
        self.series(self._index_loaded).set(loaded_at)

    def show_trial(self, trial: tuple[str, str, int] | None) -> None:
        """Show which generation is on trial from now on, its model and its format; None: there is none."""
        if trial is None:
            self._clear_info(self._trial_info)
        else:
            generation, model, fmt = trial
            self._set_info(self._trial_info, 0, (generation, model, str(fmt)))

    def show_canary(self, target: float, actual: float) -> None:
        """Show which share of the conversations the trial is to answer, and which it does."""
        self.series(self._canary_share, "wanted").set(target)
        self.series(self._canary_share, "taken").set(actual)

    def count_canary(self, side: str, replaced: str | None = None) -> None:
        """Count a ranking while a trial has a share, and why the live generation answered one of the trial's."""
        self.series(self._canary_rankings, side).inc()
        if replaced is not None:
            self.series(self._canary_replaced, replaced).inc()

    def show_snapshot(self, revision: int, candidates: int, changed: int) -> None:
        """Show the revision that is served, and how far it is from the generation as built."""
        self.series(self._index_revision).set(revision)
        self.series(self._index_candidates).set(candidates)
        self.series(self._index_changed).set(changed)

    def show_scan(self, kind: Searched, fallback: bool) -> None:
        """Show what is searched from now on, and whether something faster should be."""
        self._set_info(self._scan_info, 0, (kind, str(fallback).lower()))

    def show_model(self, role: str, name: str, architecture: str, fingerprint: str, runner: Runner) -> None:
        """Show the model of a role (ranker, reranker or classifier) that is used from now on, and what runs it."""
        self._set_info(self._model_info, 1, (role, name, architecture, fingerprint, *runner))

    def _set_info(self, info: Gauge, shared: int, labels: tuple[str, ...]) -> None:
        """Set the labels of an info to 1; they replace those of the pool with the same first `shared` labels."""
        if labels in self._shown_of(info):
            return
        self._clear_info(info, labels[:shared])
        self._shown_of(info).append(labels)
        self.series(info, *labels).set(1)

    def _clear_info(self, info: Gauge, beginning: tuple[str, ...] = ()) -> None:
        """Let no labels of an info of the pool that begin so be set any more."""
        for old in [shown for shown in self._shown_of(info) if shown[: len(beginning)] == beginning]:
            self._shown_of(info).remove(old)
            if DIRECTORY in os.environ:
                self.series(info, *old).set(0)
            else:
                info.remove(*self._pool, *old)

    def _shown_of(self, info: Gauge) -> list[tuple[str, ...]]:
        return self._shown.setdefault((info, self._pool), [])

    def render(self) -> bytes:
        """Return the Prometheus text, which is at most KEPT_SECONDS old."""
        now = time.monotonic()
        if now - self._rendered_at > KEPT_SECONDS:
            self._rendered_at, self._rendered = now, self._render()
        return self._rendered

    def _render(self) -> bytes:
        if DIRECTORY not in os.environ:
            return generate_latest(self.registry)
        of_all = CollectorRegistry()
        MultiProcessCollector(of_all)
        return generate_latest(of_all)


def _with_series(metric: M, labels: Mapping[str, Sequence[str]]) -> M:
    """Create the series of a metric, one for each combination of its labels' values."""
    for values in product(*labels.values()) if labels else ():
        metric.labels(*values)
    return metric
