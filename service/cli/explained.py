"""Explanations of scores for a terminal: signed numbers beside words, in colour where that is wanted."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

MOST_EXPLAINED = 10
_MOST_WORDS = 12  # of a reply; the others are added up
_FOR, _AGAINST, _PLAIN = "\033[34m", "\033[33m", "\033[0m"


def to_explain(turns: Sequence[str], answer: dict[str, Any], crossed: bool) -> dict[str, Any]:
    """Return the body of `POST /explain` for the first replies of a ranking."""
    candidates = [{"id": result["id"]} for result in answer["results"][:MOST_EXPLAINED]]
    return {"context": [*turns], "candidates": candidates, "codes": 0, "cross": "turns" if crossed else None}


def print_explained(answer: dict[str, Any]) -> None:
    """Print a ranking's first replies, and beneath each what speaks for it and against it."""
    explanation = answer.get("explanation")
    if explanation is None:
        print("there is nothing to explain")
        return
    for left_out in explanation["unexplained"]:
        print(f"not explained: {left_out['part'].replace('_', ' ')} ({left_out['why']})")
    tokens = explanation["context"]["tokens"]
    by_id = {each["id"]: each for each in explanation["candidates"]}
    alone = len(by_id) == 1
    for result in answer["results"]:
        print(f"{result['rank']:3}  {result['score']:8.3f}  {result['text']}")
        if (candidate := by_id.get(result["id"])) is not None:
            for title, numbers in _lines(tokens, candidate, alone):
                print(f"               {title:<9} {numbers}")


def _lines(tokens: Sequence[dict[str, Any]], candidate: dict[str, Any], alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the lines beneath a reply: what they are about, and the numbers."""
    told = candidate["tokens"] if alone else candidate["relative"]
    if told is not None:
        yield "score" if alone else "relative", _strip(_summed(tokens, told))
    if candidate["effective_codes"] is not None and candidate["effective_codes"] > 1:
        yield "codes", f"{candidate['effective_codes']:.0f} took part"
    if candidate["words"] is not None and candidate["words"]["terms"]:
        terms = [(each["word"] or each["feature"], each["value"]) for each in candidate["words"]["terms"]]
        yield "words", _strip(terms)
    if candidate["cross"] is not None:
        drops = [(_unit(unit), unit["drop"]) for unit in candidate["cross"]["units"]]
        yield "reranker", _strip(drops)


def _unit(unit: dict[str, Any]) -> str:
    if unit["turn"] is None:
        return f"fact {unit['persona'] + 1}"
    return f"turn {unit['turn'] + 1}"


def _summed(tokens: Sequence[dict[str, Any]], numbers: Sequence[float]) -> list[tuple[str, float]]:
    """Add up the numbers of each word, in the order of the context; special tokens go under their names."""
    words: dict[object, tuple[str, float]] = {}
    for token, number in zip(tokens, numbers, strict=True):
        key = token["text"] if token["word"] is None else token["word"]
        text, value = words.get(key, ("", 0.0))
        words[key] = (text if token["word"] is None and text else text + token["text"], value + number)
    return [*words.values()]


def _strip(parts: Sequence[tuple[str, float]]) -> str:
    """Write parts with their numbers, the largest ones in their order, and the sum of the others."""
    largest = sorted(range(len(parts)), key=lambda at: -abs(parts[at][1]))[:_MOST_WORDS]
    shown = [f"{parts[at][0]} {_signed(parts[at][1])}" for at in sorted(largest)]
    others = [value for at, (_, value) in enumerate(parts) if at not in largest]
    return "  ".join([*shown, *([f"{len(others)} others {_signed(sum(others))}"] if others else [])])


def _signed(number: float) -> str:
    text = f"{number:+.2f}"
    if not (sys.stdout.isatty() and "NO_COLOR" not in os.environ):
        return text
    return f"{_FOR if number > 0 else _AGAINST}{text}{_PLAIN}"
