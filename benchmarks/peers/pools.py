"""Pools of several sizes, whose vectors are encoded once."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import polyrank
from polyrank.index_builder.build.pipeline import BuildOptions, build
from polyrank.index_builder.pool.rows import Candidate


class Pools:
    """Stores and files of the first rows of a pool, kept in a folder.

    Args:
        folder: where they are kept for the next run.
        texts: texts of the candidates, all different.
        ranker: the model that encodes them.
    """

    def __init__(self, folder: Path, texts: Sequence[str], ranker: polyrank.LateRanker) -> None:
        made_of = [ranker.fingerprint, ranker.backend, ranker.precision, *texts]
        self._folder = folder / hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
        self._texts = texts
        self._ranker = ranker

    def store(self, size: int) -> Path:
        """Return a store without an index, so that the service scans it."""
        store = self._folder / f"store-{size}"
        if not (store / "CURRENT").is_file():
            rows = [Candidate(id=str(row), text=text) for row, text in enumerate(self._texts[:size])]
            vectors = self._vectors()
            build(
                self._ranker, rows, store, BuildOptions(index="exact"),
                vectors=lambda start, ids, _texts, _done: (vectors[start : start + len(ids)], 0),
            )  # fmt: skip
        return store

    def files(self, size: int) -> tuple[Path, Path]:
        """Return a file of texts as JSON, and one of their vectors (N, D)."""
        texts, vectors = self._folder / f"texts-{size}.json", self._folder / f"vectors-{size}.npy"
        if not (texts.is_file() and vectors.is_file()):
            self._folder.mkdir(parents=True, exist_ok=True)
            texts.write_text(json.dumps(self._texts[:size]))
            np.save(vectors, self._vectors()[:size])
        return texts, vectors

    def _vectors(self) -> NDArray[np.float32]:
        kept = self._folder / "vectors.npy"
        if not kept.is_file():
            self._folder.mkdir(parents=True, exist_ok=True)
            np.save(kept, self._ranker.encode_candidates(self._ranker.tokenize_candidates(self._texts)[0]))
        vectors: NDArray[np.float32] = np.load(kept)
        return vectors
