"""What several generations on this machine have stored of texts, read without their indexes and words."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.generation.generation import CANDIDATES_FILE
from polyrank.index_builder.generation.texts import KnownTexts, TextIndex
from polyrank.index_builder.vectors.local import LocalEmbeddings
from polyrank.model.representations import LateRows, Representations


class StoredTexts:
    """Looks texts up in the generations of some directories, the first of which counts; a `FindTexts`."""

    def __init__(self, paths: Sequence[Path], dim: int, dtype: str, late: LateRows | None) -> None:
        self._paths, self._dim, self._dtype, self._late = paths, dim, dtype, late

    @cached_property
    def _opened(self) -> list[tuple[TextIndex, LocalEmbeddings]]:
        return [
            (
                TextIndex(path, CandidateTable(path / CANDIDATES_FILE)),
                LocalEmbeddings(path, self._dim, self._dtype, self._late),
            )
            for path in self._paths
        ]

    def __call__(self, texts: Sequence[str]) -> KnownTexts:
        """Return which texts there are, and what was made of them."""
        open_, found, made = np.arange(len(texts)), [np.empty(0, np.int64)], []
        for index, embeddings in self._opened:
            rows = index.first_rows([texts[at] for at in open_.tolist()])
            if (rows >= 0).any():
                found.append(open_[rows >= 0])
                made.append(embeddings.representations(rows[rows >= 0]))
                open_ = open_[rows < 0]
        positions = np.concatenate(found)
        if not made:
            return KnownTexts(positions, Representations.none(self._dim, self._late))
        return KnownTexts(np.sort(positions), Representations.join(made).take(np.argsort(positions)))
