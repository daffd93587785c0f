"""Explanations in a terminal: words in order, signed numbers, sums that stay whole, colour only where it is seen."""

import re
import sys
from typing import Any

import pytest
from command_line import Terminal

from polyrank.service.cli.commands.rank import print_explained, to_explain

TOKENS = [
    {"text": "[CLS]", "word": None}, {"text": "par", "word": 0}, {"text": "cel", "word": 0},
    {"text": "[SEP]", "word": None}, {"text": "late", "word": 1}, {"text": "[SEP]", "word": None},
]  # fmt: skip


def answer(**fields: Any) -> dict[str, Any]:
    candidate = {
        "tokens": [1.0, 0.5, 0.25, 0.125, -2.0, 0.25],
        "relative": [0.0, 1.0, 0.5, -0.25, -0.5, 0.0],
        "effective_codes": 26.3,
        "words": {
            "terms": [
                {"feature": "before", "word": "parcel", "value": 0.4},
                {"feature": "length", "word": None, "value": -0.2},
            ]
        },
        "cross": {"units": [{"turn": 0, "persona": None, "drop": 0.75}, {"turn": None, "persona": 1, "drop": -0.5}]},
        **fields,
    }
    results = [
        {"rank": 1, "id": "a", "text": "Let me look.", "score": 2.5},
        {"rank": 2, "id": "b", "text": "No.", "score": 1},
    ]
    explanation = {
        "unexplained": [],
        "context": {"tokens": TOKENS},
        "candidates": [{"id": "a", **candidate}, {"id": "b", **candidate}],
    }
    return {"results": results, "explanation": explanation}


def test_pieces_are_added_up_to_words_in_the_order_of_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    print_explained(answer())
    assert capsys.readouterr().out.splitlines()[:5] == [
        "  1     2.500  Let me look.",
        "               relative  [CLS] +0.00  parcel +1.50  [SEP] -0.25  late -0.50",
        "               codes     26 took part",
        "               words     parcel +0.40  length -0.20",
        "               reranker  turn 1 +0.75  fact 2 -0.50",
    ]


def test_many_words_leave_a_sum(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.service.cli.commands.rank._MOST_WORDS", 2)
    print_explained(answer())
    assert capsys.readouterr().out.splitlines()[1].split(maxsplit=1)[1] == "parcel +1.50  late -0.50  2 others -0.25"


def test_what_is_not_told_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(tokens=None, relative=None, effective_codes=None, words=None, cross=None)
    told["explanation"]["unexplained"] = [{"part": "second_stage", "why": "layers lie between"}]
    print_explained(told)
    assert capsys.readouterr().out.splitlines() == [
        "not explained: second stage (layers lie between)", "  1     2.500  Let me look.", "  2     1.000  No.",
    ]  # fmt: skip
    print_explained({"results": []})
    assert capsys.readouterr().out == "there is nothing to explain\n"


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_is_for_a_terminal(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    print_explained(answer())
    written = sys.stdout.getvalue()
    assert ("\033[34m+1.50\033[0m" in written) == (not no_color)
    assert ("\033[33m-0.50\033[0m" in written) == (not no_color)
    assert "+1.50" in re.sub("\033.*?m", "", written)


def test_ten_are_explained_and_the_reranker_is_asked_for_turns() -> None:
    ranking = {"results": [{"id": f"c{n}"} for n in range(12)], "generation": "g"}
    asked = to_explain(["a"], ranking, crossed=True)
    assert (len(asked["candidates"]), asked["cross"], asked["generation"]) == (10, "turns", "g")
    assert to_explain(["a"], ranking, crossed=False)["cross"] is None
