"""What `polyrank evaluate` can measure: lists of candidates, a whole pool, or a collection with judgements."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import read_collection
from polyrank.model.evaluation.evaluate import Progress, evaluate
from polyrank.model.evaluation.intervals import group_numbers
from polyrank.model.evaluation.metrics import RECALL_AT, Values, first_relevant, judged_values, rank_values
from polyrank.model.evaluation.retrieval import DEPTH, rank_in, rerank, retrieve
from polyrank.model.inference.names import TORCH
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.load import load
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, read_dialogues
from polyrank.service.cli.models import load_cross, load_late
from polyrank.service.cli.output import UsageError
from polyrank.service.cli.pool import read_candidates


class Outcome(NamedTuple):
    """Figures of each example, and what `--output` says of each."""

    values: Values
    lines: list[dict[str, Any]]


class Task(Protocol):
    """Examples that any number of models can be measured on.

    Attributes:
        unit: what an example's group is: "dialogues" or "queries".
        groups: number of the group that each example is part of, (examples,).
        described: what the answer says of the task besides its figures.
    """

    unit: str
    groups: NDArray[np.int64]
    described: dict[str, Any]

    def prepare(self, name: str) -> Callable[[Progress], Outcome]:
        """Load a model; the call of what comes back measures it. Raises UsageError for a model of a wrong kind."""


@dataclass(frozen=True, slots=True)
class Search:
    """Retrieval, and the Cross-encoder that reads the first `top_n` again, where there is one.

    backend: what runs the models.
    """

    reranker: CrossRanker | None
    top_n: int
    backend: str

    @classmethod
    def load(cls, reranker: str | None, top_n: int, backend: str) -> "Search":
        """Load the reranker; raises UsageError where the model is none, or `top_n` is out of bounds."""
        if reranker is None:
            return cls(None, top_n, backend)
        if not 1 <= top_n <= DEPTH:
            raise UsageError(f"--top-n must be from 1 to {DEPTH}")
        return cls(load_cross("--reranker", reranker, backend), top_n, backend)

    @property
    def described(self) -> dict[str, Any]:
        """What the answer says of it."""
        return {} if self.reranker is None else {"reranker": self.reranker.name, "top_n": self.top_n}

    def find(
        self, ranker: LateRanker, contexts: Sequence[Conversation], texts: Sequence[str], progress: Progress
    ) -> list[TopK]:
        """Each context's best texts."""
        found, cut = retrieve(ranker, contexts, texts, progress)
        if cut:
            print(
                f"{ranker.name} reads {cut} of {len(texts)} texts without their end: they are too long", file=sys.stderr
            )
        if self.reranker is None:
            return found
        return rerank(self.reranker, contexts, texts, found, self.top_n, progress)


class Lists:
    """Each example's own candidates; for any model."""

    unit = "dialogues"

    def __init__(self, data: Path, limit: int | None, backend: str = TORCH) -> None:
        self._backend = backend
        dialogues = list(islice(read_dialogues(data), limit))
        self._examples = [(number, each) for number, each in enumerate(dialogues) if each.candidates]
        if not self._examples:
            raise InvalidInput("no example has `candidates`; there is nothing to rank")
        _tell_left_out(len(dialogues) - len(self._examples), len(dialogues), "have no candidates")
        self.groups = _dialogue_numbers([each for _, each in self._examples])
        self.described: dict[str, Any] = {}

    def prepare(self, name: str) -> Callable[[Progress], Outcome]:
        """Load any model."""
        ranker = load(name, backend=self._backend)
        return lambda progress: self._measure(ranker, progress)

    def _measure(self, ranker: LateRanker | CrossRanker, progress: Progress) -> Outcome:
        evaluation = evaluate(ranker, [each for _, each in self._examples], progress)
        ranked = zip(self._examples, evaluation.ranks.tolist(), evaluation.scores, strict=True)
        lines = [
            {"example": number, "rank": rank, "score": scores[each.label], "best": scores.argmax(), "scores": scores}
            for (number, each), rank, scores in ranked
        ]
        return Outcome(rank_values(evaluation.ranks), lines)


