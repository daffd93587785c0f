"""The third stage of a build: the index over the matrix. Time what it is chosen by, build it and measure it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.recall import EXACT, Recall, measured
from polyrank.index_builder.store.candidates import CandidateTable
from polyrank.index_builder.store.generation import CANDIDATES_FILE, INDEX_FILE
from polyrank.index_builder.vectors.encoder import ContextEncoder, Model
from polyrank.model.text.assembly import Conversation

# How many contexts "auto" times searches with, and how many candidates make one where no real ones are given.
_CONTEXTS = 12
_TURNS = 4

Codes = NDArray[np.float32]


def search_times(directory: Path, model: Model, matrix: NDArray[Any], probes: Sequence[Codes]) -> SearchTimes:
    """Time searches of the matrix (N, D) in the build's directory; `probes` are vectors (M, D) of contexts, if any."""
    from polyrank.index_builder.index import timing  # imports torch, which a build that measures nothing does without

    return timing.time_searches(matrix, _some(probes) or _made_of_candidates(directory, model, matrix))


def make_index(
    directory: Path,
    matrix: NDArray[Any],
    spec: IndexSpec,
    probes: Sequence[Codes],
    min_recall: float,
    clock: StageClock,
) -> tuple[IndexSpec, Recall]:
    """Build and save the index, unless a scan is the index, and measure its recall."""
    clock("index", 0, 1)
    if spec.factory is None:
        return spec, EXACT
    index = CandidateIndex.build(spec, matrix)
    index.save(directory / INDEX_FILE)
    clock("recall", 0, 1)
    index, recall = measured(index, matrix, probes, min_recall)
    return index.spec, recall


def _some(probes: Sequence[Codes]) -> Sequence[Codes]:
    """Some of the probes, evenly spread."""
    return probes[:: max(1, len(probes) // _CONTEXTS)][:_CONTEXTS]


def _made_of_candidates(directory: Path, model: Model, matrix: NDArray[Any]) -> list[Codes]:
    """Contexts of candidates that follow each other in the pool, for they cost a search what real ones do.

    A model that encodes no contexts is taken for a Bi-encoder: a candidate's vector stands for a context.
    """
    starts = np.linspace(0, len(matrix) - _TURNS, _CONTEXTS).astype(np.int64).tolist()
    if not isinstance(model, ContextEncoder):
        return [np.asarray(matrix[[start]], np.float32) for start in starts]
    table = CandidateTable(directory / CANDIDATES_FILE)
    turns = [[each.text for each in table.rows(range(start, start + _TURNS))] for start in starts]
    return model.encode_contexts([model.tokenize_context(Conversation.of(texts))[0] for texts in turns])
