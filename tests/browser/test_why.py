"""Why a reply has its score: the page's numbers and colours against the weights, read a second time in NumPy."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Opens, Watch, ask, number, settings_of, signed, tokens_shown
from golden.numpy_bert import Array, Weights, code_weights, reduced_terms, softmax, unit
from playwright.sync_api import Page, Route, expect
from served import Served, serve
from service_fakes import pool
from tiny import CLS, SEP, word_ids, write_checkpoint
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.registry import MixConfig
from polyrank.service.app import create_app

TURNS = ["w1 w2 w3 w4", "w5 w6", "w7 w8 w9"]
SAID = [CLS, *(id_ for turn in TURNS for id_ in [*word_ids(turn), SEP])]


class Reading:
    """What the weights say, in float64.

    Attributes:
        terms: what each code takes of each token, (codes, tokens, D).
    """

    def __init__(self, checkpoint: Path) -> None:
        self.config, self.weights = read_config(checkpoint / CONFIG_FILE), Weights(checkpoint)
        states = np.stack([unit(state) for state in self.weights.states("context", SAID)])
        shares = np.stack(code_weights(self.weights, self.config, states))
        terms = shares[:, :, None] * states
        lengths = np.linalg.norm(terms.sum(axis=1), axis=1)
        self.terms = self.config.score_scale * terms / lengths[:, None, None]

    def contributions(self, reply: str) -> Array:
        """What each token adds by each code to the score of a stored reply, (codes, tokens)."""
        stored = self._parts(reply).sum(axis=0).astype(np.float16).astype(np.float64)
        products = self.terms @ stored
        return self._late_weight * softmax(products.sum(axis=1))[:, None] * products

    def pairs(self, reply: str) -> Array:
        """What each token of the context adds with each of the reply, (tokens, tokens of the reply)."""
        parts = self._parts(reply)
        shares = softmax((self.terms @ parts.sum(axis=0)).sum(axis=1))
        return self._late_weight * np.einsum("i,itd,kd->tk", shares, self.terms, parts)

    @property
    def _late_weight(self) -> float:
        return self.config.evidence.late_weight

    def _parts(self, reply: str) -> Array:
        """What each token of a reply adds to its vector."""
        states = self.weights.states("candidate", [CLS, *word_ids(reply), SEP])
        parts = np.stack(reduced_terms(self.config.reduction, self.config.reduction_m, states))
        return parts / math.sqrt(float((parts.sum(axis=0) ** 2).sum()))


@pytest.fixture(scope="module")
def reading(checkpoints: Path) -> Reading:
    return Reading(checkpoints / "poly")


def ordered(values: Array) -> list[float]:
    """In the order of the page: turn by turn, and the marks last."""
    marks = [at for at, id_ in enumerate(SAID) if id_ in (CLS, SEP)]
    return [float(values[at]) for at in (*(at for at in range(len(SAID)) if at not in marks), *marks)]


def agree(page: Page, expected: list[float], marks: int = sum(id_ in (CLS, SEP) for id_ in SAID)) -> None:
    """Numbers, signs and colours of the strip are these; the last ones are of marks, which have no colour."""
    words = expected[: len(expected) - marks]
    most = max(map(abs, words))
    digits = 2 if most >= 0.1 else 3 if most >= 0.01 else 4
    shown = tokens_shown(page)
    least = 0.51 * 10**-digits
    assert [number for number, *_ in shown] == pytest.approx(expected, abs=least + 1e-3 * most)
    shares = [*(abs(value) / most for value in words), *[0.0] * marks]
    assert [share for _, share, _ in shown] == pytest.approx(shares, abs=1e-3)
    for (_, _, kind), value in zip(shown, words, strict=False):
        if abs(value) > 1e-3 * most:
            assert kind == ("against" if value < 0 else "for")
    assert [kind for *_, kind in shown[len(words) :]] == ["mark"] * marks


def test_the_heat_map_is_what_the_weights_say(server: Served, opens: Opens, reading: Reading) -> None:
    page = opens(server.url)
    results = ask(page, *TURNS)["results"]
    told = [reading.contributions(each["text"]) for each in results]
    page.locator(".reply .text").nth(1).click()  # the reply itself is pressed
    tokens = np.stack([each.sum(axis=0) for each in told])
    expect(page.get_by_role("heading", name="What speaks for this reply")).to_be_visible()
    agree(page, ordered(tokens[1] - tokens.mean(axis=0)))

    page.get_by_label("beside").select_option("rank 4")
    rival = results[0]["id"]
    with page.expect_response(lambda answer: (answer.request.post_data_json or {}).get("against") == rival):
        page.get_by_label("beside").select_option("rank 1")
    expect(page.locator(".why[aria-busy=false]")).to_be_visible()
    agree(page, ordered(tokens[1] - tokens[0]))

    weights = told[1].sum(axis=1)
    rows = page.locator(".codes tbody tr")
    expect(rows).to_have_count(9)
    heaviest = page.locator(".codes tbody th button").all_inner_texts()
    adds = [row.locator("td").nth(2).inner_text() for row in rows.all()]
    assert adds[:8] == [signed(float(weights[int(code)])) for code in heaviest]
    assert page.locator(".codes tbody th").last.inner_text() == "4 others"
    whole = sum(float(text.replace("\N{MINUS SIGN}", "-")) for text in adds)
    assert whole == pytest.approx(float(told[1].sum()), abs=0.006)
    assert page.locator(".codes tfoot td").nth(2).inner_text() == signed(float(told[1].sum()))

    attends = page.locator(".codes tbody tr").nth(0)
    said = page.locator(".strips li span span").all_inner_texts()
    assert attends.locator(".attended bdi").count() == 2
    assert set(attends.locator(".attended bdi").all_inner_texts()) <= {*said}
    assert attends.locator(".cells i").count() == len(SAID)

    page.get_by_role("button", name=f"Code {heaviest[2]}", exact=True).click()
    agree(page, ordered(told[1][int(heaviest[2])]))
    page.locator(".why > .strip button").nth(1).click()
    expect(page.get_by_role("heading", name="What adds with")).to_be_visible()
    agree(page, ordered(reading.pairs(results[1]["text"])[:, 1]))
    page.get_by_role("button", name="Whole score").click()
    agree(page, ordered(tokens[1] - tokens[0]))


def test_tokens_and_words_make_the_score(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    [best, *_] = ask(page, *TURNS)["results"]
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    expect(page.get_by_role("heading", name=f"What words add: {signed(best['scores']['lexical'])}")).to_be_visible()
    told = page.locator(".why > .hint").last.inner_text()
    assert f"Of the score {best['score']:.3f}, {best['score']:.3f} is told: " in told
    assert f"tokens {best['scores']['vector']:.3f}, words {signed(best['scores']['lexical'])}." in told
    expect(page.get_by_role("heading", name="What the reranker")).to_have_count(0)
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    expect(page.locator(".why")).to_have_count(0)


def test_the_first_explanation_may_take_longer_than_a_request(server: Served, opens: Opens, watch: Watch) -> None:
    """What is read of the model stays, so the page asks again, and says why it takes so long."""
    watch.tolerated.append("status of 504")
    page = opens(server.url)
    ask(page, *TURNS)
    late = {"type": "urn:polyrank:problem:deadline-exceeded", "title": "Late", "status": 504, "detail": "late"}
    asked: list[Any] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        if len(asked) > 2:
            page.wait_for_timeout(500)
            route.fallback()
        else:
            route.fulfill(status=504, json={**late, "request_id": "r"}, content_type="application/problem+json")

    page.route("**/explain", answer)
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="The first explanation reads the model")).to_be_visible()
    expect(page.get_by_role("heading", name="What speaks for this reply")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert asked[0] == asked[1] == asked[2]


def test_marks_are_not_the_reason(server: Served, opens: Opens) -> None:
    page = opens(server.url)
    ask(page, *TURNS)
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    expect(page.locator(".why > .hint").last).to_contain_text("Marks such as [CLS] and [SEP] stand for no word")
    reply = page.locator(".why > .strip li > *")
    assert reply.evaluate_all("all => all.map(each => each.className == 'mark')") == [
        each in ("[CLS]", "[SEP]") for each in reply.locator("span").all_inner_texts()
    ]


def test_a_reply_that_was_removed_meanwhile(own_server: Served, opens: Opens) -> None:
    page = opens(own_server.url)
    results = ask(page, "w1")["results"]
    own_server.client.post("/index/candidates/delete", json={"ids": [results[2]["id"]]})
    page.get_by_role("button", name="Why rank 3", exact=True).click()
    expect(page.get_by_text("This reply is not there any more.")).to_be_visible()


def test_a_reply_is_explained_by_the_generation_that_ranked_it(
    own_store: Path, checkpoints: Path, opens: Opens, watch: Watch
) -> None:
    """A conversation may be in the share of a trial; when that is over, the live generation explains."""
    watch.tolerated.append("status of 409")
    store = GenerationStore(own_store)
    on_trial, live = store.ids()
    store.begin_trial(on_trial, share=1.0)
    with serve(create_app(settings_of(own_store, checkpoints, feedback="ids"))) as served:
        trials = served.app.state.resources.trials
        page = opens(served.url)
        until(lambda: trials.sharing is not None, 20)
        assert ask(page, *TURNS)["generation"] == on_trial
        for rank, by in ((1, on_trial), (2, live)):
            with page.expect_response(lambda answer: answer.url.endswith("/explain") and answer.ok) as explained:
                page.get_by_role("button", name=f"Why rank {rank}", exact=True).click()
            assert explained.value.json()["generation"] == by
            expect(page.get_by_text("Another generation answers now.")).to_have_count(int(by == live))
            store.end_trial()
            until(lambda: trials.current is None, 20)


def test_a_reply_is_explained_anew_for_the_next_answer(server: Served, opens: Opens) -> None:
    """What was pressed belongs to tokens that are not there any more."""
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Filter").fill('{"n": 3}')  # few enough that all replies come again
    best = ask(page, *TURNS)["results"][0]
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    page.get_by_label("beside").select_option("rank 3")
    page.locator(".why > .strip button").nth(1).click()
    expect(page.get_by_role("heading", name="What adds with")).to_be_visible()
    page.get_by_role("button", name="Remove turn 3").click()
    page.get_by_role("button", name="Remove turn 1").click()
    with page.expect_response("**/explain") as explained:
        page.get_by_role("button", name="Rank anew").click()
    told = explained.value.json()
    expect(page.get_by_role("heading", name="What speaks for this reply")).to_be_visible()
    expect(page.get_by_label("beside")).to_have_value("mean")
    [relative] = [each["relative"] for each in told["candidates"] if each["id"] == best["id"]]
    tokens = told["context"]["tokens"]
    at_last = sorted(range(len(tokens)), key=lambda at: tokens[at]["turn"] is None)
    agree(page, [relative[at] for at in at_last], sum(each["turn"] is None for each in tokens))
    expect(page.get_by_role("button", name="Use this reply")).to_have_count(len(told["candidates"]))


@pytest.mark.parametrize("by", ["turns", "words"])
def test_what_the_reranker_loses_is_what_a_direct_call_answers(server: Served, opens: Opens, by: str) -> None:
    page = opens(server.url)
    page.get_by_text("Persona, filter").click()
    page.get_by_label("Persona").fill("w7 w8")
    page.get_by_label("Rerank").check()
    said = ["w1 \U0001f600 w2", "w3 w4"]
    best = ask(page, *said)["results"][0]
    page.get_by_role("button", name="Why rank 1", exact=True).click()
    page.get_by_role("button", name=f"each of the {by}").click()
    strips = page.locator(".strips")
    expect(strips).to_have_count(2)
    context = [{"role": role, "text": text} for role, text in zip(("user", "assistant"), said, strict=True)]
    body = {"context": context, "persona": ["w7 w8"], "candidates": [{"id": best["id"]}], "cross": by}
    [told] = server.client.post("/explain", json=body).json()["candidates"]
    drops = {(unit["turn"], unit["start"]): unit["drop"] for unit in told["cross"]["units"]}
    texts = ["w7 w8", *said] if by == "turns" else [word for text in ("w7 w8", *said) for word in text.split()]
    assert strips.last.locator("li span span").all_inner_texts() == texts
    shown = [float(text.replace("\N{MINUS SIGN}", "-")) for text in strips.last.locator("b").all_inner_texts()]
    assert shown == pytest.approx([*drops.values()], abs=0.006)
    expect(page.locator(".why > .hint").last).to_contain_text(f"own score, {number(best['scores']['cross'])}.")


def test_tokens_are_left_out_where_a_score_is_no_sum(checkpoints: Path, tmp_path: Path, opens: Opens) -> None:
    model = write_checkpoint(tmp_path, "mix", 5, architecture="mix", own=MixConfig())
    build(polyrank.load(model), pool(20), tmp_path / "store")
    with serve(create_app(settings_of(tmp_path / "store", checkpoints))) as served:
        page = opens(served.url)
        best = ask(page, "w1 w2 w3")["results"][0]
        page.get_by_role("button", name="Why rank 1", exact=True).click()
        expect(page.get_by_text("Not told: ").first).to_be_visible()
        page.get_by_role("button", name="each of the tokens").click()
        expect(page.locator(".strips").last.locator("li")).to_have_count(3)
        body = {"context": ["w1 w2 w3"], "candidates": [{"id": best["id"]}], "occlusion": True}
        [told] = served.client.post("/explain", json=body).json()["candidates"]
        drops = [drop for drop in told["occlusion"] if drop is not None]
        assert [value for value, *_ in tokens_shown(page)[-3:]] == pytest.approx(drops, abs=0.006)
