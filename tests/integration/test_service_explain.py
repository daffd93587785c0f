"""POST /explain over real models: its numbers add up to scores of /rank, for each architecture and way of asking."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import EVIDENCE
from in_process import TestClient
from service_fakes import numbered, pool
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.registry import DeformerConfig, MixConfig, UniConfig, VirtConfig
from polyrank.service.api.answers import ExplainOut
from polyrank.service.app import create_app
from polyrank.service.http.native import explain as routes_explain
from polyrank.service.settings import Settings

SAID = ["w1 w2 w3 ord-3", "w5 w6", "w9 w4 ord-7"]
POOL = [*numbered(pool(200)), Candidate("plain", "w4 w5 w9")]
SENT: list[Any] = [{"id": "c3"}, "w1 w2 w30", {"id": "c7"}, {"id": "named", "text": "w9 w9 w8"}, {"id": "plain"}]
SCALED: dict[str, Any] = {"normalize": True, "code_scale": 5.0, "score_scale": 5.0}
CROWD: list[Any] = [{"id": "c7"}, "ord-7 it is", "ord-7 w30", "and ord-7 too"]  # a word of the turns is in each
MODELS: dict[str, dict[str, Any]] = {
    "poly": {"architecture": "poly", "n_codes": 12, "reduction": "mean", **SCALED},
    "poly with words": {"architecture": "poly", "n_codes": 4, "reduction": "mean", "evidence": EVIDENCE, **SCALED},
    "poly last": {"architecture": "poly", "n_codes": 4, "context_vectors": "last", **SCALED},
    "bi": {"architecture": "bi", "reduction": "mean", "evidence": EVIDENCE},
    "colbert": {"architecture": "colbert", "evidence": EVIDENCE, "score_scale": 5.0},
    "deformer": {"architecture": "deformer", "reduction": "mean", "own": DeformerConfig(upper=1)},
    "mix": {"architecture": "mix", "own": MixConfig()},
    "virt": {"architecture": "virt", "own": VirtConfig(), "evidence": EVIDENCE},
    "lexical": {},
}
SUMS = [name for name in MODELS if name not in ("deformer", "mix", "virt")]  # the others have more than sums
UNI: dict[str, Any] = {"architecture": "uni", "own": UniConfig()}
RANDOM_HEADS: dict[str, Any] = {"residual": True, "n_codes": 3, "reduction": "mean", **SCALED}


@pytest.fixture(scope="module", params=MODELS)
def server(request, tmp_path_factory) -> Iterator[tuple[str, TestClient]]:
    """A server of a small model with random weights."""
    name, parent = request.param, tmp_path_factory.mktemp("explain")
    path = "lexical" if name == "lexical" else write_checkpoint(parent, "model", 3, **MODELS[name])
    model: Any = polyrank.load(path)
    build(model, POOL, parent / "store", BuildOptions())
    with TestClient(create_app(Settings(store=parent / "store", threads=1))) as client:
        yield name, client


@pytest.fixture(scope="module", params=["plain", "residual", "with words", "uni"])
def reranking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server of a Poly-encoder that counts words, with a reranker."""
    parent = tmp_path_factory.mktemp("cross")
    model: Any = polyrank.load(write_checkpoint(parent, "model", 3, **MODELS["poly with words"]))
    build(model, POOL, parent / "store", BuildOptions())
    kinds = {"plain": {}, "residual": RANDOM_HEADS, "with words": {"evidence": EVIDENCE}, "uni": UNI}
    fields: dict[str, Any] = {"architecture": "cross", **kinds[request.param]}
    cross = write_checkpoint(parent, "cross", 4, **fields)
    with TestClient(create_app(Settings(store=parent / "store", reranker=str(cross), threads=1))) as client:
        yield client


