"""What the requests of polyrank's own routes may hold: strict models, with bounds.

Unknown fields are refused. When a key occurs twice in a JSON object, the last one counts. The bounds here are
ceilings; routes check the lower ones that an operator sets (number of candidates, length of a text).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, PrivateAttr, model_validator

from polyrank.index_builder.pool.documents import MAX_ID_CHARS, check_value
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import text_of, turn_of
from polyrank.model.text.entities import places_without_entities, without_entities
from polyrank.service.api.fields import FILTER_DESCRIPTION, IN_ORDER, Filter, Id, Strict, Text
from polyrank.service.feedback.records import Kind

TOP_N = 20  # candidates that the cross-encoder reads where the request gives no number
MAX_TURNS = 1000
MAX_PERSONA = 100
MAX_RESULTS = 1000
MAX_BATCH = 100
MAX_EXPLAINED = 10
MAX_CODES = 1000
MAX_CONVERSATION_CHARS = 256
MAX_EVENTS = 100
MAX_EVENT_ID_CHARS = 128
_WITHOUT_CONTENT = ("refusal", "tool_calls", "function_call", "audio")  # a message with one of these may have none


def _readable(content: str | list[Any] | None) -> str | list[Any] | None:
    try:
        text_of(content)
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    return content


Part = Annotated[Annotated[dict[str, JsonValue], AfterValidator(check_value)] | str, IN_ORDER]
Parts = Annotated[list[Part], Field(max_length=MAX_TURNS, fail_fast=True)]
Said = Annotated[Parts | str | None, IN_ORDER, AfterValidator(_readable)]
Unread = Annotated[JsonValue, AfterValidator(check_value), Field(default=None, description="taken, and not read")]


class TurnIn(Strict):
    """One turn and who said it: `text`, or a message in OpenAI's shape, of which the text in `content` is read.

    Either may be a list of parts.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in ("text", "content", *_WITHOUT_CONTENT)],
            "examples": [{"role": "user", "text": "it is 1234"}, {"role": "user", "content": "it is 1234"}],
        }
    )

    text: Said = Field(default=None, description="text, or a list of parts")
    content: Said = Field(
        default=None,
        description="text, or a list of parts, whose texts are read; null: the assistant only called a tool",
    )
    role: str | None = Field(default=None, min_length=1, max_length=64, examples=["user"])
    refusal: str | None = Field(default=None, description="read where the content holds no text")
    name: Unread
    tool_calls: Unread
    tool_call_id: Unread
    function_call: Unread
    audio: Unread
    annotations: Unread
    reasoning_content: Unread
    parsed: Unread
    id: Unread
    type: Unread
    status: Unread

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.text is not None and self.content is not None:
            raise ValueError("give either `text` or `content`")
        # A null as content says that nothing was said.
        says = self.text is not None or "content" in self.model_fields_set
        if not says and all(getattr(self, name) is None for name in _WITHOUT_CONTENT):
            raise ValueError("give either `text` or `content`")
        return self

    def said(self) -> Turn:
        """Return it as the models read it."""
        if self.text is not None:
            return Turn(text_of(self.text), self.role)
        return turn_of({"role": self.role, "content": self.content, "refusal": self.refusal})


class CandidateIn(Strict):
    """A candidate of the active generation (`id`), a text, or a text under a name (both)."""

    id: Id | None = None
    text: Text | None = None

    @model_validator(mode="after")
    def _named_or_given(self) -> Self:
        if self.id is None and self.text is None:
            raise ValueError("give `id`, `text` or both")
        return self


class RerankIn(Strict):
    """How many of the best the cross-encoder reads."""

    top_n: int = Field(default=TOP_N, ge=1, le=1000)


class ExpectIn(Strict):
    """What the caller believes is served; 409 when it is not."""

    fingerprint: str | None = Field(default=None, max_length=128)
    generation: str | None = Field(default=None, max_length=128)


Turns = Annotated[list[str | TurnIn], Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)]
Context = Annotated[Turns | str, IN_ORDER]


