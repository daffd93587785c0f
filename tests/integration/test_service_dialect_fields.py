"""Every field of the dialects of other systems, on every route: honoured, refused or without an effect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from in_process import TestClient
from service_fakes import pool
from tiny import tiny_app, write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.model.config import AssemblyConfig
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.text.assembly import Conversation
from polyrank.service.http.compat.cohere import CohereEmbedIn
from polyrank.service.http.compat.lenient import Ignored, Lenient, RefusedField
from polyrank.service.http.compat.openai import EmbeddingsIn
from polyrank.service.http.compat.reranked import CompatRerankIn
from polyrank.service.http.compat.tei import ComparingIn, EmbedIn, SimilarityIn, TokenizeIn

DOCS = Path(__file__).resolve().parents[2] / "docs"
LONG = "w1 " * 30  # longer than the model reads
TEXTS = ["w1 w2", LONG, "w3"]
# Of all routes a value that changes the answer, or is refused beside a text that is too long.
CUTS = {
    "truncate": False, "truncation": False, "truncation_direction": "Left",
    "truncation_side": "left", "truncate_prompt_tokens": 3,
}  # fmt: skip


class Route(NamedTuple):
    """A route, a body that it answers, and for each field that is honoured a value that makes a difference."""

    path: str
    model: type[Lenient]
    body: dict[str, Any]
    honoured: dict[str, Any]
    inside: str = ""  # the object of the body that holds the fields

    def with_field(self, name: str, value: Any) -> dict[str, Any]:
        return self.body | {self.inside: {name: value}} if self.inside else self.body | {name: value}

    def marked(self, kind: type) -> list[str]:
        """The fields of a class; of those that are honoured the class is `object`."""
        marks = {
            name: next((type(mark) for mark in field.metadata if isinstance(mark, RefusedField | Ignored)), object)
            for name, field in self.model.model_fields.items()
        }
        return [name for name, mark in marks.items() if mark is kind]


ROUTES = [
    Route(
        "/v2/rerank",
        CompatRerankIn,
        {"query": "w1 w2", "documents": TEXTS},
        {
            **CUTS,
            "query": "w3",
            "texts": TEXTS,
            "documents": ["w3"],
            "model": "other",  # with strict_model
            "strict_model": "true",
            "rank_fields": ["b"],  # with documents of fields a and b
            "top_n": 1,
            "top_k": 1,
            "return_documents": True,
            "return_text": True,
            "raw_scores": True,
            "activation": False,
            "use_activation": False,
            "softmax": "false",
            "max_tokens_per_doc": 3,
            "max_tokens_per_query": 2,
            "max_chunks_per_doc": 10,
        },
    ),
    Route(
        "/embed",
        EmbedIn,
        {"inputs": TEXTS},
        {**CUTS, "inputs": ["w9"], "normalize": False, "dimensions": 3, "prompt_name": "query"},
    ),
    Route(
        "/v1/embeddings",
        EmbeddingsIn,
        {"input": TEXTS},
        {
            **CUTS,
            "input": ["w9"],
            "model": "other",  # with strict_model
            "strict_model": "true",
            "encoding_format": "base64",
            "dimensions": 3,
            "output_dimension": 3,
            "input_type": "query",
            "task": "retrieval.query",
            "prompt_name": "query",
            "embedding_type": "base64",
            "normalized": False,
            "normalize": "false",
        },
    ),
    Route(
        "/v2/embed",
        CohereEmbedIn,
        {"texts": TEXTS},
        {
            **CUTS,
            "texts": ["w9"],
            "model": "other",
            "input_type": "search_query",
            "embedding_types": ["ubinary"],
            "output_dimension": 3,
            "max_tokens": 3,
        },
    ),
    Route(
        "/similarity",
        ComparingIn,
        {"inputs": {"source_sentence": "w1 w4", "sentences": TEXTS}},
        {**CUTS, "prompt_name": "query"},
        "parameters",
    ),
    Route(
        "/similarity",
        SimilarityIn,
        {"inputs": {"source_sentence": "w1", "sentences": TEXTS}},
        {"inputs": {"source_sentence": "w3", "sentences": TEXTS}, "parameters": {"truncate": False}},
    ),
    Route("/tokenize", TokenizeIn, {"inputs": TEXTS}, {"inputs": ["w9"], "add_special_tokens": False}),
]


def cases(kind: type) -> list[Any]:
    return [pytest.param(route, name, id=f"{route.path}-{name}") for route in ROUTES for name in route.marked(kind)]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    """A Bi-encoder with a prompt for each side, whose vectors have no length in common."""
    prompts = AssemblyConfig(context_prompt="w5 w6 ", candidate_prompt="w7 ")
    directory = tmp_path_factory.mktemp("checkpoint")
    loaded = polyrank.load(write_checkpoint(directory, "bi", 4, architecture="bi", normalize=False, assembly=prompts))
    assert isinstance(loaded, VectorRanker)
    return loaded


@pytest.fixture(scope="module")
def client(ranker: VectorRanker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build(ranker, pool(5), root)
    with TestClient(tiny_app(store=root)) as client:
        yield client


def told(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """An answer without what belongs to one request, its numbers rounded; or the status and what is said."""
    response = client.post(path, json=body)
    if response.status_code != 200:
        return response.status_code, response.text
    answer = json.loads(response.content, parse_float=lambda number: round(float(number), 4))
    return {k: v for k, v in answer.items() if k not in ("id", "created")} if isinstance(answer, dict) else answer


def test_every_honoured_field_is_tried() -> None:
    for route in ROUTES:
        assert set(route.honoured) == set(route.marked(object)), route.path


@pytest.mark.parametrize(("route", "name"), cases(object))
def test_a_field_that_is_honoured_makes_a_difference(client: TestClient, route: Route, name: str) -> None:
    body = dict(route.body)
    if name in ("model", "strict_model") and "strict_model" in route.model.model_fields:
        body |= {"model": "other"} if name == "strict_model" else {"strict_model": True}
    elif name == "rank_fields":
        body["documents"] = [{"a": "w1 w2", "b": "w3"}, {"a": "w3", "b": "w1 w2"}]
    elif name == "texts" and "documents" in body:
        del body["documents"]
    before = told(client, route.path, body)
    after = told(client, route.path, route._replace(body=body).with_field(name, route.honoured[name]))
    if route.model is CohereEmbedIn and name == "model":  # any name is taken, unless the setting strict_model is on
        assert after == before
        return
    assert after != before
    if isinstance(after, tuple):
        assert after[0] in (404, 422)
        assert name in after[1] or name in ("model", "strict_model", "parameters")


@pytest.mark.parametrize(("route", "name"), cases(RefusedField))
def test_a_field_that_cannot_be_honoured_is_refused(client: TestClient, route: Route, name: str) -> None:
    status, text = told(client, route.path, route.with_field(name, "something else"))
    assert status == 422
    assert f"{name}: " in text
    assert "leave it out" in text
    [mark] = [mark for mark in route.model.model_fields[name].metadata if isinstance(mark, RefusedField)]
    answer = told(client, route.path, route.body)
    in_words = [str(each).lower() for each in mark.defaults if isinstance(each, bool)]
    for default in (None, "", [], *mark.defaults, *in_words):
        assert told(client, route.path, route.with_field(name, default)) == answer, default


@pytest.mark.parametrize(("route", "name"), cases(Ignored))
def test_a_field_that_is_ignored_changes_nothing(client: TestClient, route: Route, name: str) -> None:
    answer = told(client, route.path, route.body)
    for value in ("something", 5, True, {"a": [1]}, None):
        assert told(client, route.path, route.with_field(name, value)) == answer


@pytest.mark.parametrize(("route", "name"), [each for each in cases(object) if each.values[1] in CUTS])
def test_how_to_cut_says_nothing_where_no_text_is_too_long(client: TestClient, route: Route, name: str) -> None:
    short = json.loads(json.dumps(route.body).replace(LONG, "w8"))
    value = 20 if name == "truncate_prompt_tokens" else CUTS[name]
    asked = route._replace(body=short)
    assert told(client, route.path, asked.with_field(name, value)) == told(client, route.path, short)


@pytest.mark.parametrize("value", ["query", "document", "passage", "corpus", "nonsense", "Query", ""])
def test_prompt_names_are_those_of_the_sides(client: TestClient, ranker: VectorRanker, value: str) -> None:
    texts = ["w1 w2", "w3"]
    answers = {
        "/embed": told(client, "/embed", {"inputs": texts, "prompt_name": value}),
        "/v1/embeddings": told(client, "/v1/embeddings", {"input": texts, "prompt_name": value}),
        "/similarity": told(
            client,
            "/similarity",
            {"inputs": {"source_sentence": "w1 w2", "sentences": texts}, "parameters": {"prompt_name": value}},
        ),
    }
    if value not in ("query", "document", "passage", "corpus"):
        for status, text in answers.values():
            assert status == 422
            assert "prompt_name: must be 'query', 'document', 'passage' or 'corpus'" in text
        return
    if value == "query":
        contexts = [ranker.tokenize_context(Conversation.of(text))[0] for text in texts]
        made = np.concatenate(ranker.encode_contexts(contexts))
    else:
        made = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    unit = made / np.linalg.norm(made, axis=1, keepdims=True)
    np.testing.assert_allclose(answers["/embed"], unit, atol=2e-4)
    np.testing.assert_allclose([each["embedding"] for each in answers["/v1/embeddings"]["data"]], unit, atol=2e-4)
    np.testing.assert_allclose(answers["/similarity"], unit @ unit[0], atol=2e-4)


@pytest.mark.parametrize(("path", "fields"), [
    ("/v1/embeddings", {"input_type": "nonsense"}),
    ("/v1/embeddings", {"task": "text-matching"}),
    ("/v1/embeddings", {"task": "classification"}),
    ("/v1/embeddings", {"embedding_type": "ubinary"}),
    ("/v1/embeddings", {"input_type": "query", "task": "retrieval.passage"}),
    ("/v2/embed", {"input_type": "classification"}),
    ("/v2/embed", {"input_type": "clustering"}),
    ("/v2/embed", {"truncate": "MIDDLE"}),
    ("/v2/rerank", {"truncation_direction": "up"}),
    ("/v2/rerank", {"max_tokens_per_doc": "4096"}),
])  # fmt: skip
def test_values_that_nothing_here_stands_for_are_refused(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    body = next(route.body for route in ROUTES if route.path == path)
    status, text = told(client, path, {**body, **fields})
    assert status == 422
    assert next(iter(fields)) in text


def test_a_side_may_be_named_twice(client: TestClient) -> None:
    asked = {"input": ["w1"], "input_type": "search_query", "task": "retrieval.query"}
    once = told(client, "/v1/embeddings", {"input": ["w1"], "prompt_name": "query"})
    assert told(client, "/v1/embeddings", asked) == once
    passages = told(client, "/v1/embeddings", {"input": ["w1"], "task": "retrieval.passage", "input_type": None})
    assert passages == told(client, "/v1/embeddings", {"input": ["w1"]})
    assert passages != once


def test_the_reference_lists_every_field() -> None:
    table = (DOCS / "reference" / "http.md").read_text(encoding="utf-8").split("## Fields of compatible routes")[1]
    for route in ROUTES:
        [line] = [each for each in table.splitlines() if f"`POST {route.path}`" in each]
        honoured, refused, ignored = ([each.strip() for each in cell.split(", ")] for cell in line.split("|")[2:5])
        before = f"{route.inside}." if route.inside else ""
        for kind, cells in ((object, honoured), (RefusedField, refused), (Ignored, ignored)):
            for name in route.marked(kind):
                assert any(cell.startswith(f"`{before}{name}") for cell in cells), (route.path, name)