class Pool:
    """Gold replies to be found among all texts of a pool; each distinct text counts once.

    A reply that is not among the DEPTH retrieved counts 0 in every figure, `mrr` too.
    """

    unit = "dialogues"

    def __init__(self, data: Path, pools: Sequence[Path], search: Search, limit: int | None) -> None:
        self._ids, self._texts = _distinct_texts(pools)
        row_of = {text: row for row, text in enumerate(self._texts)}
        dialogues = list(islice(read_dialogues(data), limit))
        self._examples = [
            (n, each, row_of[each.response]) for n, each in enumerate(dialogues) if each.response in row_of
        ]
        if not self._examples:
            raise InvalidInput("no gold reply is a text of the pool; give a pool that the replies were taken from")
        _tell_left_out(len(dialogues) - len(self._examples), len(dialogues), "have a gold reply that the pool lacks")
        self._search = search
        self.groups = _dialogue_numbers([each for _, each, _ in self._examples])
        self.described = {**search.described, "candidates": len(self._texts)}

    def prepare(self, name: str) -> Callable[[Progress], Outcome]:
        """Load a Bi- or Poly-encoder."""
        ranker = _load_searcher(name, self._search.backend)
        return lambda progress: self._measure(ranker, progress)

    def _measure(self, ranker: LateRanker, progress: Progress) -> Outcome:
        contexts = [each.conversation for _, each, _ in self._examples]
        found = self._search.find(ranker, contexts, self._texts, progress)
        ranks = [rank_in(best, row) for best, (_, _, row) in zip(found, self._examples, strict=True)]
        lines = [
            {"example": number, **_place(rank, best), **_retrieved(self._ids, best)}
            for (number, _, _), rank, best in zip(self._examples, ranks, found, strict=True)
        ]
        return Outcome(rank_values(np.array(ranks, np.int64), (*RECALL_AT, DEPTH)), lines)


class Judged:
    """Queries with graded judgements over a whole corpus."""

    unit = "queries"

    def __init__(self, corpus: Path, queries: Path, qrels: Path, search: Search, limit: int | None) -> None:
        self._collection = collection = read_collection(corpus, queries, qrels, limit)
        if collection.unknown_queries:
            print(
                f"{collection.unknown_queries} judged queries are not in {queries} and were left out", file=sys.stderr
            )
        if collection.unknown_documents:
            missing = f"{collection.unknown_documents} judged documents are not in {corpus}"
            print(f"{missing}; they count as not found", file=sys.stderr)
        self._search = search
        self.groups = np.arange(len(collection.queries))
        self.described = {**search.described, "candidates": len(collection.documents)}

    def prepare(self, name: str) -> Callable[[Progress], Outcome]:
        """Load a Bi- or Poly-encoder."""
        ranker = _load_searcher(name, self._search.backend)
        return lambda progress: self._measure(ranker, progress)

    def _measure(self, ranker: LateRanker, progress: Progress) -> Outcome:
        collection = self._collection
        contexts = [Conversation.of(text) for text in collection.queries]
        found = self._search.find(ranker, contexts, collection.documents, progress)
        gains = [collection.gains_of(query, best.rows.tolist()) for query, best in enumerate(found)]
        values = judged_values(gains, [collection.judged_gains(query) for query in range(len(found))])
        lines = [
            {
                "query": name,
                **{figure: values[figure][query] for figure in values},
                **_place(first_relevant(gains[query]), found[query]),
                **_retrieved(collection.document_ids, found[query]),
            }
            for query, name in enumerate(collection.query_ids)
        ]
        return Outcome(values, lines)


def _load_searcher(name: str, backend: str) -> LateRanker:
    return load_late(name, ", and this one as --reranker", backend)


def _distinct_texts(pools: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Each text of a pool once, and the id of its first row; raises InvalidInput where there is none."""
    id_of: dict[str, str] = {}
    for candidate in read_candidates(pools):
        id_of.setdefault(candidate.text, candidate.id)
    if not id_of:
        raise InvalidInput(f"{', '.join(map(str, pools))}: there is no text to search")
    return list(id_of.values()), list(id_of)


def _place(rank: int, found: TopK) -> dict[str, Any]:
    """Rank and score of the right text; null where it was not retrieved."""
    return {"rank": rank, "score": found.scores[rank - 1]} if rank else {"rank": None, "score": None}


def _retrieved(ids: Sequence[str], found: TopK) -> dict[str, Any]:
    names = [ids[row] for row in found.rows]
    return {"best": names[0], "retrieved": names, "scores": found.scores}


def _dialogue_numbers(examples: Sequence[Dialogue]) -> NDArray[np.int64]:
    groups = group_numbers(each.dialogue for each in examples)
    if not groups.any():
        print("all examples are of one dialogue, so the intervals have no width and say nothing", file=sys.stderr)
    return groups


def _tell_left_out(count: int, total: int, why: str) -> None:
    if count:
        print(f"{count} of {total} examples {why} and were left out", file=sys.stderr)
