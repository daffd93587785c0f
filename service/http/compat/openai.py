"""Requests and answers of OpenAI's clients: embeddings, models, errors. infinity's clients expect its errors, too."""

import time
from functools import partial
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag
from starlette.requests import Request

from polyrank.model.errors import InvalidInput
from polyrank.model.text.tokenizer import Vocabulary
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
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.problems import ProblemAnswer
from polyrank.service.resources import Resources

MOST_BYTES: Final = 4  # of a letter in UTF-8; a token has one at least

_TEXTS, _IDS, _LISTS = "list[str]", "list[int]", "list[list[int]]"


def _kind(sent: Any) -> str:
    """Say by the first one what a list holds, so that a mistake in it has one message."""
    first = sent[0] if isinstance(sent, list) and sent else None
    return _LISTS if isinstance(first, list) else _IDS if isinstance(first, int | float) else _TEXTS


_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
TextsOrIds = Annotated[
    Annotated[Inputs, Tag(_TEXTS)]
    | Annotated[_Ids, Tag(_IDS)]
    | Annotated[list[_Ids], Field(fail_fast=True), Tag(_LISTS)],
    Discriminator(_kind),
]


async def texts_of(
    request: Request, sent: str | list[str] | list[int] | list[list[int]], held: Resources
) -> str | list[str]:
    """Return what was sent, with texts in place of token ids.

    Some clients, LangChain's `OpenAIEmbeddings` among them, cut texts into tokens of OpenAI's vocabulary themselves.
    Raises InvalidInput if ids were sent and there is no vocabulary, or it does not have one of them, or they are too
    many.
    """
    if isinstance(sent, str) or not sent or isinstance(sent[0], str):
        return cast(str | list[str], sent)
    if held.vocabulary is None:
        raise InvalidInput(
            "input: token ids are not taken without their vocabulary; send text "
            "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or give the server their "
            "file by POLYRANK_OPENAI_VOCABULARY"
        )
    lists = cast(list[list[int]], [sent] if isinstance(sent[0], int) else sent)
    bodies.check_count(lists, held.settings)
    most = MOST_BYTES * held.settings.max_text_chars
    if (longest := max(map(len, lists))) > most:
        raise InvalidInput(
            f"input: a text has {longest} tokens; at most {most} are allowed (the setting max_text_chars)"
        )
    made = await bodies.beside(request, partial(_read, lists, held.vocabulary), sum(map(len, lists)))
    return made[0] if isinstance(sent[0], int) else made


def _read(lists: list[list[int]], vocabulary: Vocabulary) -> list[str]:
    try:
        return [vocabulary.text(each) for each in lists]
    except InvalidInput as error:
        raise InvalidInput(f"input: {error}") from None


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_SIDE = "query: as contexts, by a Bi-encoder; document or passage, and none: as candidates"


class EmbeddingsIn(Cutting):
    """Texts to embed, as OpenAI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["Let me check.", "We open at nine."]}]})

    input: TextsOrIds = Field(
        description="one text or several; or their token ids, where the server was started with the vocabulary"
    )
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
