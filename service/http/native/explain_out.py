"""What the answer of `POST /explain` holds: `explain.answer_of` renders it, and tests compare both."""

from pydantic import Field

from polyrank.model.architectures.late import Unexplained
from polyrank.model.lexical.features import FEATURES
from polyrank.service.http.native.responses import ModelOut, TimingsOut, TruncatedOut
from polyrank.service.http.plumbing.fields import Out

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
    """One of the numbers that make up what words say."""

    feature: str = Field(description=f"one of {', '.join(FEATURES)}")
    word: str | None = Field(description="that context and reply share; null: the feature is of the whole reply")
    value: float


class WordsOut(Out):
    """What words say for a candidate."""

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

    part: Unexplained
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
