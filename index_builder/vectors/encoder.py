"""What the index builder asks of a model, which `VectorRanker` and `LexicalRanker` have."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyrank.model.representations import LateRows, Representations

if TYPE_CHECKING:
    from polyrank.model.text.assembly import Conversation, Truncation

# Candidate texts to what the model makes of them.
Encode = Callable[[list[str]], Representations]


@runtime_checkable
class TextEncoder(Protocol):
    """The candidates' side of a model."""

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each text, and how many texts were cut to the model's length."""

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        """Return what is stored of them; call `on_done` after each batch with the number of candidates in it."""


@runtime_checkable
class ContextEncoder(Protocol):
    """The contexts' side of a model."""

    def tokenize_context(self, conversation: "Conversation") -> tuple[list[int], "Truncation"]:
        """Return the token ids of a context, and what did not fit."""

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Return the vectors (M, D) of each context, with the score scale multiplied in."""


class Model(Protocol):
    """What a generation keeps of the model that made its vectors."""

    name: str
    architecture: str
    fingerprint: str  # identifies everything that its vectors depend on; 64 hexadecimal digits
    dim: int
    backend: str  # what runs its forward passes, as the precision (polyrank.model.inference.runners.Runner)
    precision: str
    late_rows: LateRows | None  # what it keeps of each candidate for a second stage; None: it has none

    @property
    def rounding(self) -> str:
        """What rounds its numbers: the precision, and of int8 which calibration."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint from which the same model is loaded."""


class CandidateEncoder(Model, TextEncoder, Protocol):
    """A model that can make the vectors of its generation."""


def encode_texts(encoder: TextEncoder, texts: Sequence[str]) -> Representations:
    """Return what a model makes of texts."""
    tokens, _ = encoder.tokenize_candidates(texts)
    return encoder.represent_candidates(tokens)
