"""The routes of OpenAI, TEI and Cohere that embed texts as candidates, cut them into tokens, or list the models."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.errors import InvalidInput
from polyrank.model.registry import ARCHITECTURES, in_words, names_in_words
from polyrank.service.errors import ModelNotServed, NoTexts
from polyrank.service.http.compat import cohere, openai, served_models, tei
from polyrank.service.http.compat.lenient import Cutting, are_queries, check_limit
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import RANK
from polyrank.service.http.plumbing.middleware import path_of
from polyrank.service.http.plumbing.openapi import ASKS, DEADLINE_IN, READS, fails, takes
from polyrank.service.live.models import VectorScorer
from polyrank.service.observe.labels import Account
from polyrank.service.ranking import unranked
from polyrank.service.ranking.parts import Serving
from polyrank.service.resources import Resources
from polyrank.service.scheduling.forwards import Embeddings

MAX_TOKENIZED_CHARS = 400_000  # of all texts together: the answer takes some 70 bytes a token

router = APIRouter(tags=["compatible"], dependencies=[RANK])

_OPENAI: dict[str, Any] = {
    "response_model": openai.EmbeddingsOut,
    "openapi_extra": takes(openai.EmbeddingsIn, DEADLINE_IN),
    "responses": {
        200: served_models.HEADERS_OUT,
        **fails(*READS, NoTexts, ModelNotServed, body=True, form=openai.OpenAiErrorOut),
    },
}
_TEI: dict[str, Any] = {
    "responses": {200: served_models.HEADERS_OUT, **fails(*READS, NoTexts, body=True, form=tei.TeiErrorOut)}
}
_COHERE: dict[str, Any] = {
    "response_model": cohere.CohereEmbedOut,
    "openapi_extra": takes(cohere.CohereEmbedIn, DEADLINE_IN),
    "responses": {
        200: served_models.HEADERS_OUT,
        **fails(*READS, NoTexts, ModelNotServed, body=True, form=cohere.AnyErrorOut),
    },
}
_TOKENIZE: dict[str, Any] = {"responses": fails(*ASKS, NoTexts, body=True, form=tei.TeiErrorOut)}
_MODELS: dict[str, Any] = {"response_model": openai.ModelsOut, "responses": fails(form=openai.OpenAiErrorOut)}


@router.post("/v1/embeddings", **_OPENAI)
@router.post("/embeddings", **_OPENAI)
async def embeddings(request: Request) -> Response:
    """Embed texts as OpenAI's interface does, as candidates unless they are said to be queries."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, openai.EmbeddingsIn)
    served, serving = served_models.embedder(resources, body.model, body.strict_model)
    _require_vectors(serving)
    texts = _texts(resources, "input", body.input)
    _check_dimensions(body.dimensions, serving)
    _check_dimensions(body.output_dimension, serving, "output_dimension")
    queries = are_queries(input_type=body.input_type, task=body.task, prompt_name=body.prompt_name)
    output = await _embed(request, resources, serving, body, "input", texts, queries)
    vectors = output.representations.first if body.as_made else _unit(output.representations.first)
    answer = partial(openai.embeddings, vectors, served.name, output.tokens, request.state.request_id, body.as_base64)
    return await _answer(request, answer, output, serving)


@router.post("/", response_model=tei.EmbedOut, openapi_extra=takes(tei.EmbedIn, DEADLINE_IN), **_TEI)
@router.post("/embed", response_model=tei.EmbedOut, openapi_extra=takes(tei.EmbedIn, DEADLINE_IN), **_TEI)
async def embed(request: Request) -> Response:
    """Embed texts as TEI does, as candidates unless `prompt_name` is query; Hugging Face's clients call the root."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, tei.EmbedIn)
    serving = _require_vectors(resources.live.require())
    texts = _texts(resources, "inputs", body.inputs)
    _check_dimensions(body.dimensions, serving)
    output = await _embed(request, resources, serving, body, "inputs", texts, are_queries(prompt_name=body.prompt_name))
    vectors = output.representations.first if body.normalize is False else _unit(output.representations.first)
    return await _answer(request, lambda: vectors, output, serving)


@router.post("/v1/embed", **_COHERE)
@router.post("/v2/embed", **_COHERE)
async def cohere_embeddings(request: Request) -> Response:
    """Embed texts as Cohere's interface does; `input_type` says whether as candidates or as contexts."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, cohere.CohereEmbedIn)
    _, serving = served_models.embedder(resources, body.model, None)
    _require_vectors(serving)
    texts = _texts(resources, "texts", body.texts)
    _check_dimensions(body.output_dimension, serving, "output_dimension")
    queries = are_queries(input_type=body.input_type)
    most = None if queries else serving.ranker.max_input_tokens
    await _checked(request, texts, partial(check_limit, "max_tokens", body.max_tokens, texts, most))
    output = await _embed(request, resources, serving, body, "texts", texts, queries)
    version = "1" if path_of(request.scope) == "/v1/embed" else "2"
    unit, request_id = _unit(output.representations.first), request.state.request_id
    answer = partial(cohere.embeddings, body, unit, output.tokens, output.cut, request_id, version)
    return await _answer(request, answer, output, serving)


