"""What the less exact back-ends of sentence-transformers cost in accuracy: R@1 of zero-shot ranking beside its default.

    python -m benchmarks.peers.quality [--data F]

A back-end competes if its vectors are near to the default's, or if it ranks as well: R@1 over the first 3,000 lists of
`--data` falls by at most 0.3 points. A list is a reply and 19 others of the row's candidates. The last turns of a
context are one text, and one vector. Writes `quality.json`: R@1 in per cent, and the difference in points with its 95 %
interval (bootstrap over dialogues).
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np
from benchmarks.peers.compare import ENVIRONMENTS, VARIANTS, command_of, finish, parser_of
from benchmarks.peers.contest import Side, sides
from benchmarks.peers.environments import python_of
from benchmarks.peers.inputs import MOST_TURNS
from benchmarks.peers.models import base_in
from numpy.typing import NDArray

from polyrank.model.measures import group_numbers, intervals
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import Dialogue, read_dialogues

LISTS, LISTED = 3000, 20
AGAINST = "onnx-int8"
TEXTS = 2048  # a call
COLUMNS = ("who", "lists", "recall@1", "points", "low", "high")


def first_places(side: Side, rows: Sequence[tuple[str, list[str]]]) -> NDArray[np.float64]:
    """Rank each list, whose first text is the reply: 1 where it comes first, else 0, (lists,)."""
    texts = list(dict.fromkeys(text for context, listed in rows for text in (context, *listed)))
    parts = [texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS)]
    vectors = np.concatenate([np.asarray(side.results("candidates", [part])[0], np.float32) for part in parts])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    place = {text: at for at, text in enumerate(texts)}
    scores = [vectors[[place[text] for text in listed]] @ vectors[place[context]] for context, listed in rows]
    return np.array([float(own[0] >= own[1:].max()) for own in scores])


def listed(dialogue: Dialogue, rng: np.random.Generator) -> tuple[str, list[str]]:
    """Return a context as one text, and its list, the reply first."""
    others = [text for text in dialogue.candidates if text != dialogue.response]
    drawn = rng.choice(len(others), min(LISTED - 1, len(others)), replace=False)
    context = " ".join(turn.text for turn in dialogue.conversation.turns[-MOST_TURNS:])
    return context, [dialogue.response, *(others[at] for at in drawn)]


def main() -> int:
    options = parser_of(__doc__).parse_args()
    given = (each for each in identified(read_dialogues(options.data))[0] if each.candidates)
    dialogues = list(islice(given, LISTS))
    rng = np.random.default_rng(options.seed)
    rows = [listed(each, rng) for each in dialogues]
    groups = group_numbers([str(each.dialogue) for each in dialogues])
    firsts = {variant: _measured(variant, rows, options) for variant in (VARIANTS[0], AGAINST)}
    found = []
    for variant, places in firsts.items():
        change = 100 * (places - firsts[VARIANTS[0]])
        ends = intervals(change[:, None], groups)[:, 0].tolist()
        points, low, high = (round(each, 2) for each in (float(change.mean()), *ends))
        counted = {"lists": len(rows), "recall@1": round(100 * float(places.mean()), 2)}
        found.append({"who": variant, **counted, "points": points, "low": low, "high": high})
    return finish("quality", found, COLUMNS, options)


def _measured(variant: str, rows: Sequence[tuple[str, list[str]]], options: argparse.Namespace) -> NDArray[np.float64]:
    models = options.cache / "models"
    base_in(models)
    python = python_of(ENVIRONMENTS[variant.partition("-")[0]], options.cache)
    with ExitStack() as stack:
        commands = {variant: command_of(python, "st_worker", "encode", models, "--variant", variant)}
        (side,) = stack.enter_context(sides(commands, 1))
        return first_places(side, rows)


if __name__ == "__main__":
    sys.exit(main())