class SaidIn(Strict):
    """What was said so far."""

    context: Context = Field(
        description="oldest turn first; at least one turn has text. Entities of HTML are read as their letters, where "
        "a turn holds no markup or code. A turn above the server's `max_text_chars` loses its beginning"
    )
    persona: list[str] = Field(
        default=[], max_length=MAX_PERSONA, fail_fast=True, description="facts about the replying side"
    )

    _sent: tuple[Turn, ...] = PrivateAttr()
    _turns: tuple[Turn, ...] = PrivateAttr()

    @model_validator(mode="after")
    def _something_was_said(self) -> Self:
        sent = [self.context] if isinstance(self.context, str) else self.context
        self._sent = tuple(Turn(turn) if isinstance(turn, str) else turn.said() for turn in sent)
        self._turns = tuple(Turn(without_entities(turn.text), turn.role) for turn in self._sent)
        if "context" in self.model_fields_set and not any(turn.text.strip() for turn in self._turns):
            raise ValueError("context: at least one turn must have text")
        return self

    def said(self) -> Conversation:
        """Return what was said and by whom, oldest first, without entities of HTML."""
        return Conversation(self._turns, tuple(self.persona))

    def places(self, turn: int) -> list[int]:
        """Return where in the text of a turn, as it was sent, each letter comes from that `said` has of it."""
        return places_without_entities(self._sent[turn].text)


Which = Literal["live", "trial"]
_WHICH = "which generation answers: the one that is served, or the one on trial"


class RankIn(SaidIn):
    """A context, and what to rank against it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"context": ["hi, my parcel is late", "sorry! what is the order number?", "it is 1234"], "top_k": 3},
                {"context": "my parcel is late", "candidates": ["Let me check.", "We open at nine."], "rerank": True},
            ]
        }
    )

    candidates: Annotated[list[Text | CandidateIn], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None, description="absent: retrieve from the active generation"
    )
    top_k: int = Field(default=10, ge=1, le=MAX_RESULTS)
    retrieve_k: int = Field(default=200, ge=1, le=10_000, description="size of the retrieved union that is scored")
    exact: bool = Field(default=False, description="score the whole pool")
    rerank: bool | RerankIn = Field(default=False, description="cross-encoder over the first `top_n`")
    filter: Filter | None = Field(
        default=None, description=FILTER_DESCRIPTION, examples=[{"lang": ["en", "de"], "price": {"gte": 5, "lt": 10}}]
    )
    exclude_ids: list[Id] = Field(
        default=[], max_length=10_000, fail_fast=True, json_schema_extra={"uniqueItems": False}
    )
    score_threshold: float | None = Field(default=None, description="leave out results whose `score` is lower")
    group_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="a field of the metadata: `top_k` then counts its values instead of replies",
    )
    limit_per_group: int = Field(default=1, ge=1, le=1000, description="with `group_by`")
    collapse: bool = Field(
        default=False,
        description="answer with the best of near-equal texts alone: 9 of 10 words of either are in both, in one order",
    )
    answer_if: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="also decide whether the first result is an answer: if it is right with this probability; "
        "needs a calibrated model",
    )
    generation: Which = Field(default="live", description=_WHICH)
    expect: ExpectIn | None = None
    min_revision: int | None = Field(default=None, ge=0, description="wait for this update; 409 where it does not come")
    conversation: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_CONVERSATION_CHARS,
        description="any name of the conversation, the same at each of its turns: where feedback is recorded, by a "
        "keyed digest of this name",
    )
    log: bool = Field(default=True, description="false: record nothing of this request, where feedback is recorded")
    timeout_ms: int | None = Field(default=None, ge=1, description="above the server's maximum: clamped to it")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.candidates is not None:
            beside = [name for name in ("filter", "exact", "retrieve_k") if name in self.model_fields_set]
            if beside:
                raise ValueError(f"{', '.join(beside)}: only for retrieval, not beside `candidates`")
        if self.generation == "trial" and self.min_revision is not None:
            raise ValueError("min_revision: only with the live generation, which receives the updates")
        if self.group_by is None and "limit_per_group" in self.model_fields_set:
            raise ValueError("limit_per_group: only with `group_by`")
        if self.group_by is not None and self.collapse:
            raise ValueError("collapse: not with `group_by`")
        if self.group_by is not None and self.top_k * self.limit_per_group > MAX_RESULTS:
            raise ValueError(f"top_k times limit_per_group: must be {MAX_RESULTS} or less")
        return self


class ExplainIn(SaidIn):
    """A context, and candidates whose scores are explained."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "context": ["hi, my parcel is late", "sorry! what is the order number?", "it is 1234"],
                    "candidates": [{"id": "r17"}, "Let me check."],
                }
            ]
        }
    )

    candidates: list[Text | CandidateIn] = Field(min_length=1, max_length=MAX_EXPLAINED, fail_fast=True)
    against: str = Field(
        default="mean",
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="what `relative` compares with: `mean` of the candidates, or the id of one of them",
    )
    codes: int = Field(default=8, ge=0, le=MAX_CODES, description="how many context vectors to tell, heaviest first")
    pairs: bool = Field(default=False, description="tell what each token of the context adds with each of the reply")
    occlusion: bool = Field(
        default=False, description="tell what the score by vectors loses without each token: a forward pass a token"
    )
    cross: Literal["turns", "words"] | None = Field(
        default=None, description="tell what the cross-encoder's score loses without each of these"
    )
    generation: str = Field(
        default="live",
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="whose scores: `live`, `trial`, or the id of one of both, as an answer of `/rank` tells it",
    )
    timeout_ms: int | None = Field(default=None, ge=1, description="above the server's maximum: clamped to it")

    @model_validator(mode="after")
    def _against_one_of_them(self) -> Self:
        if self.against != "mean" and self.rival() is None:
            raise ValueError("against: must be mean or the id of one of the candidates")
        return self

    def rival(self) -> int | None:
        """Return the position of the candidate that the others are compared with; None: the mean of all."""
        ids = [None if isinstance(sent, str) else sent.id for sent in self.candidates]
        return ids.index(self.against) if self.against != "mean" and self.against in ids else None


