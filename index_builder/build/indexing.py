"""The third stage of a build: the index over the matrix. Time what it is chosen by, build it and measure it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.generation.generation import CANDIDATES_FILE, INDEX_FILE
from polyrank.index_builder.generation.words import evidence_of, open_words
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.recall import EXACT, VECTORS_AND_WORDS, Probe, Recall, measured
from polyrank.index_builder.vectors.encoder import ContextEncoder, Model
from polyrank.model.text.assembly import Conversation

# How many contexts "auto" times searches with, and how many candidates make one where no real ones are given.
_CONTEXTS = 12
_TURNS = 4

Codes = NDArray[np.float32]


class EncodedContext(NamedTuple):
    """A real context.

    Attributes:
        conversation: what its words are read from.
        codes: its vectors (M, D), with the score scale multiplied in.
    """

    conversation: Conversation
    codes: Codes


def search_times(
    directory: Path, model: Model, matrix: NDArray[Any], contexts: Sequence[EncodedContext]
) -> SearchTimes:
    """Time searches of the matrix (N, D) in the build's directory, with real contexts if there are any."""
    from polyrank.index_builder.index import timing  # imports torch, which a build that measures nothing does without

    codes = [context.codes for context in _some(contexts)]
    return timing.time_searches(matrix, codes or _made_of_candidates(directory, model, matrix))


def make_index(
    directory: Path,
    model: Path,
    matrix: NDArray[Any],
    spec: IndexSpec,
    contexts: Sequence[EncodedContext],
    min_recall: float,
    clock: StageClock,
) -> tuple[IndexSpec, Recall]:
    """Build and save the index of a part in its directory, unless a scan is the index, and measure its recall.

    If there are real contexts, and words count for the model in the directory `model`, it is the recall of both.
    """
    clock("index", 0, 1)
    evidence = evidence_of(model)
    if spec.factory is None:
        return spec, EXACT if evidence is None else replace(EXACT, of=VECTORS_AND_WORDS)
    index = CandidateIndex.build(spec, matrix)
    index.save(directory / INDEX_FILE)
    clock("recall", 0, 1)
    if evidence is None:
        probes = [Probe(codes) for _, codes in contexts]
    else:
        table = open_words(directory, evidence, len(matrix)).table
        probes = [Probe(codes, partial(evidence.additions, conversation, table)) for conversation, codes in contexts]
    index, recall = measured(index, matrix, probes, min_recall)
    return index.spec, recall


def _some(contexts: Sequence[EncodedContext]) -> Sequence[EncodedContext]:
    """Some of the contexts, evenly spread."""
    return contexts[:: max(1, len(contexts) // _CONTEXTS)][:_CONTEXTS]


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
