"""`/rerank` in any dialect: its request, whose dialect that is, and the answer before a dialect gives it its form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from polyrank.index_builder.pool.documents import check_value
from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Truncation
from polyrank.service.api.fields import IN_ORDER, Text
from polyrank.service.errors import DialectUnknown, HeaderInvalid
from polyrank.service.http.compat.lenient import (
    Anything,
    Count,
    Cutting,
    Flag,
    Instruction,
    Limit,
    RefusedField,
    check_limit,
)
from polyrank.service.ranking.selection import AS_IT_IS, Line, relevance

Dialect = Literal["tei", "cohere", "jina", "infinity", "voyage"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
HEADER = "X-Rerank-Dialect"
MAX_RANK_FIELDS = 64

DocumentIn = Annotated[dict[str, JsonValue], Field(min_length=1), AfterValidator(check_value)]


class CompatRerankIn(Cutting):
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
    texts: Annotated[list[str], Field(fail_fast=True)] | None = None
    documents: Annotated[list[Annotated[DocumentIn | str, IN_ORDER]], Field(fail_fast=True)] | None = Field(
        default=None,
        description="an object is read by the `rank_fields`, else by its `text`, else by its first string but `id`; "
        "its `id` and `metadata` come back",
    )
    rank_fields: Annotated[list[str], Field(max_length=MAX_RANK_FIELDS, fail_fast=True)] | None = Field(
        default=None, description="of objects: these are read, a line each; one named again counts once"
    )
    model: str | None = Field(default=None, description="one that /v1/models lists; any other: the served one")
    strict_model: Flag = Field(default=None, description="true: 404 where `model` is not served")
    top_n: Count | None = Field(default=None, description="how many to answer with; 0 or absent: all")
    top_k: Count | None = Field(default=None, description="Voyage's name of `top_n`")
    return_documents: Flag = Field(default=None, description="true: results hold `document`")
    return_text: Flag = Field(default=None, description="TEI's name of `return_documents`")
    raw_scores: Flag = Field(default=None, description="true: the model's own scores, not their sigmoid")
    activation: Flag = Field(default=None, description="vLLM's: false is `raw_scores`")
    use_activation: Flag = Field(default=None, description="another name of `activation`")
    softmax: Flag = Field(default=None, description="an old name of `activation`")
    max_tokens_per_doc: Limit = None
    max_tokens_per_query: Limit = None
    max_chunks_per_doc: Count | None = Field(default=None, description="refused where a document is too long for one")
    return_embeddings: Annotated[
        JsonValue, RefusedField("an answer holds no vectors; ask /v1/embeddings", (False,))
    ] = None
    instruction: Instruction = None
    instruct: Instruction = None
    chat_template: Instruction = None
    chat_template_kwargs: Instruction = None
    priority: Anything = None
    user: Anything = None
    request_id: Anything = None
    cache_salt: Anything = None
    mm_processor_kwargs: Anything = None
    return_len: Anything = None

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
    def wants_raw(self) -> bool:
        """Whether results have the model's own scores."""
        return bool(self.raw_scores) or False in (self.activation, self.use_activation, self.softmax)

    def check_documents(self, texts: Sequence[str], most_tokens: int) -> None:
        """Raise InvalidInput if the query or documents are to be cut where the model would read on."""
        check_limit("max_tokens_per_query", self.max_tokens_per_query, [self.query], None)
        check_limit("max_tokens_per_doc", self.max_tokens_per_doc, texts, most_tokens)
        check_limit("truncate_prompt_tokens", self.truncate_prompt_tokens, texts, most_tokens, beside=self.query)

    def check_truncation(self, cut: Truncation, most_tokens: int) -> None:
        """Raise InvalidInput if the request wants another thing of what was too long."""
        self.check_cut(cut.candidates + bool(cut.tokens), most_tokens, documents=cut.candidates > 0)
        if self.max_chunks_per_doc is not None and cut.candidates:
            why = f"{cut.candidates} documents are too long for the model, and are not read in chunks"
            raise InvalidInput(f"max_chunks_per_doc: {why}; leave it out")

    @property
    def limit(self) -> int | None:
        """How many results to answer with; None: all."""
        return (self.top_k if self.top_n is None else self.top_n) or None


