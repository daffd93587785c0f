"""A Uni-Encoder as reranker over HTTP: its scores, what they depend on, and what it costs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from in_process import TestClient
from service_fakes import pool
from tiny import tiny_app, write_base
from tiny_training import trained

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_cross, load_reranker
from polyrank.model.text.assembly import Conversation
from polyrank.service.app import create_app
from polyrank.service.ranking import costs
from polyrank.service.settings import Settings

QUERY = "w1 w2 w30 w31"
TEXTS = [f"w{3 + at % 30} w{4 + at % 7}" + " w9" * (at % 5) for at in range(40)]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("uni")
    return trained(write_base(parent / "base", 5), parent / "model", architecture="uni")


@pytest.fixture(scope="module")
def client(reranker: Path, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build(polyrank.load(checkpoints / "poly"), pool(30), root)
    with TestClient(tiny_app(store=root, reranker=str(reranker))) as client:
        yield client


def test_rerank_gives_the_scores_of_rank_alone_and_among_others(client: TestClient, reranker: Path) -> None:
    expected = dict(load_cross(reranker).rank([QUERY], TEXTS))
    told = client.post("/v2/rerank", json={"query": QUERY, "texts": TEXTS, "raw_scores": True}).json()
    assert {each["index"]: each["score"] for each in told} == pytest.approx(expected, abs=1e-5)
    [alone] = client.post("/v2/rerank", json={"query": QUERY, "texts": TEXTS[7:8], "raw_scores": True}).json()
    assert alone["score"] == pytest.approx(expected[7], abs=1e-5)


def test_a_ranking_is_in_its_order(client: TestClient, reranker: Path) -> None:
    told = client.post("/rank", json={"context": QUERY, "top_k": 20, "rerank": {"top_n": 20}}).json()["results"]
    scores = [each["scores"]["cross"] for each in told]
    assert scores == sorted(scores, reverse=True)
    expected = load_cross(reranker).score_texts(Conversation.of(QUERY), [each["text"] for each in told], None)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


def test_a_context_is_counted_once_in_usage_and_price(client: TestClient, reranker: Path, checkpoints: Path) -> None:
    uni, cross = load_cross(reranker), load_cross(checkpoints / "cross")
    conversation = Conversation.of(QUERY)
    pairs, _ = uni.tokenize_pairs(conversation, TEXTS)
    read = len(pairs.contexts[0]) + sum(map(len, pairs.candidates))
    told = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    assert told["usage"] == {"prompt_tokens": read, "total_tokens": read}
    prices = [costs.pair_tokens(each, conversation, TEXTS) for each in (uni, cross)]
    assert prices[1] - prices[0] == (len(TEXTS) - 1) * (len(QUERY) // 4)
    assert costs.pair_tokens(uni, conversation, []) == costs.pair_tokens(cross, conversation, [])


def test_one_whose_scores_depend_on_each_other_is_not_served(tmp_path: Path) -> None:
    path = trained(write_base(tmp_path / "base", 5), tmp_path / "model", architecture="uni", mask="arrow")
    for load in (load_reranker, lambda name: TestClient(create_app(Settings(reranker=str(name)))).__enter__()):
        with pytest.raises(InvalidInput, match="has the mask arrow, so a score depends on which candidates are sent"):
            load(path)
    assert len(load_cross(path).rank("w1", TEXTS[:3])) == 3
