"""Cohere's form of answers, in which the clients of Jina, vLLM and infinity find what they look for, and Voyage's."""

import base64
import time
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue

from polyrank.service.api.answers import Out, RerankResultOut
from polyrank.service.http.compat import tei
from polyrank.service.http.compat.lenient import Anything, Count, Cutting, Limit, RefusedField
from polyrank.service.http.compat.reranked import RankedDocument, Reranked, search_units
from polyrank.service.http.plumbing.problems import ProblemAnswer


class UsageOut(Out):
    """How many tokens the model read."""

    prompt_tokens: int
    total_tokens: int


class ApiVersionOut(Out):
    """Which version of Cohere's interface this looks like."""

    version: str


class BilledOut(Out):
    """What Cohere would bill."""

    search_units: int


class TokensOut(Out):
    """Cohere's `usage`."""

    input_tokens: int
    output_tokens: int


class MetaOut(Out):
    """What Cohere says beside the results."""

    api_version: ApiVersionOut
    billed_units: BilledOut
    tokens: TokensOut
    warnings: list[str] = Field(description="what was cut")


class CompatRerankOut(Out):
    """The answer to clients of Cohere, Jina, vLLM and infinity."""

    id: str
    object: Literal["rerank"]
    model: str
    created: int
    results: list[RerankResultOut]
    usage: UsageOut
    meta: MetaOut


def answer(reranked: Reranked, api_version: str, plain_documents: bool = False) -> dict[str, Any]:
    """Render a `CompatRerankOut` as version "1" or "2" of Cohere's interface does.

    `document` is absent, not null, where it was not asked for; `plain_documents` makes it a string, for infinity.
    """
    return {
        "id": reranked.id,
        "object": "rerank",
        "model": reranked.model,
        "created": int(time.time()),
        "results": [_result(place, reranked.with_documents, plain_documents) for place in reranked.places],
        "usage": {"prompt_tokens": reranked.tokens, "total_tokens": reranked.tokens},
        "meta": {
            "api_version": {"version": api_version},
            "billed_units": {"search_units": search_units(reranked.sent)},
            "tokens": {"input_tokens": reranked.tokens, "output_tokens": 0},
            "warnings": reranked.warnings,
        },
    }


def _result(place: RankedDocument, with_document: bool, plain: bool) -> dict[str, Any]:
    text = place.document.text
    document = {"document": text if plain else {"text": text}} if with_document else {}
    return {"index": place.index, "relevance_score": place.score, **document, **place.document.echo}


class AnyErrorOut(Out):
    """An error, for clients of TEI, Cohere, Jina, vLLM and Voyage at once."""

    detail: str
    message: str
    error: str
    error_type: str
    code: int
    request_id: str


def error(problem: ProblemAnswer) -> AnyErrorOut:
    """Put a problem in the form that suits these clients, and any other while the dialect is not known."""
    return AnyErrorOut(
        detail=problem.detail,
        message=problem.detail,
        error=problem.detail,
        error_type=tei.error_type(problem),
        code=problem.status_code,
        request_id=problem.request_id,
    )


class VoyageUsageOut(Out):
    """How many tokens the model read."""

    total_tokens: int


class VoyageResultOut(RerankResultOut):
    """A document in its place."""

    document: str | None = Field(default=None, description="absent unless asked for")


class VoyageRerankOut(Out):
    """Voyage's answer."""

    object: Literal["list"]
    data: list[VoyageResultOut]
    model: str
    usage: VoyageUsageOut


def voyage_answer(reranked: Reranked) -> dict[str, Any]:
    """Render a `VoyageRerankOut`."""
    return {
        "object": "list",
        "data": [_result(place, reranked.with_documents, plain=True) for place in reranked.places],
        "model": reranked.model,
        "usage": {"total_tokens": reranked.tokens},
    }


class DetailErrorOut(Out):
    """An error, as Voyage writes it."""

    detail: str


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
            return [in_base64(vector) for vector in vectors]
        case "ubinary":
            return np.packbits(vectors > 0, axis=1)
        case "binary":
            return (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).astype(np.int8)


def in_base64(vector: NDArray[np.float32]) -> str:
    """Render a vector as base64 of float32, little-endian."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
