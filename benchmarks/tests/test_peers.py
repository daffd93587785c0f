"""Comparisons with other systems: figures, goals, and sides that take turns."""

import sys
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from benchmarks.load.drive import Running
from benchmarks.load.figures import Answer
from benchmarks.load.mix import SAMPLE
from benchmarks.peers import inputs
from benchmarks.peers.contest import Side, contest, sides
from benchmarks.peers.goals import Goal, of_calls, of_results, of_searches, of_servers
from benchmarks.peers.quality import listed
from benchmarks.peers.rank import measured, requests
from benchmarks.peers.ratios import Figure, ratios, rows
from benchmarks.peers.report import PAGE, replaced
from benchmarks.peers.servers import Server

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

WORKER = """
import sys
from benchmarks.peers.worker import answer
print("noise of a library")
class Result(list):
    def tolist(self):
        return [*self]
answer({"double": lambda text: Result([text, text])}, {"threads": sys.argv[-1]})
"""


def test_a_ratio_is_that_of_calls_beside_each_other() -> None:
    # The machine was twice as slow in the second round: the quotient of medians, 3.5 to 1.5, would be another.
    found = ratios({"polyrank": [1.0, 2.0], "peer": [3.0, 4.0]})
    assert found == {"peer": Figure(median=2.5, low=2.0, high=3.0)}
    with pytest.raises(ValueError, match="longer"):
        ratios({"polyrank": [1.0, 2.0], "peer": [3.0]})


def test_rows_tell_milliseconds_of_one_piece_of_work() -> None:
    ours, peer = rows({"polyrank": [0.2, 0.4, 0.3], "peer": [0.6, 0.4, 0.9]}, 10, {"work": "w"})
    assert ours == {"work": "w", "who": "polyrank", "ms": _figure(30.0, 20.0, 40.0), "times_ours": None}
    assert peer["ms"] == _figure(60.0, 40.0, 90.0)
    assert peer["times_ours"] == _figure(3.0, 1.0, 3.0)


def test_figures_have_three_digits() -> None:
    assert str(Figure(1234.5, 89.12, 0.01234)) == "1234 (89.1 to 0.0123)"


def test_a_rate_counts_until_the_last_answer() -> None:
    answers = [Answer(0, at, 0.0, 0.5, 200, None) for at in (0.0, 0.5, 1.0, 1.5)]
    assert measured(answers) == {"per_second": 2.0, "p50_ms": 500.0, "p99_ms": 500.0}
    with pytest.raises(SystemExit, match=r"1 of 5 requests failed: \{503: 1\}"):
        measured([*answers, Answer(0, 1.5, 0.0, 0.1, 503, 1)])


def test_sides_work_in_processes_of_their_own_in_turns() -> None:
    with sides({"a": [sys.executable, "-c", WORKER]}, threads=1) as [side]:
        assert side.about == {"threads": "1"}
        assert side.results("double", ["x", "y"]) == [["x", "x"], ["y", "y"]]
        took = contest([side], "double", ["x", "y"], rounds=2)
    assert list(took) == ["a"]
    assert len(took["a"]) == 2
    assert min(took["a"]) > 0


def test_who_begins_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Side):
        def __init__(self, name: str) -> None:
            self.name = name

        def seconds(self, _call: str, inputs: object) -> list[float]:
            order.append(self.name)
            return [1.0, 2.0]

    order: list[str] = []
    monkeypatch.setattr("benchmarks.peers.contest.PAUSE_SECONDS", 0.0)
    assert contest([Told("a"), Told("b")], "call", [], rounds=2) == {"a": [3.0, 3.0], "b": [3.0, 3.0]}
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_side_that_ends_is_named() -> None:
    with pytest.raises(SystemExit, match=r"^gone ended"), sides({"gone": ["true"]}, threads=1) as [side]:
        assert side.about


def test_inputs_are_drawn_and_the_same_again() -> None:
    data, pool = SAMPLE / "conversations.jsonl", [SAMPLE / "pool.jsonl"]
    contexts = inputs.contexts(data, 20, seed=1)
    assert contexts == inputs.contexts(data, 20, seed=1) != inputs.contexts(data, 20, seed=2)
    assert len({len(each.split()) for each in contexts}) > 5
    all_, some = inputs.replies(pool), inputs.replies(pool, 10)
    assert some[0] == all_[0]
    assert all_.index(some[-1]) > 0.8 * len(all_)
    pairs = inputs.pairs(data, pool, 50, seed=1)
    assert len({context for context, _ in pairs}) == 1
    assert len({len(text.split()) for _, text in pairs}) > 5


def test_no_two_requests_are_alike() -> None:
    server = Server("s", Running("", 0), "/", lambda text: {"text": text})
    texts = [body["text"] for body in islice(requests(server, ["hello"], count()), 100)]
    assert len(set(texts)) == 100


