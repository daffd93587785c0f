"""Pools of several sizes, whose vectors are encoded once."""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.peers import inputs
from benchmarks.peers.models import CHAT_POLY, base_in
from benchmarks.vectors import taken_from
from numpy.typing import NDArray

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.representations import Representations

MOST = 100_000


class Pools:
    """Stores and files of the first rows of a pool, kept in a folder; `most` is how many rows there are.

    Args:
        folder: where they are kept for the next run.
        texts: texts of the candidates, all different; as many as the largest pool has.
        ranker: the model that encodes them. In which precision it does so does not matter for the speed of a search,
            so vectors that another back-end made are taken over.
    """

    def __init__(self, folder: Path, texts: Sequence[str], ranker: polyrank.VectorRanker) -> None:
        identity = hashlib.sha256("\n".join([ranker.fingerprint, *texts]).encode()).hexdigest()[:16]
        self._folder = folder / identity
        self.most = len(texts)
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
                vectors=taken_from(lambda first, end: Representations(vectors[first:end])),
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


def pools_of(options: argparse.Namespace) -> tuple[polyrank.VectorRanker, Pools]:
    """Return chat-poly with default settings and one thread, and the pools that it encodes; see `parser_of`."""
    base_in(options.cache / "models")  # which the peers read
    torch.set_num_threads(1)  # as servers have
    ranker = load_vector_ranker(CHAT_POLY, "auto", "auto")
    texts = list(dict.fromkeys(inputs.replies(options.pool)))[:MOST]
    return ranker, Pools(options.cache / "pools", texts, ranker)
