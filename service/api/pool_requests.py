"""What requests hold that read or change the pool and its generations; see `requests`."""

from collections import Counter
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from polyrank.index_builder.names import is_encoding
from polyrank.index_builder.vectors.local import text_id
from polyrank.service.api import CANDIDATES_CEILING
from polyrank.service.api.fields import IN_ORDER, Filter, Id, Metadata, Strict, Text

MAX_LISTED = 1000

_FILTER = TypeAdapter(Filter)


def _checked_filter_text(text: str) -> str:
    try:
        _FILTER.validate_json(text, strict=True)
        return text
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    # Not within `except`: the new error would hold pydantic's, which the garbage collector cannot look into, and with
    # it all that was sent.
    if first["type"] in ("dict_type", "json_invalid"):
        raise ValueError('must be a JSON object, such as {"lang": "en"}')
    raise ValueError(first["msg"].removeprefix("Value error, "))


class PoolCandidateIn(Strict):
    """A candidate for a new generation."""

    id: Id | None = Field(default=None, description="absent: made from a hash of the text")
    text: Text
    metadata: Metadata = Field(default={})


PoolCandidates = Annotated[list[PoolCandidateIn], Field(min_length=1, fail_fast=True)]


class IndexIn(Strict):
    """What a new generation is built from: a pool file or the candidates themselves."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"pool": "replies.jsonl"},
                {"candidates": [{"id": "r1", "text": "Let me check.", "metadata": {"lang": "en"}}], "activate": True},
            ]
        }
    )

    pool: str | None = Field(default=None, min_length=1, max_length=1024, description="a path under the pool root")
    encoding: str | None = Field(
        default=None, min_length=1, max_length=64, description="of a .csv pool, such as windows-1252; absent: UTF-8"
    )
    candidates: PoolCandidates | None = None
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="a path under the model root, or lexical; absent: the active one's",
    )
    activate: bool = True

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.pool is None) == (self.candidates is None):
            raise ValueError("give either `pool` or `candidates`")
        if self.encoding is not None and not (self.pool and is_encoding(self.encoding)):
            raise ValueError("encoding: name the encoding of the pool's file, such as windows-1252 or utf-16")
        return self


class CandidatesIn(Strict):
    """Candidates under a name, as `POST /index` takes them."""

    candidates: PoolCandidates


_Upsert = Annotated[PoolCandidates | CandidatesIn, IN_ORDER]


class UpsertIn(RootModel[_Upsert]):
    """Candidates to add to the active generation, or to put in the place of those with the same ids.

    A list of them, or an object that holds it as `candidates`.
    """

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [[{"id": "r1", "text": "Let me check.", "metadata": {"lang": "en"}}]]},
    )

    _ids: list[str] = PrivateAttr()

    @property
    def rows(self) -> list[PoolCandidateIn]:
        return self.root.candidates if isinstance(self.root, CandidatesIn) else self.root

    @property
    def ids(self) -> list[str]:
        """The ids; where one is missing, it is made from a hash of the text."""
        return self._ids

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        self._ids = [candidate.id or text_id(candidate.text) for candidate in self.rows]
        (most, times), *_ = Counter(self._ids).most_common(1)
        if times > 1:
            raise ValueError(f"the id {most[:80]!r} occurs {times} times; give each once")
        return self


class ReadIn(BaseModel):
    """The parameters of a call that reads candidates."""

    model_config = ConfigDict(extra="forbid")

    min_revision: int | None = Field(default=None, ge=0, description="wait for this update; 409 where it does not come")


class ListIn(ReadIn):
    """The parameters of a list of candidates."""

    after: str | None = Field(default=None, max_length=256, description="`next` of the page before; absent: begin")
    limit: int = Field(default=100, ge=1, le=MAX_LISTED, description="candidates of a page, at most")
    filter: Annotated[str, AfterValidator(_checked_filter_text)] | None = Field(
        default=None, description="a filter of `POST /rank` as JSON", examples=['{"lang": "en"}']
    )

    @property
    def conditions(self) -> dict[str, Any] | None:
        return None if self.filter is None else _FILTER.validate_json(self.filter)


class DeleteIn(Strict):
    """Which candidates to remove from the active generation."""

    ids: list[Id] = Field(min_length=1, max_length=CANDIDATES_CEILING, fail_fast=True)


class ActivateIn(Strict):
    """Which generation to switch to."""

    generation: str = Field(min_length=1, max_length=128)
