"""Requests and answers of the clients of TEI, Hugging Face's text-embeddings-inference."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, RootModel

from polyrank.service.api.answers import Out
from polyrank.service.http.compat.lenient import (
    Anything,
    Count,
    Cutting,
    Flag,
    Inputs,
    Instruction,
    Lenient,
    Prompt,
    RefusedField,
)
from polyrank.service.http.compat.reranked import Reranked
from polyrank.service.http.compat.served_models import ServedModel
from polyrank.service.http.plumbing.problems import ProblemAnswer
from polyrank.service.settings import Settings

# TEI's own words, in its spelling. Every other status is an error of the request, "Validation".
_ERROR_TYPES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Backend",
}


class TeiRankOut(Out):
    """A text in its place, as TEI writes it."""

    index: int
    score: float
    text: str | None = Field(default=None, description="absent unless asked for")


class TeiRerankOut(RootModel[list[TeiRankOut]]):
    """TEI's answer."""


def answer(reranked: Reranked) -> list[dict[str, Any]]:
    """Render a `TeiRerankOut`, a bare array."""
    return [
        {
            "index": place.index,
            "score": place.score,
            **({"text": place.document.text} if reranked.with_documents else {}),
        }
        for place in reranked.places
    ]


PROMPT_NAME: Any = Field(
    default=None, description="query: as contexts, by a Bi-encoder; any other, and none: as candidates"
)


class EmbedIn(Cutting):
    """Texts to embed, as TEI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["Let me check.", "We open at nine."]}]})

    inputs: Inputs
    normalize: Flag = Field(default=None, description="false: as the model makes them; else of length 1")
    dimensions: Count | None = Field(default=None, description="the model's own, or absent, or 0")
    prompt_name: Prompt | None = PROMPT_NAME
    prompt: Instruction = None
    options: Anything = None


class EmbedOut(RootModel[list[list[float]]]):
    """TEI's answer: the vectors, in the order of the texts."""


class TokenizeIn(Lenient):
    """Texts to cut into tokens, as TEI's clients send them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "Let me check."}]})

    inputs: Inputs
    add_special_tokens: Flag = Field(default=None, description="false: without those around a text")
    prompt_name: Annotated[JsonValue, RefusedField("tokens are those of the text alone, without a prompt")] = None
    prompt: Instruction = None


class TokenOut(Out):
    """A token, and where it stands in the text; nowhere where it is special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenizeOut(RootModel[list[list[TokenOut]]]):
    """Tokens of each text, uncut."""


class SentencesIn(Lenient):
    """One text and those to compare it with."""

    source_sentence: str
    sentences: list[str] = Field(fail_fast=True)


class ComparingIn(Cutting):
    """How to embed texts that are compared."""

    prompt_name: Prompt | None = PROMPT_NAME
    prompt: Instruction = None


class SimilarityIn(Lenient):
    """Texts to compare, as TEI's clients send them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": {"source_sentence": "Let me check.", "sentences": ["We open at nine."]}}]
        }
    )

    inputs: SentencesIn
    parameters: ComparingIn | None = None


class SimilarityOut(RootModel[list[float]]):
    """Cosines, in the order of the sentences."""


class TeiModelTypeOut(Out):
    """What TEI's clients may use this server for: one key of the two."""

    reranker: dict[str, dict[str, JsonValue]] | None = None
    embedding: dict[str, str] | None = None


class TeiInfoOut(Out):
    """What TEI's clients look for in `/info`."""

    model_id: str | None
    model_sha: str | None = Field(description="the fingerprint")
    model_dtype: str = Field(description="the precision that it computes in")
    served_model_name: str | None
    model_type: TeiModelTypeOut
    max_input_length: int | None = Field(description="tokens; what is longer is cut")
    max_batch_tokens: int
    max_batch_requests: int | None
    max_concurrent_requests: int | None = Field(description="null: requests are counted by their tokens")
    max_client_batch_size: int
    auto_truncate: Literal[True]
    tokenization_workers: int
    sha: str | None
    docker_label: str | None


def info(model: ServedModel | None, model_type: str, batch_tokens: int, settings: Settings) -> dict[str, Any]:
    """Return the fields of a `TeiInfoOut`; `model_type` is "reranker" or "embedding", the model None if not loaded."""
    kinds = {
        "reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        "embedding": {"pooling": "mean"},  # one of the kinds that TEI knows; the checkpoint's own may be another
    }
    return {
        "model_id": model and model.own_name,
        "model_sha": model and model.scorer.fingerprint,
        "model_dtype": model.scorer.precision if model else "float32",
        "served_model_name": model and model.name,
        "model_type": {model_type: kinds[model_type]},
        "max_input_length": model and model.scorer.max_input_tokens,
        "max_batch_tokens": batch_tokens,
        "max_batch_requests": None,
        "max_concurrent_requests": None,
        "max_client_batch_size": settings.max_candidates,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "sha": None,
        "docker_label": None,
    }


class TeiErrorOut(Out):
    """An error, as TEI writes it."""

    error: str
    error_type: str = Field(examples=["Validation", "Overloaded"])


def error(problem: ProblemAnswer) -> TeiErrorOut:
    """Put a problem in TEI's form."""
    return TeiErrorOut(error=problem.detail, error_type=error_type(problem))


def error_type(problem: ProblemAnswer) -> str:
    """Return TEI's word for a problem."""
    return "Empty" if problem.kind.slug == "no-texts" else _ERROR_TYPES.get(problem.status_code, "Validation")
