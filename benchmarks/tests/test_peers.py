"""Comparisons with other systems: figures, goals, and sides that take turns."""

import sys
from itertools import count, islice

import pytest
from benchmarks.load.drive import Running
from benchmarks.load.figures import Answer
from benchmarks.load.mix import SAMPLE
from benchmarks.peers import inputs
from benchmarks.peers.contest import Side, contest, sides
from benchmarks.peers.goals import of_calls, of_servers
from benchmarks.peers.rank import measured, requests
from benchmarks.peers.ratios import Figure, ratios, rows
from benchmarks.peers.report import PAGE, replaced
from benchmarks.peers.servers import Server

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
        side.about()


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


def test_goals_leave_out_what_is_not_to_be_beaten() -> None:
    told = {"work": "w", "threads": 2}
    took = {"polyrank": [1.0, 1.0], "torch": [2.9, 4.0], "openvino": [1.0, 1.4]}
    took |= {"polyrank, openvino-int8 auto": [0.4, 0.4], "onnx-int8": [0.5, 0.5]}
    default, fastest = (goal.row() for goal in of_calls(rows(took, 1, told)))
    assert default == {
        "work": "w, 2 threads", "against": "sentence-transformers, torch", "goal": "3.0",
        "ratio": "3.45 (2.9 to 4)", "met": "yes",
    }  # fmt: skip
    assert (fastest["against"], fastest["goal"], fastest["met"]) == ("its fastest, openvino", "1.1", "yes")


def test_goals_of_servers_are_those_of_the_pool_with_many_callers() -> None:
    times = {name: {"median": 1.9, "low": 1.0, "high": 3.0} for name in ("per_second_times", "p50_times", "p99_times")}
    ranked = [
        {"candidates": size, "callers": callers, "who": who, **times}
        for size, callers in ((31, 1), (31, 16), (31, 64), (10, 1), (31, 1))
        for who in ("FastAPI app", "infinity, torch", "infinity, optimum")
    ]
    found = [(goal.work, goal.against, goal.row()["met"]) for goal in of_servers(ranked)]
    assert found == [
        ("`/rank` over 31, 16 callers: requests a second", "infinity, torch", "no"),
        ("`/rank` over 31, 16 callers: requests a second", "infinity, optimum", "yes"),
        ("`/rank` over 31, 1 caller: p50", "FastAPI app", "no"),
        ("`/rank` over 31, 1 caller: p99", "FastAPI app", "no"),
    ]


def test_a_report_replaces_the_one_before() -> None:
    once = replaced(PAGE.read_text(), "the newest of all")
    assert once.count("the newest of all") == 1
    assert replaced(once, "one newer than it") == once.replace("the newest of all", "one newer than it")


def _figure(median: float, low: float, high: float) -> dict[str, float]:
    return {name: pytest.approx(value) for name, value in (("median", median), ("low", low), ("high", high))}
