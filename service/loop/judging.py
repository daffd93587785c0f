"""The gate: figures of the new model and of the live one over the same examples, and how fast both read contexts."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.measures import Values, group_numbers, rank_values
from polyrank.model.rankers.networks import Retriever
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import DRAWN, ReplyDraw, identified, turns_key
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid, read_dialogues
from polyrank.model.text.jsonlines import read_objects
from polyrank.service.loop.statistics import compared, judged

SLOWEST: Final = 1.15  # times as long as the live model may the new one take to read contexts
_TIMED_CONTEXTS, _ROUNDS, _TRIES = 64, 15, 6
_GROUP = "group"  # a field of a line that names its slice


@dataclass(frozen=True, slots=True)
class Examples:
    """A set to judge by."""

    listed: Sequence[Dialogue]  # with candidates, drawn from the file's replies if no example lists any
    groups: NDArray[np.int64]  # number of each one's conversation, (examples,)
    slices: Sequence[str]  # name of each one's slice: its `group`, or how long its context is if no line has a group

    @classmethod
    def read(cls, path: Path) -> "Examples | None":
        """Read a file of dialogues; None: it has no example that can be ranked. Raises InvalidInput."""
        every, _ = identified(read_dialogues(path))
        if any(each.category for each in every):
            raise InvalidInput(f"{path}: its labels are classes; the gate compares rankings of replies")
        if not any(each.candidates for each in every):
            draw = ReplyDraw(every, DRAWN, seed=0)
            every = [draw.candidates(number, each) for number, each in enumerate(every)]
        rows = (row for _, row in read_objects(path, DialoguesInvalid))
        labels = [None if isinstance(row, InvalidInput) else row.get(_GROUP) for row in rows]
        if any(each is not None for each in labels):
            names = [f"there is no {_GROUP}" if each is None else f"{_GROUP} is {each}" for each in labels]
        else:
            names = [f"the context has {_length(each.conversation)}" for each in every]
        pairs = [(each, group) for each, group in zip(every, names, strict=True) if each.candidates]
        if not pairs:
            return None
        listed, slices = zip(*pairs, strict=True)
        return cls(listed, group_numbers(each.dialogue for each in listed), slices)


def golden_sets(paths: Sequence[Path]) -> dict[str, Examples]:
    """Read golden sets, by their paths; raises InvalidInput where one cannot judge anything."""
    sets: dict[str, Examples] = {}
    for path in paths:
        if (examples := Examples.read(path)) is None:
            raise InvalidInput(f"{path}: no example has a reply and candidates, so this golden set judges nothing")
        sets[str(path)] = examples
    return sets


def _length(conversation: Conversation) -> str:
    turns = len(conversation.turns)
    return "one turn" if turns == 1 else "two to four turns" if turns <= 4 else "five turns or more"


def judge(new: Retriever, live: Retriever, sets: dict[str, Examples], trained_on: Path) -> dict[str, Any]:
    """Compare a new model with the live one; returns `verdict`, `why`, and the figures of all `sets`."""
    if not sets:
        why = "there is no golden set, and nobody has written or edited a reply lately"
        return {"verdict": "not enough evidence", "why": why, "sets": {}}
    if (leak := _leak(sets, trained_on)) is not None:
        return {"verdict": "refused", "why": leak, "sets": {}}
    try:
        comparisons = {
            name: compared(_values(new, each), _values(live, each), each.groups, each.slices, len(sets))
            for name, each in sets.items()
        }
    except ModelError as error:
        return {"verdict": "refused", "why": str(error), "sets": {}}
    verdict, why = judged(comparisons)
    if verdict == "passed" and (slower := slowdown(new, live, sets)) > SLOWEST:
        verdict, why = "refused", f"reading contexts takes {slower:.2f} times as long as the live model does"
    if verdict == "passed" and live.calibration is not None and new.calibration is None:
        # Requests with `answer_if` would be refused after a switch.
        verdict, why = "refused", "its scores are not calibrated, and the live model's are; more examples may do"
    return {"verdict": verdict, "why": why, "sets": {name: asdict(each) for name, each in comparisons.items()}}


def _leak(sets: dict[str, Examples], trained_on: Path) -> str | None:
    """Say which set has contexts that were trained on; None: none has. A persona tells no context from another."""
    trained_keys = {turns_key(each.conversation) for each in read_dialogues(trained_on)}
    for name, examples in sets.items():
        if leaked := sum(turns_key(each.conversation) in trained_keys for each in examples.listed):
            return f"{leaked} of {len(examples.listed)} contexts of {name} were trained on, so it judges nothing"
    return None


def _values(ranker: Retriever, examples: Examples) -> Values:
    return rank_values(rank_lists(ranker, examples.listed, lambda *_: None).ties)


def slowdown(new: Retriever, live: Retriever, sets: dict[str, Examples]) -> float:
    """Return how many times as long the new model takes to read the same contexts.

    Both are timed in turns, by the time of processors, and the fastest counts: other programs change little then. Where
    the new one seems too slow, both are timed again and again: it may have had bad luck.
    """
    contexts = [each.conversation for examples in sets.values() for each in examples.listed][:_TIMED_CONTEXTS]
    fastest = np.array([inf, inf])
    for _ in range(_TRIES):
        for _ in range(_ROUNDS):
            fastest = np.minimum(fastest, [_seconds(new, contexts), _seconds(live, contexts)])
        if fastest[0] <= SLOWEST * fastest[1]:
            break
    return float(fastest[0] / fastest[1])


def _seconds(ranker: Retriever, contexts: Sequence[Conversation]) -> float:
    began = time.process_time()
    ranker.represent_contexts([ranker.tokenize_context(conversation)[0] for conversation in contexts])
    return time.process_time() - began