def ask(client: TestClient, path: str = "/explain", **body: Any) -> Any:
    answer = client.post(path, json={"context": SAID, "candidates": SENT, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def explain(client: TestClient, **body: Any) -> Any:
    answer = ask(client, **body)
    ExplainOut.model_validate(answer)
    return answer


def test_scores_are_those_of_rank_and_what_is_told_adds_up_to_them(server: tuple[str, TestClient]) -> None:
    name, client = server
    answer = explain(client)
    ranked = {each["index"]: each for each in ask(client, "/rank")["results"]}
    assert [each["index"] for each in answer["candidates"]] == [0, 1, 2, 3, 4]
    for each in answer["candidates"]:
        placed = ranked[each["index"]]
        assert (each["id"], each["text"]) == (placed["id"], placed["text"])
        assert each["score"] == pytest.approx(placed["score"], abs=1e-6)
        words = each["words"]["value"] if each["words"] else 0.0
        assert words == pytest.approx(placed["scores"].get("lexical", 0.0), abs=1e-5)
        assert each["explained"] == pytest.approx(sum(each["tokens"] or [0.0]) + words, abs=1e-9)
        if name in SUMS:
            assert each["explained"] == pytest.approx(each["score"], abs=1e-5 * max(1, abs(each["score"])))
        if each["words"]:
            assert sum(term["value"] for term in each["words"]["terms"]) == pytest.approx(words, abs=1e-9)
    assert ({each["part"] for each in answer["unexplained"]} == set()) == (
        name in SUMS and name not in ("poly last", "lexical")
    )
    assert answer["generation"] == client.get("/index").json()["active"]["id"]


def test_a_generation_may_be_named_by_its_id(tmp_path: Path) -> None:
    """An answer may be of the one on trial; its id alone says whose scores are meant."""
    models = [polyrank.load(write_checkpoint(tmp_path, f"model {seed}", seed, **MODELS["bi"])) for seed in (3, 4)]
    live, other = (
        build(model, POOL, tmp_path / "store", BuildOptions(activate=at == 0)).generation
        for at, model in enumerate(models)
    )
    with TestClient(create_app(Settings(store=tmp_path / "store", threads=1))) as client:
        client.post("/index/trial", json={"generation": other})
        by = {name: explain(client, generation=name) for name in ("live", "trial", live, other)}
        assert [each["generation"] for each in by.values()] == [live, other, live, other]
        assert (
            by[live]["candidates"] == by["live"]["candidates"] != by["trial"]["candidates"] == by[other]["candidates"]
        )
        client.post("/index/trial/end")
        refused = client.post("/explain", json={"context": SAID, "candidates": SENT, "generation": other})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:polyrank:problem:generation-mismatch")
        assert refused.json()["detail"] == f"generation {other} was expected, but {live} is served"


def test_words_that_count_less_in_a_list_are_told_so(server: tuple[str, TestClient]) -> None:
    name, client = server
    told, [alone] = explain(client, candidates=CROWD)["candidates"], explain(client, candidates=CROWD[:1])["candidates"]
    for placed in ask(client, "/rank", candidates=CROWD)["results"]:
        each = told[placed["index"]]
        assert each["score"] == pytest.approx(placed["score"], abs=1e-6)
        if each["words"]:
            words = sum(term["value"] for term in each["words"]["terms"])
            assert words == pytest.approx(placed["scores"]["lexical"], abs=1e-5)
    if told[0]["words"]:
        assert (told[0]["words"]["value"] < alone["words"]["value"]) == (name != "lexical")


def test_codes_tokens_pairs_and_rest_stay_whole(server: tuple[str, TestClient]) -> None:
    _, client = server
    for count in (0, 2, 8):
        for each in explain(client, codes=count, pairs=True)["candidates"]:
            if each["codes"] is not None:
                parts, others = each["codes"], each["others"]
                assert len(parts) == min(count, len(parts) + others["count"])
                total = sum(code["contribution"] for code in parts) + others["contribution"]
                assert total == pytest.approx(sum(each["tokens"]), abs=1e-9)
                assert sum(code["weight"] for code in parts) + others["weight"] == pytest.approx(1.0)
                assert all(sum(code["tokens"]) == pytest.approx(code["contribution"], abs=1e-9) for code in parts)
                assert all(sum(code["attention"]) == pytest.approx(1.0) for code in parts)
                assert sorted((code["weight"] for code in parts), reverse=True) == [code["weight"] for code in parts]
                assert 1.0 <= each["effective_codes"] + 1e-9 <= len(parts) + others["count"] + 1e-6
            if each["pairs"] is not None:
                pairs = np.array(each["pairs"])
                assert pairs.shape == (len(each["tokens"]), len(each["reply"]["tokens"]))
                np.testing.assert_allclose(pairs.sum(axis=0), each["reply_tokens"], atol=1e-5)
                assert sum(each["reply_tokens"]) + each["rest"] == pytest.approx(sum(each["tokens"]), abs=1e-9)
                assert abs(each["rest"]) < 0.01 * max(1, abs(each["score"]))


def test_relative_contributions_are_beside_the_mean_or_a_rival(server: tuple[str, TestClient]) -> None:
    _, client = server
    for against in ("mean", "named"):
        candidates = explain(client, against=against)["candidates"]
        if candidates[0]["tokens"] is None:
            assert all(each["relative"] is None for each in candidates)
            continue
        tokens = np.array([each["tokens"] for each in candidates])
        beside = tokens.mean(axis=0) if against == "mean" else tokens[3]
        np.testing.assert_allclose([each["relative"] for each in candidates], tokens - beside, atol=1e-12)


def test_nothing_is_compared_with_a_rival_that_is_not_there(server: tuple[str, TestClient]) -> None:
    _, client = server
    answer = explain(client, candidates=[{"id": "nobody"}, {"id": "c3"}, {"id": "c7"}], against="nobody")
    assert answer["missing_ids"] == ["nobody"]
    assert [each["relative"] for each in answer["candidates"]] == [None, None]


def test_spans_are_the_characters_of_turns_persona_and_replies(server: tuple[str, TestClient]) -> None:
    name, client = server
    persona = ["w20 w21", " ", "w22"]
    answer = explain(client, persona=persona, context=[*SAID[:2], {"role": "user", "text": "w9 \t w4  ord-7"}])
    shown = [token for token in answer["context"]["tokens"] if token["start"] is not None]
    said = [*SAID[:2], "w9 \t w4  ord-7"]
    for token in shown:
        source = persona[token["persona"]] if token["turn"] is None else said[token["turn"]]
        assert source[token["start"] : token["end"]] == token["text"]
    assert [token["text"] for token in answer["context"]["tokens"] if token["start"] is None][:1] == (
        ["[CLS]"] if name != "lexical" else []
    )
    if name != "lexical":
        assert {(token["turn"], token["persona"]) for token in shown} == {
            (0, None), (1, None), (2, None), (None, 0), (None, 2),
        }  # fmt: skip
    for each in answer["candidates"]:
        told = [token for token in each["reply"]["tokens"] if token["start"] is not None]
        assert all(each["text"][token["start"] : token["end"]] == token["text"] for token in told)
        assert "".join(token["text"] for token in told) == ("" if name == "lexical" else each["text"].replace(" ", ""))


def test_a_long_mail_is_cut_at_its_beginning_and_told(server: tuple[str, TestClient]) -> None:
    _, client = server
    mail = "w7 w8 w9 ord-3 " * 4000
    assert len(mail) == 60_000
    ranked, end = ask(client, "/rank", context=["w1", mail]), ask(client, "/rank", context=["w1", mail[-20_000:]])
    assert ranked["results"] == end["results"]
    assert ranked["truncated"]["tokens"] - end["truncated"]["tokens"] == 10_000
    told = explain(client, context=["w1", mail])
    assert told["context"]["truncated"] == ranked["truncated"]
    for token in told["context"]["tokens"]:
        assert token["turn"] != 1 or mail[token["start"] : token["end"]] == token["text"]


def test_entities_are_read_as_their_letters_and_spans_are_those_of_what_was_sent(
    server: tuple[str, TestClient],
) -> None:
    name, client = server
    sent, meant = "w1 w&#50; &lt; w&#x33; ord&#45;3 &amp; w4", "w1 w2 < w3 ord-3 & w4"
    assert ask(client, "/rank", context=[sent])["results"] == ask(client, "/rank", context=[meant])["results"]
    tokens = explain(client, context=[sent])["context"]["tokens"]
    shown = [(token["text"], sent[token["start"] : token["end"]]) for token in tokens if token["turn"] == 0]
    if name != "lexical":
        assert {"w1": "w1", "w2": "w&#50;", "<": "&lt;", "w4": "w4"}.items() <= dict(shown).items()


def test_occlusion_tells_what_the_score_loses_without_each_token(server: tuple[str, TestClient]) -> None:
    name, client = server
    answer = explain(client, occlusion=True, context="w1 w2 w3")
    tokens = answer["context"]["tokens"]
    whole = {each["index"]: each["scores"]["vector"] for each in ask(client, "/rank", context="w1 w2 w3")["results"]}
    without = {each["index"]: each["scores"]["vector"] for each in ask(client, "/rank", context="w1 w3")["results"]}
    for each in answer["candidates"]:
        if name == "lexical":
            assert each["occlusion"] is None
            continue
        assert [drop is None for drop in each["occlusion"]] == [token["start"] is None for token in tokens]
        [drop] = [drop for token, drop in zip(tokens, each["occlusion"], strict=True) if token["text"] == "w2"]
        assert drop == pytest.approx(whole[each["index"]] - without[each["index"]], abs=2e-4)


@pytest.mark.parametrize("by", ["turns", "words"])
def test_the_cross_encoder_is_asked_without_each_turn_or_word(reranking: TestClient, by: str) -> None:
    answer = explain(reranking, cross=by)
    ranked = {each["index"]: each["scores"]["cross"] for each in ask(reranking, "/rank", rerank=True)["results"]}
    said = SAID
    for each in answer["candidates"]:
        cross = each["cross"]
        assert cross["score"] == pytest.approx(ranked[each["index"]], abs=1e-5)
        texts = [said[unit["turn"]][unit["start"] : unit["end"]] for unit in cross["units"]]
        assert texts == (
            said if by == "turns" else [part for turn in said for part in turn.replace("-", " - ").split()]
        )
        assert any(abs(unit["drop"]) > 1e-3 for unit in cross["units"])
    assert explain(reranking)["candidates"][0]["cross"] is None


def test_words_count_as_little_for_the_cross_encoder_as_in_the_ranking(reranking: TestClient) -> None:
    told = explain(reranking, candidates=CROWD, cross="turns")["candidates"]
    [alone] = explain(reranking, candidates=CROWD[:1], cross="turns")["candidates"]
    for placed in ask(reranking, "/rank", candidates=CROWD, rerank=True)["results"]:
        assert told[placed["index"]]["cross"]["score"] == pytest.approx(placed["scores"]["cross"], abs=1e-5)
    if words := told[0]["cross"]["words"]:
        assert words["value"] < alone["cross"]["words"]["value"]


def test_ids_that_are_not_there_are_listed(server: tuple[str, TestClient]) -> None:
    _, client = server
    answer = explain(client, candidates=[{"id": "nobody"}, {"id": "c3"}])
    assert answer["missing_ids"] == ["nobody"]
    assert [(each["index"], each["id"]) for each in answer["candidates"]] == [(1, "c3")]
    refused = client.post("/explain", json={"context": SAID, "candidates": [{"id": "nobody"}]})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:polyrank:problem:unknown-candidates")


@pytest.mark.parametrize(("body", "what"), [
    ({"candidates": []}, "candidates"), ({"candidates": ["w1"] * 11}, "candidates"),
    ({"against": "c1"}, "against"), ({"cross": "letters"}, "cross"),
    ({"codes": -1}, "codes"), ({"cross": "turns"}, "rerank"), ({"context": " "}, "context"),
])  # fmt: skip
def test_what_cannot_be_explained_is_refused(server: tuple[str, TestClient], body: dict[str, Any], what: str) -> None:
    _, client = server
    answer = client.post("/explain", json={"context": SAID, "candidates": SENT, **body})
    assert answer.status_code == 422
    assert what in answer.json()["detail"]


def test_a_long_explanation_ends_by_its_deadline(server: tuple[str, TestClient]) -> None:
    name, client = server
    if name == "lexical":
        return
    body = {"context": "w1 " * 200, "candidates": SENT, "occlusion": True, "timeout_ms": 1}
    assert client.post("/explain", json=body).status_code in (503, 504)
    assert math.isfinite(explain(client, context="w1 w2")["candidates"][0]["explained"])


def test_nobody_waits_for_another_explanation_beyond_the_deadline(server: tuple[str, TestClient]) -> None:
    """The other one takes 10 seconds; what explains the scores was loaded before."""
    _, client = server
    explain(client)
    turn, ended = client.app.state.resources.runtime.explains, threading.Event()

    async def hold() -> None:
        async with turn:
            await asyncio.to_thread(ended.wait, 10)

    other = client.portal.start_task_soon(hold)
    began = time.monotonic()
    answer = client.post("/explain", json={"context": SAID, "candidates": SENT, "timeout_ms": 100})
    ended.set()
    other.result()
    assert answer.status_code == 504
    assert time.monotonic() - began < 5


def test_an_answer_of_many_numbers_is_written_beside_the_event_loop(reranking: TestClient, monkeypatch) -> None:
    written_by: list[str] = []
    write = routes_explain.answer_of
    monkeypatch.setattr(
        routes_explain, "answer_of", lambda *told: written_by.append(threading.current_thread().name) or write(*told)
    )
    explain(reranking, codes=0)
    explain(reranking, codes=500, pairs=True)
    assert [name == "reading_0" for name in written_by] == [False, True]
