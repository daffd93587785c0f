"""The largest that a model makes of a candidate. What Redis gives and is beyond it was not made by the model."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.inference.trials import CONVERSATIONS

# Words, sentences, a text beyond most models' lengths, and what is no chat.
_TEXTS = [turn for turns in CONVERSATIONS[::4] for turn in turns]
_TEXTS += ["hi", "?", "7", "A" * 40, "def f(x): return x[0]", "привет, как дела", "你好", "🙂", "hello there " * 200]
# Other texts may differ so many times as much as these do.
_TIMES = 4.0
# Numbers are rounded, to as few as eight bits.
_ROUNDING = 0.02


class Largest(NamedTuple):
    """What no candidate exceeds.

    Attributes:
        rows: how many it has for the second stage, where their numbers differ.
        vector: the length of its vector; infinite where none is known.
        row: the length of a row; infinite where none is known.
    """

    rows: int
    vector: float = math.inf
    row: float = math.inf


def largest_of(encode: Encode, rows: int) -> Largest:
    """Find bounds on lengths from what a model makes of some texts; `rows` is told.

    A model that scales vectors to unit length gets a bound just above 1. Others get room for texts that differ more.
    """
    made = encode(_TEXTS)
    return Largest(rows, _longest(made.first), math.inf if made.late is None else _longest(made.late))


def _longest(rows: NDArray[np.floating]) -> float:
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    shortest, longest = float(lengths.min()), float(lengths.max())
    return (longest + _TIMES * (longest - shortest)) * (1 + _ROUNDING)