class ClassifyIn(SaidIn):
    """Texts whose classes are asked for, and what was said before."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"context": ["where is my parcel?"], "texts": ["It comes tomorrow.", "We sell lamps."]}]
        }
    )

    context: Context = Field(default=[], description="oldest turn first; a classifier of pairs needs it")
    texts: list[Text] = Field(min_length=1, fail_fast=True)
    timeout_ms: int | None = Field(default=None, ge=1, description="above the server's maximum: clamped to it")


def _let_others_in(value: JsonValue) -> JsonValue:
    """Return the value: where a function of Python begins, other threads may go on, and in pydantic's own code none."""
    return value


class BatchIn(Strict):
    """Several rankings, each of which is answered or refused on its own."""

    requests: list[Annotated[JsonValue, AfterValidator(_let_others_in)]] = Field(
        min_length=1,
        max_length=MAX_BATCH,
        fail_fast=True,
        description="bodies of `POST /rank`",
        json_schema_extra={"items": {"$ref": "#/components/schemas/RankIn"}},
    )
    timeout_ms: int | None = Field(default=None, ge=1, description="for all of them; each may have a shorter one")


# What an event says of a reply: `id` and `text` must be there (True), must not (False), or may (None).
_OF_REPLY: dict[Kind, tuple[bool | None, bool | None]] = {
    "chosen": (None, None),
    "edited": (None, True),
    "written": (False, True),
    "up": (True, False),
    "down": (True, False),
    "none_good": (False, False),
    "handed_over": (False, False),
    "resolved": (False, False),
}


class EventIn(Strict):
    """What became of a ranking."""

    ranking_id: str = Field(min_length=1, max_length=64, description="as the answer of `/rank` has it")
    kind: Kind = Field(
        description="`chosen`: this reply was sent as it stood; `edited`: changed, then sent; `written`: another one "
        "was sent, written by hand; `up`, `down`: what somebody thinks of this reply; `none_good`: no reply fits; "
        "`handed_over`, `resolved`: how the conversation went on"
    )
    id: Id | None = Field(default=None, description="of the reply")
    text: Text | None = Field(
        default=None,
        description="what was sent; with `chosen`: the candidate, if it came with the request and had no id",
    )
    event_id: str = Field(
        min_length=1,
        max_length=MAX_EVENT_ID_CHARS,
        description="made by the caller; an event of a ranking that is sent again under the same one counts once",
    )

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        for name, needed in zip(("id", "text"), _OF_REPLY[self.kind], strict=True):
            if needed is not None and needed != (getattr(self, name) is not None):
                raise ValueError(f"{name}: {'needed' if needed else 'not'} with kind {self.kind}")
        if self.kind == "chosen" and (self.id is None) == (self.text is None):
            raise ValueError("kind chosen needs `id`, or `text` of a candidate that was sent without an id; not both")
        return self


class FeedbackIn(Strict):
    """What became of rankings; all events are taken, or none."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "events": [
                        {
                            "ranking_id": "019ac4b3f2d10000000000000000ab317c1e0a5b93d2f8067e4c1a9b5d30",
                            "kind": "chosen",
                            "id": "r17",
                            "event_id": "7c1f",
                        }
                    ]
                }
            ]
        }
    )

    events: list[EventIn] = Field(min_length=1, max_length=MAX_EVENTS, fail_fast=True)
