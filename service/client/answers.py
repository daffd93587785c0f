"""The server's answers as objects. Fields that a later server adds are ignored."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class ClientAnswer(BaseModel):
    """What all answers share: they do not change."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RankedReply(ClientAnswer):
    """A candidate in its place; `index` is its place in the request, None where it was retrieved."""

    rank: int
    id: str | None
    text: str
    score: float
    scores: dict[str, float]
    metadata: dict[str, Any]
    index: int | None = None


class AnsweringModel(ClientAnswer):
    """The model that answered."""

    name: str
    architecture: str
    fingerprint: str


class Ranking(ClientAnswer):
    """The answer to `rank`, the best replies first; docs/reference/http.md says what each field means."""

    results: list[RankedReply]
    missing_ids: list[str]
    generation: str
    revision: int
    model: AnsweringModel
    exact: bool
    degraded: list[str]
    searched: float = 1.0  # the share of the pool; less with "shards_missing" only
    truncated: dict[str, int]
    notes: list[str] = []  # why a filter lets nothing through
    timings_ms: dict[str, float]
    request_id: str


class PlacedPiece(ClientAnswer):
    """A token: of a turn, of a sentence of the persona, or of a reply; special tokens have None for a place."""

    text: str
    start: int | None
    end: int | None
    word: int | None
    turn: int | None = None
    persona: int | None = None


class ScoredCode(ClientAnswer):
    """A context vector: how much the reply attends to it, and what it adds to the score, also by token."""

    code: int
    weight: float
    score: float
    contribution: float
    without: float | None
    attention: list[float]
    tokens: list[float]


class AddedWord(ClientAnswer):
    """One of the numbers that make up what words add; `word` is None where the whole reply counts."""

    feature: str
    word: str | None
    value: float


class AddedWords(ClientAnswer):
    """What words add to a score."""

    value: float
    terms: list[AddedWord]


class LeftOut(ClientAnswer):
    """A turn, a sentence of the persona or a word, and what the reranker's score loses without it."""

    turn: int | None
    persona: int | None
    start: int
    end: int
    drop: float


class CrossExplained(ClientAnswer):
    """What the reranker says of a reply."""

    score: float
    base: float | None
    units: list[LeftOut]
    words: AddedWords | None


class PiecesOf(ClientAnswer):
    """The tokens that the model read of a text or a context."""

    tokens: list[PlacedPiece]


class ScoreExplained(ClientAnswer):
    """What a reply's score consists of; docs/reference/http.md says what each field means."""

    index: int
    id: str | None
    text: str
    score: float
    explained: float
    rest: float | None
    effective_codes: float | None
    tokens: list[float] | None
    relative: list[float] | None
    codes: list[ScoredCode] | None
    others: dict[str, float] | None
    reply_tokens: list[float] | None
    reply: PiecesOf
    pairs: list[list[float]] | None
    occlusion: list[float | None] | None
    words: AddedWords | None
    cross: CrossExplained | None


class ScoresExplained(ClientAnswer):
    """The answer to `explain`, the candidates in the order sent; `unexplained` has parts of scores and why."""

    context: PiecesOf
    candidates: list[ScoreExplained]
    unexplained: list[dict[str, str]]
    missing_ids: list[str]
    generation: str
    revision: int
    model: AnsweringModel
    timings_ms: dict[str, float]
    request_id: str


class RerankedDocument(ClientAnswer):
    """A document in its place; `index` is its place in the request, the score is between 0 and 1 unless raw."""

    index: int
    relevance_score: float


class ClassedText(ClientAnswer):
    """The likeliest class of a text, its probability, and those of all classes."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Classification(ClientAnswer):
    """The answer to `classify`: a result for each text, in the order sent."""

    results: list[ClassedText]
    model: AnsweringModel
    truncated: dict[str, int]
    timings_ms: dict[str, float]
    request_id: str


class StoredCandidate(ClientAnswer):
    """A candidate of the served generation."""

    id: str
    text: str
    metadata: dict[str, Any]


class CandidatePage(ClientAnswer):
    """Some of the stored candidates; `next` is where the rest begins, None at the end."""

    candidates: list[StoredCandidate]
    next: str | None
    notes: list[str] = []  # see `Ranking`


class Upserted(ClientAnswer):
    """What an upsert has done; `min_revision` of a ranking may ask for the revision."""

    generation: str
    revision: int
    upserted: int


class Deleted(ClientAnswer):
    """What a deletion has done."""

    generation: str
    revision: int
    deleted: int
    missing_ids: list[str]


class JobProgress(ClientAnswer):
    """How much of the stage is done."""

    done: int
    total: int | None


class IndexJob(ClientAnswer):
    """A rebuild; `rate` is a second, `eta` in seconds."""

    id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    stage: str | None
    progress: JobProgress
    rate: float | None
    eta: float | None
    error: str | None
    generation: str | None
    notes: list[str]

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state not in ("queued", "running")


class ServedGeneration(ClientAnswer):
    """A generation that is served or kept."""

    id: str
    count: int
    model: AnsweringModel
    index: str
    built_at: str
    revision: int | None = None


class ServedIndex(ClientAnswer):
    """What is served, the generations that are kept, and the job that runs."""

    active: ServedGeneration | None
    trial: ServedGeneration | None = None
    others: list[ServedGeneration]
    job: IndexJob | None
