"""What requests in other systems' dialects may hold: lenient where their clients need it.

Unknown fields are ignored: clients send what other servers understand (`priority`, `truncate`, `max_tokens_per_doc`).
Null stands for an absent field. What is listed here has the type that it says, but for booleans, which some clients
send as strings.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic import model_validator as check

from polyrank.service.http.native.schemas import Text, storable
from polyrank.service.settings import CANDIDATES_CEILING

MAX_RANK_FIELDS = 64
_AS_STRINGS = {"true": True, "True": True, "false": False, "False": False}


def _flag(value: Any) -> Any:
    return _AS_STRINGS.get(value, value) if isinstance(value, str) else value


def _no_token_ids(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise ValueError("token ids are not taken: their vocabulary is unknown here; send text")
    return value


Flag = Annotated[
    bool | None,
    BeforeValidator(_flag),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": sorted(_AS_STRINGS)}, {"type": "null"}]}),
]
Document = Annotated[dict[str, JsonValue], Field(min_length=1), AfterValidator(storable)]
Count = Annotated[int, Field(ge=0)]
Inputs = Annotated[
    str | Annotated[list[str], Field(max_length=CANDIDATES_CEILING, fail_fast=True)], BeforeValidator(_no_token_ids)
]


class Lenient(BaseModel):
    """Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


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
    documents: Annotated[list[str | Document], Field(max_length=CANDIDATES_CEILING, fail_fast=True)] | None = Field(
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

    @check(mode="after")
    def _one_list(self) -> Self:
        if self.texts is not None and self.documents is not None:
            raise ValueError("give either `texts` (TEI) or `documents`, not both")
        return self

    @property
    def sent(self) -> list[str | dict[str, JsonValue]] | None:
        """What to rank; None: neither list was sent."""
        return self.documents if self.texts is None else [*self.texts]

    @property
    def limit(self) -> int | None:
        """How many to answer with; None: all."""
        return (self.top_k if self.top_n is None else self.top_n) or None


class EmbeddingsIn(Lenient):
    """Texts to embed, as OpenAI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["Let me check.", "We open at nine."]}]})

    input: Inputs
    model: str | None = None
    strict_model: Flag = Field(default=None, description="true: 404 where `model` is not served")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: of float32, little-endian; absent: float"
    )
    dimensions: Count | None = Field(default=None, description="the model's own, or absent, or 0")


class EmbedIn(Lenient):
    """Texts to embed, as TEI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["Let me check.", "We open at nine."]}]})

    inputs: Inputs
    normalize: Flag = Field(default=None, description="false: as the model makes them; else of length 1")
    dimensions: Count | None = Field(default=None, description="the model's own, or absent, or 0")


class TokenizeIn(Lenient):
    """Texts to cut into tokens, as TEI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "Let me check."}]})

    inputs: Inputs
    add_special_tokens: Flag = Field(default=None, description="false: without those around a text")


class SentencesIn(Lenient):
    """One text and those to compare it with."""

    source_sentence: str
    sentences: list[str] = Field(max_length=CANDIDATES_CEILING - 1, fail_fast=True)


class SimilarityIn(Lenient):
    """Texts to compare, as TEI's clients send them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": {"source_sentence": "Let me check.", "sentences": ["We open at nine."]}}]
        }
    )

    inputs: SentencesIn
