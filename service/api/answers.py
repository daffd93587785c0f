"""What the answers of polyrank's own routes hold, problems included; `generations` has those about the pool.

The server renders answers by these models, and the clients read them by the same. So nothing here imports the server or
a model. The names that models and features have, `http/plumbing/described.py` adds to the OpenAPI document.

FastAPI renders answers by these models, except for those of `/rank` and `/explain`: orjson renders them, and tests
compare them with the models. With pydantic an answer of 10 results takes 0.05 instead of 0.01 ms, but one of 1000
results takes 5 to 9 instead of 0.6 ms, on the event loop.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from polyrank.service.observe.labels import Degraded

NOTES = "why the filter lets nothing through; absent where something passes"


class Out(BaseModel):
    """An answer, or a part of one: it holds what is listed and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)


TYPE_PREFIX = "urn:polyrank:problem:"


class ErrorOut(Out):
    """One thing that is wrong with a request."""

    where: str
    what: str


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(examples=["urn:polyrank:problem:invalid-input"])
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[ErrorOut] | None = Field(default=None, description="with 422: where and what, never the values sent")
    job: str | None = Field(default=None, description="with job-conflict: the job that is running")


class ScoresOut(Out):
    """The parts of the score: `vector` and `lexical` make it together, `cross` takes their place.

    `cross` includes a lexical score by the reranker's own weights, so it is not added to `lexical`.
    """

    vector: float = Field(description="by vectors; with a second stage by that, unless it was skipped")
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


class ModelOut(Out):
    """A model, by what identifies it."""

    name: str
    architecture: str
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


class DecisionOut(Out):
    """Whether the first result is an answer."""

    answer: bool = Field(description="whether the probability is at least the threshold")
    probability: float | None = Field(
        description="that the first result is right, by the calibration of the model that placed it; "
        "null: there is no result, its score is of a stage that is not calibrated, or `reason` says why"
    )
    threshold: float = Field(description="as asked for")
    reason: Literal["language"] | None = Field(
        default=None,
        description="why the probability is not known; `language`: the pool is in none of the model's languages",
    )


class RankOut(Out):
    """A ranking, and how it came about."""

    results: list[ResultOut]
    decision: DecisionOut | None = Field(default=None, description="absent unless asked for by `answer_if`")
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
    notes: list[str] | None = Field(
        default=None,
        description=f"{NOTES}. Or that a lexical model had nothing to go by: no reply shares a telling word",
    )
    timings_ms: TimingsOut
    ranking_id: str | None = Field(
        default=None, description="what `POST /feedback` knows it by; absent where it is not recorded"
    )
    request_id: str


class FeedbackOut(Out):
    """What was taken of feedback: it is on the disk."""

    accepted: int = Field(description="events that are new, as far as this process knows")
    repeated: int = Field(description="events that came before")
    unknown: int = Field(
        description="events about a reply that their ranking has not shown, or about a ranking that was lost; they are "
        "not recorded"
    )
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


class DocumentOut(Out):
    """A document's text."""

    text: str


class RerankResultOut(Out):
    """A document in its place."""

    index: int = Field(description="its place in the request")
    relevance_score: float = Field(
        description="0 to 1: the probability that it is right, if the model is calibrated; with `raw_scores`, the score"
    )
    document: DocumentOut | str | None = Field(default=None, description="absent unless asked for; infinity: a string")
    id: JsonValue = Field(default=None, description="as it was sent")
    metadata: JsonValue = Field(default=None, description="as it was sent")


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


Numbers = list[float]


class ReplyTokenOut(Out):
    """A token of a reply."""

    text: str = Field(description="its characters; of a special token its name")
    start: int | None = Field(description="its first character in the reply's text; null: it stands for none there")
    end: int | None
    word: int | None = Field(description="the number of its word; tokens of one word have the same")


class ContextTokenOut(ReplyTokenOut):
    """A token of the context."""

    turn: int | None = Field(description="the number of its turn in `context`, from 0; null: it is of none")
    persona: int | None = Field(description="the number of its sentence in `persona`, likewise")


class ContextOut(Out):
    """The tokens that the model read of the context, and what it did not read."""

    tokens: list[ContextTokenOut]
    truncated: TruncatedOut


class CodeOut(Out):
    """What one context vector says."""

    code: int = Field(description="its number, from 0")
    weight: float = Field(description="how much the candidate attends to it; all weights sum to 1")
    score: float = Field(description="its product with the candidate's vector")
    contribution: float = Field(description="what it adds to the score")
    without: float | None = Field(description="the score without it; null: it is the only one")
    attention: Numbers = Field(description="how much it takes of each token of the context")
    tokens: Numbers = Field(description="what it adds to the score, by token of the context")


class OtherCodesOut(Out):
    """The context vectors that are not listed, together."""

    count: int
    weight: float
    contribution: float


class TermOut(Out):
    """One of the numbers that add up to a lexical score."""

    feature: str
    word: str | None = Field(description="that context and reply share; null: the feature is of the whole reply")
    value: float


class WordsOut(Out):
    """The lexical score of a candidate."""

    value: float = Field(description="their part of the score, the sum of the terms")
    terms: list[TermOut] = Field(description="the largest first")


class UnitOut(Out):
    """A turn, a sentence of the persona, or a word, that was left out."""

    turn: int | None
    persona: int | None
    start: int
    end: int
    drop: float = Field(description="what the score loses without it; these do not add up to the score")


class CrossOut(Out):
    """What the cross-encoder says of a candidate."""

    score: float
    base: float | None = Field(description="the part of the Poly-encoder in a residual one; null: there is none")
    units: list[UnitOut]
    words: WordsOut | None = Field(description="part of its score; null: it counts none")


class ReplyOut(Out):
    """The tokens of a reply."""

    tokens: list[ReplyTokenOut]


class ExplainedOut(Out):
    """What the score of a candidate consists of.

    Lists of T numbers go with the tokens of the context, lists of K with those of the reply. What is null is named in
    `unexplained`, or was not asked for.
    """

    index: int = Field(description="its place in the request's candidates")
    id: str | None
    text: str
    score: float = Field(description="as `POST /rank` gives it, without the cross-encoder")
    explained: float = Field(description="the sum of `tokens` and of what words add")
    rest: float | None = Field(
        description="the sum of `tokens` less that of `reply_tokens`: a stored vector is rounded"
    )
    effective_codes: float | None = Field(description="how many context vectors took part: e to their entropy")
    tokens: Numbers | None = Field(description="what each token of the context adds to the score")
    relative: Numbers | None = Field(
        description="`tokens` less those that the candidate is compared with; null where that one is missing"
    )
    codes: list[CodeOut] | None = Field(description="the heaviest context vectors")
    others: OtherCodesOut | None
    reply_tokens: Numbers | None = Field(description="what each token of the reply adds to the score")
    reply: ReplyOut
    pairs: list[Numbers] | None = Field(description="what each token of the context adds with each of the reply")
    occlusion: list[float | None] | None = Field(description="what the score by vectors loses without each token")
    words: WordsOut | None = Field(description="null: words do not count for the model")
    cross: CrossOut | None


class UnexplainedOut(Out):
    """A part of the scores that is left out, because it is no sum over tokens."""

    part: str
    why: str


class ExplainOut(Out):
    """Where scores come from."""

    context: ContextOut
    candidates: list[ExplainedOut] = Field(description="in the order sent")
    unexplained: list[UnexplainedOut]
    missing_ids: list[str] = Field(description="ids sent that the generation does not hold")
    generation: str
    revision: int = Field(description="of the last update that the answer knows of")
    model: ModelOut
    timings_ms: TimingsOut
    request_id: str
