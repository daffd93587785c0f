"""POST /rerank in every dialect over real models, and its errors in the forms of their clients."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fakes import EVIDENCE
from in_process import TestClient
from pydantic import ValidationError
from service_fakes import build_store, load, pool
from tiny import tiny_app, write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.config import CalibrationConfig
from polyrank.model.rankers.load import load_cross
from polyrank.model.text.assembly import Conversation
from polyrank.service.app import create_app
from polyrank.service.http.compat.cohere import CompatRerankOut, VoyageRerankOut
from polyrank.service.http.compat.openai import OpenAiErrorOut
from polyrank.service.http.compat.rerank import RERANK_PATHS
from polyrank.service.http.compat.tei import TeiRerankOut
from polyrank.service.http.operations import InfoOut
from polyrank.service.settings import Settings

ROWS = 5
CROSSES = [("own", replace(EVIDENCE, weights={"length": 3.0, "said": -2.0})), ("other", None)]
QUERY = "w1 w2"
TEXTS = ["w3 w4", "w1 w2 w5", "w9", "w3 w4"]


@pytest.fixture(scope="module")
def cross(store: Path, checkpoints: Path) -> Iterator[TestClient]:
    """A server with a cross-encoder."""
    with TestClient(tiny_app(store=store, reranker=str(checkpoints / "cross"))) as client:
        yield client


@pytest.fixture(scope="module")
def late(store: Path) -> Iterator[TestClient]:
    """A server without one."""
    with TestClient(tiny_app(store=store)) as client:
        yield client


def ask(client: TestClient, path: str = "/v2/rerank", dialect: str | None = None, **fields: Any) -> httpx2.Response:
    headers = {} if dialect is None else {"X-Rerank-Dialect": dialect}
    return client.post(path, json={"query": QUERY, **fields}, headers=headers)


def answered(response: httpx2.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def sigmoid(score: float) -> float:
    return float(1 / (1 + np.exp(-score)))


# --- scores


def test_the_cross_encoder_answers_where_there_is_one(cross: TestClient, checkpoints: Path) -> None:
    ranker = load_cross(checkpoints / "cross")
    expected = ranker.rank([QUERY], TEXTS)
    raw = answered(ask(cross, texts=TEXTS, raw_scores=True))
    assert [each["index"] for each in raw] == [index for index, _ in expected]
    assert [each["score"] for each in raw] == pytest.approx([score for _, score in expected], abs=1e-4)
    told = answered(ask(cross, documents=TEXTS))
    assert told["model"] == "cross"
    squashed = [sigmoid(each["score"]) for each in raw]
    assert [each["relevance_score"] for each in told["results"]] == pytest.approx(squashed, rel=1e-14)


def test_the_late_model_answers_where_there_is_none(late: TestClient) -> None:
    native = answered(late.post("/rank", json={"context": QUERY, "candidates": TEXTS, "top_k": 10}))
    raw = answered(ask(late, texts=TEXTS, raw_scores=True))
    assert [each["index"] for each in raw] == [each["index"] for each in native["results"]]
    assert [each["score"] for each in raw] == pytest.approx([each["score"] for each in native["results"]], abs=1e-4)
    told = answered(ask(late, documents=TEXTS))
    squashed = [sigmoid(each["score"]) for each in raw]
    assert [each["relevance_score"] for each in told["results"]] == pytest.approx(squashed, rel=1e-14)


@pytest.mark.parametrize("generation_counts", [True, False])
def test_words_count_in_the_cross_encoders_scores_where_the_generation_holds_some(
    tmp_path: Path, generation_counts: bool
) -> None:
    own, other = (write_checkpoint(tmp_path, name, 0, architecture="cross", evidence=each) for name, each in CROSSES)
    late = write_checkpoint(
        tmp_path, "late", 0, architecture="poly", n_codes=4, evidence=EVIDENCE if generation_counts else None
    )
    build(polyrank.load(late), pool(5), tmp_path / "store")
    with TestClient(tiny_app(store=tmp_path / "store", reranker=str(own), device="cpu")) as client:
        scores = {each["index"]: each["score"] for each in answered(ask(client, texts=TEXTS, raw_scores=True))}
        told = answered(client.get("/info"))
        native = answered(client.post("/rank", json={"context": QUERY, "rerank": True}))["results"]
    ranker = load_cross(own if generation_counts else other)
    statistics = ranker.statistics(each.text for each in pool(5))
    expected = ranker.score_texts(Conversation.of(QUERY), TEXTS, statistics)
    assert [scores[at] for at in range(len(TEXTS))] == pytest.approx(expected.tolist(), abs=1e-4)
    assert (told["model"]["counts_words"], told["reranker"]["counts_words"]) == (generation_counts, generation_counts)
    expected = ranker.score_texts(Conversation.of(QUERY), [each["text"] for each in native], statistics)
    assert [each["score"] for each in native] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [each["scores"]["cross"] for each in native] == [each["score"] for each in native]


LINE = CalibrationConfig(prior=0.1, slope=0.25, intercept=-1.0, alone_slope=0.5, alone_intercept=2.0)


@pytest.mark.parametrize(
    ("reranks", "words", "line"),
    [(False, True, (0.25, -1.0)), (True, True, (0.25, -1.0)), (True, False, (0.5, 2.0))],
    ids=["late", "cross with words", "cross without words"],
)
def test_a_calibrated_model_answers_with_probabilities(
    tmp_path: Path, reranks: bool, words: bool, line: tuple[float, float]
) -> None:
    evidence = EVIDENCE if words else None
    late = write_checkpoint(tmp_path, "late", 0, architecture="poly", n_codes=4, evidence=evidence)
    before = polyrank.load(late).fingerprint
    calibrate(late)
    assert polyrank.load(late).fingerprint == before
    build(polyrank.load(late), pool(5), tmp_path / "store")
    cross = write_checkpoint(tmp_path, "cross", 1, architecture="cross", evidence=EVIDENCE)
    calibrate(cross)
    own = {"reranker": str(cross)} if reranks else {}
    with TestClient(tiny_app(store=tmp_path / "store", **own)) as client:
        raw = answered(ask(client, texts=TEXTS, raw_scores=True))
        asked = {"context": QUERY, "candidates": TEXTS, "rerank": reranks}
        native = answered(client.post("/rank", json=asked))["results"]
        assert [each["score"] for each in raw] == pytest.approx([each["score"] for each in native], abs=1e-4)
        expected = [sigmoid(line[0] * each["score"] + line[1]) for each in raw]
        tei = answered(ask(client, texts=TEXTS))
        assert [each["index"] for each in tei] == [each["index"] for each in raw]
        assert [each["score"] for each in tei] == pytest.approx(expected, rel=1e-12)
        for dialect in ("cohere", "jina", "infinity"):
            results = answered(ask(client, documents=TEXTS, dialect=dialect))["results"]
            assert [each["relevance_score"] for each in results] == pytest.approx(expected, rel=1e-12)
        assert answered(client.get("/info"))["reranker" if reranks else "model"]["relevance_prior"] == 0.1


def calibrate(checkpoint: Path) -> None:
    path = checkpoint / CONFIG_FILE
    write_config(path, replace(read_config(path), calibration=LINE))


@pytest.mark.parametrize("which", ["cross", "late"])
def test_equal_texts_stay_in_the_order_sent(which: str, request: pytest.FixtureRequest) -> None:
    results = answered(ask(request.getfixturevalue(which), documents=TEXTS))["results"]
    first, second = (next(each for each in results if each["index"] == at) for at in (0, 3))
    assert first["relevance_score"] == second["relevance_score"]
    assert results.index(first) + 1 == results.index(second)


@pytest.mark.parametrize("which", ["cross", "late"])
def test_a_score_does_not_depend_on_the_other_documents(which: str, request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue(which)
    [alone] = answered(ask(client, documents=TEXTS[1:2]))["results"]
    among = next(each for each in answered(ask(client, documents=TEXTS))["results"] if each["index"] == 1)
    assert alone["relevance_score"] == pytest.approx(among["relevance_score"], abs=1e-5)


def test_tokens_are_those_that_the_model_read(cross: TestClient, late: TestClient, checkpoints: Path) -> None:
    pairs, _ = load_cross(checkpoints / "cross").tokenize_pairs(Conversation.of(QUERY), TEXTS)
    read = sum(len(pairs.contexts[0]) + len(each) for each in pairs.candidates)
    assert answered(ask(cross, documents=TEXTS))["usage"] == {"prompt_tokens": read, "total_tokens": read}
    ranker = polyrank.load(checkpoints / "poly")
    candidates = sum(map(len, ranker.tokenize_candidates(TEXTS)[0]))
    read = len(ranker.tokenize_context(Conversation.of(QUERY))[0]) + candidates
    assert answered(ask(late, documents=TEXTS, top_k=1))["usage"] == {"total_tokens": read}


@pytest.mark.parametrize("which", ["cross", "late"])
def test_what_is_cut_is_told(which: str, request: pytest.FixtureRequest) -> None:
    client = request.getfixturevalue(which)
    response = ask(client, documents=["w1 " * 60, "w2", "w3 " * 70], query="w1 " * 60)
    query, documents = answered(response)["meta"]["warnings"]
    assert query.startswith("truncated: the query lost")
    assert documents == "truncated: 2 documents lost their end"
    assert response.headers["x-truncated-texts"] == "2"
    assert answered(ask(client, documents=["w1"]))["meta"]["warnings"] == []


# --- answers


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_every_path_answers_every_dialect(cross: TestClient, path: str) -> None:
    TeiRerankOut.model_validate(answered(ask(cross, path, texts=TEXTS)))
    CompatRerankOut.model_validate(answered(ask(cross, path, documents=TEXTS)))
    VoyageRerankOut.model_validate(answered(ask(cross, path, documents=TEXTS, top_k=None)))
    for dialect, kind in (("jina", CompatRerankOut), ("infinity", CompatRerankOut), ("voyage", VoyageRerankOut)):
        kind.model_validate(answered(ask(cross, path, dialect, documents=TEXTS, return_documents=True)))
    TeiRerankOut.model_validate(answered(ask(cross, path, "tei", documents=TEXTS)))


def test_documents_of_voyage_are_strings(cross: TestClient) -> None:
    told = answered(ask(cross, "/rerank", "voyage", documents=TEXTS, return_documents=True))
    told["data"][0]["document"] = {"text": told["data"][0]["document"]}
    with pytest.raises(ValidationError, match="document"):
        VoyageRerankOut.model_validate(told)


def test_no_documents(cross: TestClient) -> None:
    assert answered(ask(cross, documents=[]))["results"] == []
    assert answered(ask(cross, documents=[], top_k=3))["data"] == []
    told = ask(cross, texts=[])
    assert (told.status_code, told.json()["error_type"]) == (400, "Empty")


def test_a_text_may_be_empty(cross: TestClient, late: TestClient) -> None:
    for client in (cross, late):
        assert len(answered(ask(client, texts=["", "w1"]))) == 2


def test_models_by_name(cross: TestClient) -> None:
    listed = answered(cross.get("/v1/models"))["data"]
    assert [each["capabilities"] for each in listed] == [["rerank"], ["rerank", "embed"]]
    by_late = answered(ask(cross, documents=TEXTS, model=listed[1]["id"], strict_model=True))
    assert by_late["model"] == listed[1]["id"]
    assert by_late["results"] != answered(ask(cross, documents=TEXTS, model="cross"))["results"]
    assert answered(ask(cross, documents=TEXTS, model="rerank-v9"))["model"] == "cross"
    told = ask(cross, documents=TEXTS, model="rerank-v9", strict_model="true")
    assert told.status_code == 404
    assert "rerank-v9" in told.json()["message"]


def test_headers_tell_times_and_what_it_was_made_with(cross: TestClient, late: TestClient) -> None:
    told = ask(late, documents=TEXTS).headers
    assert told["x-index-generation"] == late.get("/info").json()["generation"]
    assert told["x-model-fingerprint"] == late.get("/info").json()["model"]["fingerprint"]
    parts = [float(told[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
    assert all(0 < part < float(told["x-total-time"]) for part in parts)
    told = ask(cross, documents=TEXTS).headers
    assert told["x-model-fingerprint"] == cross.get("/info").json()["reranker"]["fingerprint"]
    assert "x-index-generation" not in told


def test_settings_decide_what_bodies_do_not(tmp_path: Path) -> None:
    build_store(tmp_path)
    settings = Settings(store=tmp_path, rerank_dialect="infinity", strict_model=True)
    with TestClient(create_app(settings, load)) as client:
        [result] = answered(ask(client, documents=["w1"], return_documents=True))["results"]
        assert result["document"] == "w1"
        OpenAiErrorOut.model_validate(ask(client, documents=["w1"], model="other").json())
        assert ask(client, documents=["w1"], model="other", strict_model=False).status_code == 200
        OpenAiErrorOut.model_validate(client.post("/rerank", content=b"{").json())


# --- what TEI's clients look for


def test_info_names_one_kind_of_model(cross: TestClient, late: TestClient, store: Path, checkpoints: Path) -> None:
    told = answered(cross.get("/info"))
    InfoOut.model_validate(told)
    assert list(told["model_type"]) == ["reranker"]
    assert told["model_id"] == "cross"
    assert told["max_input_length"] == 56
    assert told["max_client_batch_size"] == 10_000
    assert answered(late.get("/info"))["max_input_length"] == 16
    with TestClient(tiny_app(store=store, reranker=str(checkpoints / "cross"), info_model_type="embedding")) as client:
        told = answered(client.get("/info"))
    assert list(told["model_type"]) == ["embedding"]
    assert told["model_id"] == told["model"]["name"]


def test_health_under_its_other_names(words: TestClient) -> None:
    paths = ("/health", "/ping", "/v2/health/ready")
    assert [words.get(path).status_code for path in paths] == [200, 200, 200]
    words.app.state.resources.live.current = None
    assert [words.get(path).status_code for path in paths] == [503, 503, 503]
    assert words.get("/v2/health/live").json() == {"live": True}
