"""Requests and answers of Cohere's `/v1/embed` and `/v2/embed`."""

import base64
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue

from polyrank.service.http.compat.cohere import ApiVersionOut
from polyrank.service.http.compat.lenient import Anything, Count, Cutting, Limit, RefusedField
from polyrank.service.http.plumbing.fields import Out

EmbeddingType = Literal["float", "base64", "binary", "ubinary"]
InputType = Literal["search_query", "search_document"]
Vectors = list[list[float]]
Bytes = list[list[int]]
FLOAT: Final[EmbeddingType] = "float"


class CohereEmbedIn(Cutting):
    """Texts to embed, as Cohere's clients send them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"texts": ["Let me check."], "input_type": "search_document", "embedding_types": ["float", "ubinary"]}
            ]
        }
    )

    texts: Annotated[list[str], Field(fail_fast=True)]
    model: str | None = None
    input_type: InputType | None = Field(
        default=None, description="search_query: as contexts, by a Bi-encoder; search_document, and none: as candidates"
    )
    embedding_types: Annotated[list[EmbeddingType], Field(max_length=4)] | None = Field(
        default=None,
        description="base64: of float32, little-endian; binary and ubinary: the signs, eight in a byte, without a sign "
        "bit or less 128; absent: float, in version 1 as a bare list",
    )
    output_dimension: Count | None = Field(default=None, description="the model's own, or absent, or 0")
    max_tokens: Limit = None
    images: Annotated[JsonValue, RefusedField("only texts are embedded")] = None
    inputs: Annotated[JsonValue, RefusedField("only texts are embedded; send them as `texts`")] = None
    priority: Anything = None


class EmbeddingsByTypeOut(Out):
    """The vectors, of length 1, in the types asked for."""

    float: Vectors | None = None
    base64: list[str] | None = None
    binary: Bytes | None = None
    ubinary: Bytes | None = None


class BilledTokensOut(Out):
    """What Cohere would bill."""

    input_tokens: int


class EmbedMetaOut(Out):
    """What Cohere says beside the vectors."""

    api_version: ApiVersionOut
    billed_units: BilledTokensOut
    warnings: list[str] = Field(description="what was cut")


class CohereEmbedOut(Out):
    """The answer to Cohere's clients; `embeddings` is a bare list where version 1 is asked for no types."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: EmbeddingsByTypeOut | Vectors
    texts: list[str]
    meta: EmbedMetaOut


def embeddings(
    body: CohereEmbedIn, vectors: NDArray[np.float32], tokens: int, cut: int, request_id: str, api_version: str
) -> dict[str, Any]:
    """Render vectors (N, D) of length 1 as a `CohereEmbedOut`; `cut` counts the texts that lost their end."""
    is_bare = api_version == "1" and not body.embedding_types
    types = dict.fromkeys(body.embedding_types or [FLOAT])
    return {
        "id": f"emb-{request_id}",
        "response_type": "embeddings_floats" if is_bare else "embeddings_by_type",
        "embeddings": vectors if is_bare else {kind: _in_type(vectors, kind) for kind in types},
        "texts": body.texts,
        "meta": {
            "api_version": {"version": api_version},
            "billed_units": {"input_tokens": tokens},
            "warnings": [f"truncated: {cut} texts lost their end"] if cut else [],
        },
    }


def _in_type(vectors: NDArray[np.float32], kind: EmbeddingType) -> Any:
    """Return vectors (N, D) as numbers, as base64, or as the packed bits of their signs, (N, D/8 rounded up)."""
    match kind:
        case "float":
            return vectors
        case "base64":
            return [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        case "ubinary":
            return np.packbits(vectors > 0, axis=1)
        case "binary":
            return (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).astype(np.int8)