def test_goals_leave_out_what_does_other_work() -> None:
    told = {"work": "1 context", "threads": 2}
    took = {"polyrank": [1.0, 1.0], "torch": [2.9, 4.0], "openvino": [1.0, 1.4]}
    took |= {"polyrank, base": [0.4, 0.4], "onnx-int8": [0.5, 0.5]}
    cosines = {"openvino": 0.99995, "onnx-int8": 0.96148}
    encoded = [{**row, "cosine": cosines.get(row["who"], 1.0)} for row in rows(took, 1, told)]
    [fastest] = of_calls(encoded)
    assert fastest.row() == {
        "work": "1 context, 2 threads", "against": "sentence-transformers' fastest, openvino", "goal": "1.3",
        "ratio": "1.2 (1 to 1.4)", "met": "no",
    }  # fmt: skip
    assert [goal.against for goal in of_calls(encoded, {"onnx-int8"})] == ["sentence-transformers' fastest, onnx-int8"]
    reranked = rows(took, 1, {"work": "50 pairs", "threads": 2})  # scores tell no cosine
    found = {goal.work: goal.against for goal in of_calls([*encoded, *reranked])}
    assert found["50 pairs, 2 threads"] == "sentence-transformers' fastest, openvino"


def test_a_back_end_that_ranks_as_well_competes() -> None:
    told = {"work": "1 context", "threads": 1, "cosine": 0.9}
    encoded = rows({"polyrank": [1.0], "torch": [3.0], "good": [0.7], "bad": [0.5]}, 1, told)
    quality = [{"who": "good", "points": -0.3, "low": -0.5}, {"who": "bad", "points": -0.2, "low": -0.6}]
    goals = of_results({"encode": {"rows": encoded}, "quality": {"rows": quality}})
    assert [goal.against for goal in goals] == ["sentence-transformers' fastest, good"]


def test_a_list_is_the_reply_and_others_of_its_candidates() -> None:
    replies = [str(number) for number in range(40)]
    dialogue = Dialogue(Conversation.of(["a", "b"]), "7", tuple(replies), 7)
    context, texts = listed(dialogue, np.random.default_rng(0))
    assert (context, texts[0], len(set(texts))) == ("a b", "7", 20)


def test_a_search_is_compared_with_one_query_of_faiss() -> None:
    found = rows({"polyrank": [1.0, 1.0], "FAISS flat": [0.9, 1.2]}, 1, {"work": "a search of 100", "threads": 1})
    assert [(goal.work, goal.against, goal.row()["met"]) for goal in of_searches(found)] == [
        ("a search of 100, 1 thread", "FAISS flat", "yes")
    ]
    assert not list(of_calls(found))


def test_goals_of_servers_are_those_of_the_pool_with_many_callers() -> None:
    times = {name: {"median": 1.9, "low": 1.0, "high": 3.0} for name in ("per_second_times", "p50_times", "p99_times")}
    ranked = [
        {"candidates": size, "callers": callers, "who": who, **times}
        for size, callers in ((31, 1), (31, 16), (31, 64), (10, 1))
        for who in ("FastAPI app", "infinity, torch", "infinity, optimum")
    ]
    ours = {"candidates": 31, "callers": 1, "who": "polyrank", "overhead_ms": {"median": 2.1, "low": 1.9, "high": 3.0}}
    found = [(goal.work, goal.against, goal.row()["met"]) for goal in of_servers([*ranked, ours])]
    assert found == [
        ("`/rank` over 31, 16 callers: requests a second", "infinity, torch", "no"),
        ("`/rank` over 31, 16 callers: requests a second", "infinity, optimum", "no"),
        ("`/rank` over 31, 1 caller: p50", "FastAPI app", "no"),
        ("`/rank` over 31, 1 caller: p99", "FastAPI app", "no"),
        ("`/rank` over 31, 1 caller: ms beyond model and search", "", "no"),
    ]


def test_what_must_not_exceed_a_bound_says_so() -> None:
    goals = [Goal("w", "", 2.0, Figure(reached, 1.0, 3.0), at_most=True).row() for reached in (2.0, 2.1)]
    assert [(each["goal"], each["met"]) for each in goals] == [("at most 2.0", "yes"), ("at most 2.0", "no")]


def test_the_overhead_is_told_where_answers_tell_their_stages() -> None:
    stages = {"queue": 0.5, "tokenize": 0.5, "encode": 8.0, "retrieve": 2.0, "fetch": 0.0, "score": 0.0, "rerank": 0.0}
    answers = [Answer(0, 0.0, 0.0, 0.0125, 200, None, {**stages, "total": 12.0})]
    assert measured(answers)["overhead_ms"] == pytest.approx(2.5)


def test_a_report_replaces_the_one_before() -> None:
    once = replaced(PAGE.read_text(), "the newest of all")
    assert once.count("the newest of all") == 1
    assert replaced(once, "one newer than it") == once.replace("the newest of all", "one newer than it")


def _figure(median: float, low: float, high: float) -> dict[str, Any]:
    return {name: pytest.approx(value) for name, value in (("median", median), ("low", low), ("high", high))}