def dialect_of_header(value: str | None) -> Dialect | None:
    """Read the dialect from the value of the header X-Rerank-Dialect; None where it was not sent.

    Raises HeaderInvalid if it names no dialect.
    """
    if value is None:
        return None
    for dialect in DIALECTS:
        if value.strip().lower() == dialect:
            return dialect
    raise HeaderInvalid(f"{HEADER}: is not one of {', '.join(DIALECTS)}")


def dialect_of(body: CompatRerankIn, from_header: Dialect | None, setting: Dialect | None) -> Dialect:
    """Choose the dialect: the one `from_header`; else TEI for `texts`; else the setting's; else by `top_k`.

    Raises DialectUnknown if there is nothing to rank.
    """
    if body.sent is None:
        raise DialectUnknown("give the texts to rank as `documents`, or as `texts` (TEI)")
    if from_header is not None:
        return from_header
    if body.texts is not None:
        return "tei"
    if setting is not None:
        return setting
    return "voyage" if "top_k" in body.model_fields_set and body.top_n is None else "cohere"


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it was sent: the text that the model reads, and the fields that its result repeats."""

    text: str
    echo: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document in the answer; `index` is its place in the request."""

    index: int
    score: float
    document: Document


@dataclass(frozen=True, slots=True)
class Reranked:
    """The answer: the best documents first; `sent` counts all documents, `tokens` what the model read of them."""

    model: str
    places: list[RankedDocument]
    sent: int
    tokens: int
    cut: Truncation
    with_documents: bool
    request_id: str

    @property
    def id(self) -> str:
        return f"rr-{self.request_id}"

    @property
    def warnings(self) -> list[str]:
        """What was cut, in words."""
        cuts = []
        if self.cut.tokens:
            cuts.append(f"truncated: the query lost {self.cut.tokens} tokens")
        if self.cut.candidates:
            cuts.append(f"truncated: {self.cut.candidates} documents lost their end")
        return cuts


_NO_TEXTS = ("id", "image")  # Jina's clients send pictures so, by address or in base64


def document_of(sent: str | dict[str, JsonValue], at: int, rank_fields: Sequence[str], max_chars: int) -> Document:
    """Read a document: a text, or an object's rank fields (a line each), its `text`, or its first string.

    Raises InvalidInput if the object holds no text, or fields that are together longer than `max_chars`.
    """
    if isinstance(sent, str):
        return Document(sent)
    echo = {name: sent[name] for name in ("id", "metadata") if sent.get(name) is not None}
    for texts in (
        [sent.get(name) for name in rank_fields],
        [sent.get("text")],
        islice((value for name, value in sent.items() if name not in _NO_TEXTS and isinstance(value, str)), 1),
    ):
        if strings := [text for text in texts if isinstance(text, str)]:
            if (length := sum(map(len, strings))) > max_chars:
                raise InvalidInput(f"documents.{at}: has {length} characters; at most {max_chars} are allowed")
            return Document("\n".join(strings), echo)
    raise InvalidInput(f"documents.{at}: holds no text; give it as `text`")


def placed(
    documents: Sequence[Document],
    scores: NDArray[np.float32],
    limit: int | None,
    raw_scores: bool,
    line: Line = AS_IT_IS,
) -> list[RankedDocument]:
    """Order documents by score, equal ones as sent; return the first `limit`."""
    values = (scores if raw_scores else relevance(scores, line)).tolist()
    order = np.argsort(-scores, kind="stable")[:limit].tolist()
    return [RankedDocument(at, values[at], documents[at]) for at in order]


def search_units(documents: int) -> int:
    """Return what Cohere would bill: one unit for every hundred documents begun."""
    return math.ceil(documents / 100)
