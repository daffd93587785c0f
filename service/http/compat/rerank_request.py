"""A request to `/rerank`: what it may hold, and which system's dialect it is in."""

from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from polyrank.service.errors import DialectUnknown, HeaderInvalid
from polyrank.service.http.compat.lenient import Count, Flag, Lenient
from polyrank.service.http.plumbing.fields import Text, storable
from polyrank.service.settings import CANDIDATES_CEILING

Dialect = Literal["tei", "cohere", "jina", "infinity", "voyage"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
HEADER = "X-Rerank-Dialect"
MAX_RANK_FIELDS = 64

DocumentIn = Annotated[dict[str, JsonValue], Field(min_length=1), AfterValidator(storable)]


class CompatRerankIn(Lenient):
    """A query and what to rank against it, in any dialect: as `texts` (TEI) or as `documents` (all others)."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["texts"], "properties": {"texts": {"type": "array"}}},
                {"required": ["documents"], "properties": {"documents": {"type": "array"}}},
            ],
            "examples": [
                {"query": "my parcel is late", "documents": ["Let me check.", "We open at nine."], "top_n": 1},
                {"query": "my parcel is late", "texts": ["Let me check.", "We open at nine."], "raw_scores": True},
            ],
        }
    )

    query: Text
    texts: Annotated[list[str], Field(max_length=CANDIDATES_CEILING, fail_fast=True)] | None = None
    documents: Annotated[list[str | DocumentIn], Field(max_length=CANDIDATES_CEILING, fail_fast=True)] | None = Field(
        default=None,
        description="an object is read by the `rank_fields`, else by its `text`, else by its first string but `id`; "
        "its `id` and `metadata` come back",
    )
    rank_fields: Annotated[list[str], Field(max_length=MAX_RANK_FIELDS, fail_fast=True)] | None = Field(
        default=None, description="of objects: these are read, a line each; one named again counts once"
    )
    model: str | None = Field(default=None, description="of those that /v1/models lists; any other: the one served")
    strict_model: Flag = Field(default=None, description="true: 404 where `model` is not served")
    top_n: Count | None = Field(default=None, description="how many to answer with; 0 or absent: all")
    top_k: Count | None = Field(default=None, description="Voyage's name of `top_n`")
    return_documents: Flag = Field(default=None, description="true: results hold `document`")
    return_text: Flag = Field(default=None, description="TEI's name of `return_documents`")
    raw_scores: Flag = Field(default=None, description="true: the model's own scores, not their sigmoid")

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.texts is not None and self.documents is not None:
            raise ValueError("give either `texts` (TEI) or `documents`, not both")
        return self

    @property
    def sent(self) -> list[str | dict[str, JsonValue]] | None:
        """The texts or documents to rank; None: neither list was sent."""
        return self.documents if self.texts is None else [*self.texts]

    @property
    def limit(self) -> int | None:
        """How many results to answer with; None: all."""
        return (self.top_k if self.top_n is None else self.top_n) or None


def dialect_of_header(value: str | None) -> Dialect | None:
    """Read the dialect from the value of the header X-Rerank-Dialect; None where it was not sent.

    Raises:
        HeaderInvalid: it names no dialect.
    """
    if value is None:
        return None
    for dialect in DIALECTS:
        if value.strip().lower() == dialect:
            return dialect
    raise HeaderInvalid(f"{HEADER}: is not one of {', '.join(DIALECTS)}")


def dialect_of(body: CompatRerankIn, named: Dialect | None, setting: Dialect | None) -> Dialect:
    """Choose the dialect: the one that the header `named`; else TEI for `texts`; else the setting's; else by `top_k`.

    Raises:
        DialectUnknown: there is nothing to rank.
    """
    if body.sent is None:
        raise DialectUnknown("give the texts to rank as `documents`, or as `texts` (TEI)")
    if named is not None:
        return named
    if body.texts is not None:
        return "tei"
    if setting is not None:
        return setting
    return "voyage" if "top_k" in body.model_fields_set and body.top_n is None else "cohere"
