"""Words and facts that answers, logs, metrics and traces share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

# Routes that systems ask every few seconds: they are not traced, and logged for debugging alone.
QUIET = frozenset(
    {"/livez", "/readyz", "/healthz", "/health", "/ping", "/v2/health/live", "/v2/health/ready", "/metrics"}
)

# How candidates were found: by scanning all rows, by scanning the rows that match a filter, by the index, or by the
# index restricted to the matching rows.
Plan = Literal["scan", "matches", "index", "selector"]
PLANS: tuple[Plan, ...] = get_args(Plan)

# What an answer can lack when time is short, or a cache or shards are down.
Degraded = Literal[
    "cache_unavailable",
    "shards_missing",
    "retrieve_k_reduced",
    "groups_incomplete",
    "collapse_incomplete",
    "late_skipped_deadline",
    "late_failed",
    "rerank_skipped_deadline",
    "rerank_failed",
]
DEGRADED: tuple[Degraded, ...] = get_args(Degraded)

# Where the time of a ranking goes, in order.
Stage = Literal["queue", "tokenize", "encode", "retrieve", "fetch", "score", "late", "rerank"]
STAGES: tuple[Stage, ...] = get_args(Stage)

# Why the live generation answers a ranking that the one on trial was asked, besides the types of problems.
REPLACED = ("slow", "unexpected", "late_failed", "inference-failed")

# The queues before the models: contexts and candidates to encode, stored candidates for the second stage, pairs for the
# cross-encoder, and whatever is read to explain scores.
Lane = Literal["context", "candidate", "late", "pair", "explain"]
LANES: tuple[Lane, ...] = get_args(Lane)
OF_GENERATIONS: tuple[Lane, ...] = ("context", "candidate", "late")

# What is searched for a request: the pool in bytes, its stored rows, its copy on a GPU, or an index.
Searched = Literal["bytes", "stored rows", "gpu", "index"]


@dataclass(frozen=True, slots=True)
class Account:
    """What a route puts into `request.state.account`; everything is optional, because not every route ranks.

    `refused` counts the rankings of a batch that were refused, by type of problem.
    """

    generation: str | None = None
    degraded: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
