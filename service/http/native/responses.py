"""What the answers of polyrank's own routes hold.

FastAPI renders answers by these models, except for those of `/rank`: `answer_of` renders them by orjson, and tests
compare it with `RankOut`. With pydantic an answer of 10 results takes 0.05 instead of 0.01 ms, but one of 1000 results
takes 5 to 9 instead of 0.6 ms, on the event loop.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue

from polyrank.model.registry import ARCHITECTURES
from polyrank.service.http.plumbing.fields import Out
from polyrank.service.http.plumbing.problems import Problem
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Ranked, RankedCandidate

_NOTES = "why the filter lets nothing through; absent where something passes"


class ScoresOut(Out):
    """The parts of the score: `late` and `lexical` make it together, `cross` takes their place.

    `cross` includes what words say by the reranker's own weights, so it is not added to `lexical`.
    """

    late: float = Field(description="by vectors; with a second stage by that, unless it was skipped")
    lexical: float | None = Field(default=None, description="by words; absent where they do not count for the model")
    cross: float | None = Field(default=None, description="of the cross-encoder; absent where it did not read the text")


class ResultOut(Out):
    """One candidate in its place."""

    rank: int = Field(ge=1)
    index: int | None = Field(default=None, description="its place in the request's candidates; absent for retrieval")
    id: str | None = Field(description="null for a bare text")
    text: str
    score: float = Field(description="the score that placed it")
    scores: ScoresOut
    metadata: dict[str, JsonValue]


def answer_of(serving: Serving, ranked: Ranked) -> dict[str, Any]:
    """Return the fields of a `RankOut`, except those that belong to the request (timings, id)."""
    model, cut = serving.generation.manifest.model, ranked.truncation
    return {
        "results": [_result(at, place) for at, place in enumerate(ranked.places, 1)],
        "missing_ids": ranked.missing_ids,
        "generation": serving.generation.id,
        "revision": serving.snapshot.revision,
        "model": {"name": model.name, "architecture": model.architecture, "fingerprint": model.fingerprint},
        "exact": ranked.exact,
        "degraded": ranked.degraded,
        **({} if ranked.searched is None else {"searched": ranked.searched}),
        "truncated": {"turns": cut.turns, "tokens": cut.tokens, "candidates": cut.candidates},
        **({"notes": ranked.notes} if ranked.notes else {}),
    }


def _result(rank: int, place: RankedCandidate) -> dict[str, Any]:
    """Return the fields of a `ResultOut`; those without a meaning for the candidate are absent, not null."""
    lexical = {} if place.lexical is None else {"lexical": place.lexical}
    cross = {} if place.cross is None else {"cross": place.cross}
    return {
        "rank": rank,
        **({} if place.index is None else {"index": place.index}),
        "id": place.id,
        "text": place.text,
        "score": place.placed_by,
        "scores": {"late": place.late, **lexical, **cross},
        "metadata": place.metadata,
    }


class ModelOut(Out):
    """A model, by what identifies it."""

    name: str
    architecture: str = Field(json_schema_extra=lambda schema: schema.update(enum=list[JsonValue](ARCHITECTURES)))
    fingerprint: str


class TruncatedOut(Out):
    """What did not fit into the encoders."""

    turns: int
    tokens: int
    candidates: int


class TimingsOut(Out):
    """Milliseconds by stage; `total` from arrival."""

    queue: float
    tokenize: float
    encode: float
    retrieve: float
    fetch: float
    score: float
    late: float
    rerank: float
    total: float


class RankOut(Out):
    """A ranking, and how it came about."""

    results: list[ResultOut]
    missing_ids: list[str] = Field(description="ids sent that the generation does not hold")
    generation: str
    revision: int = Field(description="of the last update that the answer knows of")
    model: ModelOut
    exact: bool = Field(description="the ids are those of scoring every candidate by all but the cross-encoder")
    degraded: list[Degraded] = Field(description="what the answer lacks, because time was short or something failed")
    searched: float | None = Field(
        default=None, description="with shards_missing: the share of the pool whose shards answered"
    )
    truncated: TruncatedOut
    notes: list[str] | None = Field(default=None, description=_NOTES)
    timings_ms: TimingsOut
    request_id: str


class ClassedOut(Out):
    """The class of one text."""

    label: str = Field(description="the likeliest class")
    probability: float = Field(description="of that class")
    probabilities: dict[str, float] = Field(description="of every class, the likeliest first")


class ClassifyOut(Out):
    """The classes of texts, in the order sent."""

    results: list[ClassedOut]
    model: ModelOut
    truncated: TruncatedOut
    timings_ms: TimingsOut
    request_id: str


class BatchEntryOut(Out):
    """What became of one ranking of several: `answer` with status 200, `problem` otherwise."""

    status: int = Field(description="that the ranking would have had alone")
    answer: RankOut | None = None
    problem: Problem | None = None
    retry_after: int | None = Field(default=None, description="seconds after which to come back")


class BatchOut(Out):
    """What became of each ranking, in the order sent."""

    answers: list[BatchEntryOut]
    request_id: str


class RecallOut(BaseModel):
    """How much of what a scan would find is found through the index, and how fast, as the build measured it."""

    recall_at_10: float = Field(alias="recall@10", description="share of the 10 best candidates that is found")
    recall_at_100: float = Field(alias="recall@100")
    of: str = Field(description="what the best are best by: vectors; or vectors and words, the whole score")
    probes: str = Field(
        description="given: real contexts; pool: the pool's own vectors; none: not measured, exact by construction"
    )
    count: int = Field(description="how many probes")
    p50_ms: float | None = Field(description="of retrieving and scoring a probe, null where none was measured")
    p99_ms: float | None
    min_recall: float = Field(description="recall@10 that was asked for")


class IndexTimesOut(Out):
    """Milliseconds of one core that finding the best for one context takes, predicted by the build from samples."""

    exact_ms: float = Field(description="by scanning every vector")
    hnsw_ms: float = Field(description="by HNSW, the kind that was compared with the scan")


class LateRowsOut(Out):
    """What is stored of each candidate for a second stage."""

    dim: int = Field(description="components of a row")
    count: int | None = Field(description="rows of a candidate, null where they differ")


class GenerationOut(Out):
    """A generation, as its manifest describes it."""

    id: str
    count: int
    dim: int
    dtype: str
    late: LateRowsOut | None = Field(description="for the model's second stage, null if it has none")
    backend: str = Field(description="what ran the model over the pool")
    precision: str = Field(description="what the model computed in over the pool")
    model: ModelOut
    index: str = Field(description="kind of index: exact, flat, hnsw, ivf, ivfpq, custom")
    index_factory: str | None = Field(description="FAISS's name of it, null where the matrix is scanned")
    index_times: IndexTimesOut | None = Field(description="by which `auto` chose the index, null if none were measured")
    recall: RecallOut
    built_at: str


class ActiveOut(GenerationOut):
    """The generation that is served, with the updates since it was built."""

    revision: int = Field(description="of the last update that is served")
    added: int = Field(description="candidates that updates have put, and not deleted")
    removed: int = Field(description="candidates of the generation as built that updates have replaced or deleted")
    loaded_at: str


class TrialOut(ActiveOut):
    """The generation that is on trial beside the one that is served, with the updates that it had when last active."""

    memory_bytes: int = Field(description="about how much memory it takes beside the live one")


class RefusedOut(Out):
    """A generation that is not served, and the reason."""

    id: str
    reason: str


class CandidateOut(Out):
    """A stored candidate."""

    id: str
    text: str
    metadata: dict[str, JsonValue]


class StoredOut(CandidateOut):
    """A stored candidate, and where it is from."""

    generation: str
    revision: int = Field(description="of the last update that the answer knows of")


class CandidatesOut(Out):
    """A page of stored candidates, in the order in which they came into the generation."""

    candidates: list[CandidateOut]
    next: str | None = Field(description="`after` of the next page; null: there is none")
    notes: list[str] | None = Field(default=None, description=_NOTES)
    generation: str
    revision: int = Field(description="of the last update that the answer knows of")


class UpsertedOut(Out):
    """An acknowledged update."""

    generation: str
    revision: int = Field(description="what `min_revision` may ask for")
    upserted: int


class DeletedOut(Out):
    """An acknowledged deletion."""

    generation: str
    revision: int = Field(description="what `min_revision` may ask for")
    deleted: int
    missing_ids: list[str]


class ProgressOut(Out):
    """How far a stage is."""

    done: int
    total: int | None


class JobOut(Out):
    """A rebuild or a compaction."""

    id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    stage: str | None = Field(description="done: at the end of one that succeeded; null before it begins")
    progress: ProgressOut
    rate: float | None = Field(description="a second")
    eta: float | None = Field(description="seconds")
    error: str | None
    generation: str | None
    notes: list[str] = Field(description="on what was built: the pool's fields, the choice of the index")
    activate: bool
    compacts: bool = Field(description="builds what is served anew with its updates")
    created: str
    started: str | None
    finished: str | None
    links: dict[str, str]


class JobsOut(Out):
    """Jobs, newest first."""

    jobs: list[JobOut]


class IndexOut(Out):
    """What is served, what could be, and what is being built."""

    active: ActiveOut | None
    trial: TrialOut | None = Field(description="loaded beside it, to compare both; null: there is none")
    others: list[GenerationOut]
    refused: list[RefusedOut]
    job: JobOut | None = Field(description="the rebuild that is running")
