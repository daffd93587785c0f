"""What answers hold about generations, their candidates, updates and jobs; see `answers`."""

from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from polyrank.service.api.answers import NOTES, ModelOut, Out


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
    """The generation that is on trial beside the one that is served."""

    share: float = Field(description="of the conversations, those that it answers unless a ranking says otherwise")
    until: str | None = Field(description="when it ends unless it is renewed; null: when somebody ends it")
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
    notes: list[str] | None = Field(default=None, description=NOTES)
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

    @property
    def is_finished(self) -> bool:
        return self.state not in ("queued", "running")


class JobsOut(Out):
    """Jobs, newest first."""

    jobs: list[JobOut]


class IndexOut(Out):
    """What is served, what could be, and what is being built."""

    active: ActiveOut | None
    trial: TrialOut | None = Field(description="loaded beside it, to compare both; null: there is none")
    others: list[GenerationOut]
    refused: list[RefusedOut]
    previous: str | None = Field(description="what a rollback switches to; null: nothing was active before")
    writable: bool = Field(description="whether this server may write to its store")
    takes_pools: bool = Field(description="whether `POST /index` may name a pool: the server has a `pool_root`")
    takes_models: bool = Field(description="whether it may name a model beside lexical: there is a `model_root`")
    job: JobOut | None = Field(description="the rebuild that is running")


class PoolOut(Out):
    """A pool of the server."""

    name: str = Field(description="empty for the one without a name")
    path: str = Field(description="what goes before the paths of its routes")
    generation: str | None = Field(description="the one that is served; null: none")
    candidates: int | None = Field(description="how many are served")
    why: str | None = Field(description="why nothing is served; null: something is")


class PoolsOut(Out):
    """The pools of the server that the caller's key is for."""

    pools: list[PoolOut]
