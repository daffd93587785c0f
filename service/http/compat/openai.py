"""Requests and answers of OpenAI's clients: embeddings, models, errors. infinity's clients expect its errors, too."""

import time
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue

from polyrank.service.api.answers import Out
from polyrank.service.http.compat.cohere import UsageOut, in_base64
from polyrank.service.http.compat.lenient import (
    Anything,
    Count,
    Cutting,
    Flag,
    Inputs,
    InputType,
    Instruction,
    Prompt,
    RefusedField,
    Task,
)
from polyrank.service.http.plumbing.problems import ProblemAnswer

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_SIDE = "query: as contexts, by a Bi-encoder; document or passage, and none: as candidates"


class EmbeddingsIn(Cutting):
    """Texts to embed, as OpenAI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["Let me check.", "We open at nine."]}]})

    input: Inputs
    model: str | None = None
    strict_model: Flag = Field(default=None, description="true: 404 where `model` is not served")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: of float32, little-endian; absent: float"
    )
    dimensions: Count | None = Field(default=None, description="the model's own, or absent, or 0")
    output_dimension: Count | None = Field(default=None, description="Voyage's name of `dimensions`")
    input_type: InputType | None = Field(default=None, description=_SIDE)
    task: Task | None = Field(default=None, description=f"Jina's; {_SIDE}")
    prompt_name: Prompt | None = Field(default=None, description=_SIDE)
    embedding_type: Literal["float", "base64"] | None = Field(default=None, description="Jina's `encoding_format`")
    normalized: Flag = Field(default=None, description="Jina's; false: as the model makes them; else of length 1")
    normalize: Flag = Field(default=None, description="another name of `normalized`")
    output_dtype: Annotated[JsonValue, RefusedField("vectors are of float32", ("float",))] = None
    embed_dtype: Annotated[JsonValue, RefusedField("vectors are of float32", ("float32",))] = None
    endianness: Annotated[JsonValue, RefusedField("base64 is little-endian", ("little", "native"))] = None
    modality: Annotated[JsonValue, RefusedField("only texts are embedded", ("text",))] = None
    late_chunking: Annotated[JsonValue, RefusedField("each text is embedded alone", (False,))] = None
    return_multivector: Annotated[JsonValue, RefusedField("a text has one vector", (False,))] = None
    add_special_tokens: Annotated[JsonValue, RefusedField("texts are read with special tokens", (True,))] = None
    use_activation: Annotated[JsonValue, RefusedField("say `normalize`", (True,))] = None
    messages: Annotated[JsonValue, RefusedField("send texts as `input`; conversations: ask /rank")] = None
    prompt: Instruction = None
    instruction: Instruction = None
    chat_template: Instruction = None
    chat_template_kwargs: Instruction = None
    user: Anything = None
    priority: Anything = None
    request_id: Anything = None
    cache_salt: Anything = None
    additional_data: Anything = None
    mm_processor_kwargs: Anything = None

    @property
    def as_base64(self) -> bool:
        """Whether vectors are rendered as base64."""
        return "base64" in (self.encoding_format, self.embedding_type)

    @property
    def as_made(self) -> bool:
        """Whether vectors keep the length that the model gives them."""
        return False in (self.normalized, self.normalize)


class EmbeddingOut(Out):
    """A text's vector, of length 1."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="a string: base64 of float32, little-endian")


class EmbeddingsOut(Out):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    usage: UsageOut
    id: str
    created: int


def embeddings(
    vectors: NDArray[np.float32], model: str, tokens: int, request_id: str, as_base64: bool
) -> dict[str, Any]:
    """Render vectors (N, D) as an `EmbeddingsOut`, each as a list of numbers or as base64."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": at, "embedding": in_base64(vector) if as_base64 else vector}
            for at, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "id": f"emb-{request_id}",
        "created": int(time.time()),
    }


class ServedModelOut(Out):
    """A model that requests may name."""

    id: str
    object: Literal["model"]
    owned_by: Literal["polyrank"]
    created: int = Field(description="when it was loaded, in seconds since the epoch; 0: with the server")
    capabilities: list[Literal["rerank", "embed"]]


class ModelsOut(Out):
    """The models that are served; the first reranks."""

    object: Literal["list"]
    data: list[ServedModelOut]


class OpenAiErrorDetailOut(Out):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiErrorOut(Out):
    """An error, as OpenAI and infinity write it."""

    error: OpenAiErrorDetailOut


def error(problem: ProblemAnswer) -> OpenAiErrorOut:
    """Put a problem in OpenAI's form."""
    status = problem.status_code
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    detail = OpenAiErrorDetailOut(message=problem.detail, type=kind, param=None, code=problem.kind.slug)
    return OpenAiErrorOut(error=detail)