@router.post(
    "/similarity", response_model=tei.SimilarityOut, openapi_extra=takes(tei.SimilarityIn, DEADLINE_IN), **_TEI
)
async def similarity(request: Request) -> Response:
    """Compare texts by the cosine of their vectors, as candidates unless `prompt_name` is query."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, tei.SimilarityIn)
    inputs, how = body.inputs, body.parameters or tei.ComparingIn()
    serving = _require_vectors(resources.live.require())
    _texts(resources, "inputs.sentences", inputs.sentences)
    texts = _texts(resources, "inputs", [inputs.source_sentence, *inputs.sentences])
    output = await _embed(request, resources, serving, how, "inputs", texts, are_queries(prompt_name=how.prompt_name))
    vectors = _unit(output.representations.first)
    return await _answer(request, lambda: vectors[1:] @ vectors[0], output, serving)


@router.post("/tokenize", response_model=tei.TokenizeOut, openapi_extra=takes(tei.TokenizeIn, DEADLINE_IN), **_TOKENIZE)
async def tokenize(request: Request) -> Response:
    """Cut texts into the tokens of the model that embeds; nothing is left out where a text is too long for it."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, tei.TokenizeIn)
    texts = _texts(resources, "inputs", body.inputs)
    if (length := sum(map(len, texts))) > MAX_TOKENIZED_CHARS:
        raise InvalidInput(f"inputs: have {length} characters; at most {MAX_TOKENIZED_CHARS} are allowed together")
    work = partial(_tokens, _require_vectors(resources.live.require()).ranker, body.add_special_tokens is not False)
    doing = unranked.tokenize(resources.runtime, work, texts, bodies.journey(request, resources.settings))
    parts = await bodies.while_connected(request, doing)
    parts[0] = b"[" + parts[0]  # to what is large nothing is added
    parts[-1] += b"]"
    return Response(b",".join(parts), media_type="application/json")


def _tokens(ranker: VectorScorer, wrapped: bool, text: str) -> bytes:
    [pieces] = ranker.pieces([text], wrapped)
    spans = ((piece, piece.span or (None, None)) for piece in pieces)
    return orjson.dumps(
        [
            {"id": each.id, "text": each.text, "special": each.span is None, "start": start, "stop": stop}
            for each, (start, stop) in spans
        ]
    )


@router.get("/v1/models", **_MODELS)
@router.get("/models", **_MODELS)
async def models(request: Request) -> dict[str, Any]:
    """The models that are served: the first one reranks, those that embed say so."""
    entries: dict[str, dict[str, Any]] = {}  # by name: the setting `served_model_name` gives all the same
    resources: Resources = request.state.resources
    for model in served_models.every(resources):
        created = 0 if model.serving is None else int(model.serving.loaded_at)
        entry = {"id": model.name, "object": "model", "owned_by": "polyrank", "created": created}
        entry["capabilities"] = ["rerank", "embed"] if _embeds(model.serving) else ["rerank"]
        entries[model.name] = entry
    return {"object": "list", "data": [*entries.values()]}


def _embeds(serving: Serving | None) -> bool:
    return serving is not None and ARCHITECTURES[serving.ranker.architecture].embeds


def _require_vectors(serving: Serving) -> Serving:
    """Return it; raises InvalidInput where its model ranks by words alone, and has neither vectors nor tokens."""
    if _embeds(serving):
        return serving
    model = serving.generation.manifest.model
    why = f"{model.name} is {in_words(model.architecture)}: it has no vectors and no tokens"
    raise InvalidInput(f"{why}; activate a generation of a {names_in_words(retrieves=True)}")


def _texts(resources: Resources, where: str, sent: str | list[str]) -> list[str]:
    texts = [sent] if isinstance(sent, str) else sent
    if not texts:
        raise NoTexts(f"{where}: is empty; send at least one text")
    bodies.check_count(texts, resources.settings)
    bodies.check_lengths(where, texts, resources.settings)
    return texts


def _check_dimensions(dim: int | None, serving: Serving, where: str = "dimensions") -> None:
    if dim and dim != serving.ranker.dim:
        raise InvalidInput(f"{where}: the model's vectors have {serving.ranker.dim}; leave it out")


async def _embed(
    request: Request, resources: Resources, serving: Serving, body: Cutting, where: str, texts: list[str], queries: bool
) -> Embeddings:
    """Embed the texts of a field (`where`), as contexts if they are queries.

    Raises InvalidInput if a query is empty, or a text is too long and the body wants something else of it than is done.
    """
    longest = serving.ranker.max_input_tokens
    most, limit = None if queries else longest, body.truncate_prompt_tokens
    await _checked(request, texts, partial(check_limit, "truncate_prompt_tokens", limit, texts, most))
    if queries:
        await _checked(request, texts, partial(_check_queries, where, texts))
    embed = unranked.embed_queries if queries else unranked.embed
    doing = embed(resources.runtime, serving, texts, bodies.journey(request, resources.settings))
    output = await bodies.while_connected(request, doing)
    body.check_cut(output.cut, longest, documents=not queries)  # a query loses its beginning
    return output


async def _checked(request: Request, texts: Sequence[str], check: Callable[[], None]) -> None:
    await bodies.beside(request, check, sum(map(len, texts)) // 4096)  # letters are read fast


def _check_queries(where: str, texts: Sequence[str]) -> None:
    if (empty := next((at for at, text in enumerate(texts) if not text.strip()), None)) is not None:
        raise InvalidInput(f"{where}.{empty}: must not be empty as a query")


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale the rows (N, D) to length 1; rows of zeros stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


async def _answer(request: Request, answer: Callable[[], Any], output: Embeddings, serving: Serving) -> Response:
    request.state.account = Account(serving.generation.id, seconds=output.seconds)
    facts = served_models.headers_of(
        request, output.seconds, output.cut, serving.ranker.fingerprint, serving.generation.id
    )
    numbers = output.representations.first.size // 16
    body = await bodies.beside(request, lambda: orjson.dumps(answer(), _in_rows), numbers)
    return Response(body, headers=facts, media_type="application/json")


def _in_rows(array: NDArray[Any]) -> list[NDArray[Any]] | orjson.Fragment:
    """Render an array row by row: all rows at once would keep the interpreter lock for a tenth of a second."""
    return [*array] if array.ndim > 1 else orjson.Fragment(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
