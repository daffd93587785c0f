"""What `polyrank evaluate` can measure: lists of candidates, a whole pool, or a collection with judgements."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import read_collection
from polyrank.model.evaluation.encoding import ReportProgress
from polyrank.model.evaluation.intervals import group_numbers
from polyrank.model.evaluation.lists import rank_lists
from polyrank.model.evaluation.metrics import DEPTH, RECALL_AT, Values, first_relevant, judged_values, rank_values
from polyrank.model.evaluation.retrieval import rank_in, rerank, retrieve
from polyrank.model.inference.names import Runner
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Ranker as AnyRanker
from polyrank.model.rankers.networks import Retriever
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.service.cli.evaluation.examples import AS_LISTED, Draw, listed_examples, read_identified, report_left_out
from polyrank.service.cli.files import read_candidates
from polyrank.service.cli.models import REFERENCE, RERANKER_HINT, load_any, load_cross, load_retriever, words_left_out

Ranker = TypeVar("Ranker")


class TaskResult(NamedTuple):
    """The figures of each example, what `--output` writes about each, and what the model put first in each."""

    values: Values
    lines: list[dict[str, Any]]
    first: list[str]


class Example(NamedTuple):
    """What a reader needs of an example: what was asked, as texts with what each is, and the right answer."""

    asked: Sequence[tuple[str, str]]
    right: str


def conversation_texts(conversation: Conversation) -> list[tuple[str, str]]:
    """Return the texts of a conversation and what each is: facts about the replying side, then the turns."""
    facts = [("fact", fact) for fact in conversation.persona]
    return [*facts, *((turn.role or "turn", turn.text) for turn in conversation.turns)]


class Task(Protocol[Ranker]):
    """Examples that any number of models can be measured on.

    Each example is part of a group, whose number is in `groups` (examples,); `unit` is "dialogues" or "queries".
    `described` is what the answer says about the task besides its figures.
    """

    unit: str
    groups: NDArray[np.int64]
    described: dict[str, Any]

    def load(self, name: str) -> Ranker:
        """Load a model; raises UsageError if the task cannot use its architecture."""

    def measure(self, ranker: Ranker, report: ReportProgress) -> TaskResult:
        """Measure a model."""

    def example(self, place: int) -> Example:
        """Return the example at that place, to be read."""


class ListsTask:
    """Ranks each example's own candidates, or those that are drawn for it; for any model."""

    unit = "dialogues"

    def __init__(self, data: Path, limit: int | None, runner: Runner = REFERENCE, draw: Draw = AS_LISTED) -> None:
        self._runner = runner
        self._examples, self.described, assumed = listed_examples(data, limit, draw)
        self.groups = dialogue_numbers([dialogue for _, dialogue in self._examples], assumed)

    def load(self, name: str) -> AnyRanker:
        """Load any model."""
        return load_any(name, self._runner)

    def measure(self, ranker: AnyRanker, report: ReportProgress) -> TaskResult:
        """Measure how often the gold reply comes first, and the like."""
        ranked = rank_lists(ranker, [dialogue for _, dialogue in self._examples], report)
        lines = [
            {"example": number, "rank": rank, "score": own[dialogue.label], "best": own.argmax(), "scores": own}
            for (number, dialogue), rank, own in zip(self._examples, ranked.ranks.tolist(), ranked.scores, strict=True)
        ]
        first = [dialogue.candidates[line["best"]] for (_, dialogue), line in zip(self._examples, lines, strict=True)]
        return TaskResult(rank_values(ranked.ranks), lines, first)

    def example(self, place: int) -> Example:
        """Return a conversation and its gold reply."""
        _, dialogue = self._examples[place]
        return Example(conversation_texts(dialogue.conversation), dialogue.response)


@dataclass(frozen=True, slots=True)
class TwoStageSearch:
    """Retrieval by a model that searches; the reranker, if any, reads the first `top_n` texts of each context."""

    reranker: CrossRanker | None
    top_n: int
    runner: Runner

    @classmethod
    def load(cls, reranker: str | None, top_n: int, runner: Runner) -> "TwoStageSearch":
        """Load the reranker; raises UsageError if the model is no Cross-encoder."""
        if reranker is None:
            return cls(None, top_n, runner)
        return cls(load_cross("--reranker", reranker, runner), top_n, runner)

    def load_retriever(self, name: str) -> Retriever:
        """Load the model of the first stage; raises UsageError for a Cross-encoder."""
        return load_retriever(name, RERANKER_HINT, self.runner)

    def find(
        self, ranker: Retriever, contexts: Sequence[Conversation], texts: Sequence[str], report: ReportProgress
    ) -> list[TopK]:
        """Find the best texts for each context."""
        found, cut = retrieve(ranker, contexts, texts, report)
        if cut:
            print(
                f"{ranker.name} reads {cut} of {len(texts)} texts without their end: they are too long", file=sys.stderr
            )
        if self.reranker is None:
            return found
        counts_words = ranker.evidence is not None
        if self.reranker.evidence is not None and not counts_words:
            print(f"{self.reranker.name} {words_left_out(ranker.name)}", file=sys.stderr)
        return rerank(self.reranker, contexts, texts, found, self.top_n, report, counts_words)

    def described(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return what the answer says about a search over these texts."""
        stages = {} if self.reranker is None else {"reranker": self.reranker.name, "top_n": self.top_n}
        return {**stages, "candidates": len(texts)}


class PoolTask:
    """Finds each gold reply among all texts of a pool, where every distinct text counts once.

    A reply that is not among the DEPTH texts retrieved counts 0 in every figure, `mrr` too.
    """

    unit = "dialogues"

    def __init__(
        self, data: Path, pools: Sequence[Path], search: TwoStageSearch, limit: int | None, encoding: str | None = None
    ) -> None:
        self._search = search
        self._ids, self._texts = _distinct_texts(pools, encoding)
        row_of = {text: row for row, text in enumerate(self._texts)}
        dialogues, assumed = read_identified(data, limit)
        self._examples = [
            (number, dialogue, row_of[dialogue.response])
            for number, dialogue in enumerate(dialogues)
            if dialogue.response in row_of
        ]
        if not self._examples:
            raise InvalidInput("no gold reply is a text of the pool; give a pool that the replies were taken from")
        left_out = len(dialogues) - len(self._examples)
        report_left_out(left_out, len(dialogues), "have a gold reply that the pool lacks")
        self.groups = dialogue_numbers([dialogue for _, dialogue, _ in self._examples], assumed)
        self.described = search.described(self._texts)

    def load(self, name: str) -> Retriever:
        """Load a model that can search a pool."""
        return self._search.load_retriever(name)

    def measure(self, ranker: Retriever, report: ReportProgress) -> TaskResult:
        """Measure how often the gold reply is found first, and the like."""
        contexts = [dialogue.conversation for _, dialogue, _ in self._examples]
        found = self._search.find(ranker, contexts, self._texts, report)
        ranks = [rank_in(best, row) for best, (_, _, row) in zip(found, self._examples, strict=True)]
        lines = [
            {"example": number, **_place(rank, best), **_retrieved(self._ids, best)}
            for (number, _, _), rank, best in zip(self._examples, ranks, found, strict=True)
        ]
        first = [self._texts[best.rows[0]] for best in found]
        return TaskResult(rank_values(np.array(ranks, np.int64), (*RECALL_AT, DEPTH)), lines, first)

    def example(self, place: int) -> Example:
        """Return a conversation and its gold reply."""
        _, dialogue, _ = self._examples[place]
        return Example(conversation_texts(dialogue.conversation), dialogue.response)


class CollectionTask:
    """Finds the relevant documents of queries with graded judgements in a whole corpus."""

    unit = "queries"

    def __init__(self, corpus: Path, queries: Path, qrels: Path, search: TwoStageSearch, limit: int | None) -> None:
        self._search = search
        self._collection = collection = read_collection(corpus, queries, qrels, limit)
        if missing := collection.unknown_queries:
            print(f"{missing} judged queries are not in {queries} and were left out", file=sys.stderr)
        if missing := collection.unknown_documents:
            print(f"{missing} judged documents are not in {corpus}; they count as not found", file=sys.stderr)
        self.groups = np.arange(len(collection.queries))
        self.described = search.described(collection.documents)

    def load(self, name: str) -> Retriever:
        """Load a model that can search a pool."""
        return self._search.load_retriever(name)

    def measure(self, ranker: Retriever, report: ReportProgress) -> TaskResult:
        """Measure nDCG and the like."""
        collection = self._collection
        contexts = [Conversation.of(text) for text in collection.queries]
        found = self._search.find(ranker, contexts, collection.documents, report)
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
        return TaskResult(values, lines, [collection.documents[best.rows[0]] for best in found])

    def example(self, place: int) -> Example:
        """Return a query and the document that is judged best."""
        return Example([("query", self._collection.queries[place])], self._collection.best_document(place))


def _distinct_texts(pools: Sequence[Path], encoding: str | None) -> tuple[list[str], list[str]]:
    """Read each text of a pool once; returns the id of its first row, and the text. Raises InvalidInput for no text."""
    id_of: dict[str, str] = {}
    for candidate in read_candidates(pools, encoding):
        id_of.setdefault(candidate.text, candidate.id)
    if not id_of:
        raise InvalidInput(f"{', '.join(map(str, pools))}: there is no text to search")
    return list(id_of.values()), list(id_of)


def _place(rank: int, found: TopK) -> dict[str, Any]:
    """Return rank and score of the right text; null if it was not retrieved."""
    return {"rank": rank, "score": found.scores[rank - 1]} if rank else {"rank": None, "score": None}


def _retrieved(ids: Sequence[str], found: TopK) -> dict[str, Any]:
    names = [ids[row] for row in found.rows]
    return {"best": names[0], "retrieved": names, "scores": found.scores}


def dialogue_numbers(examples: Sequence[Dialogue], assumed: str | None) -> NDArray[np.int64]:
    """Number the dialogues that examples are of, (examples,); says what was assumed, and warns where it is only one."""
    if assumed:
        print(assumed, file=sys.stderr)
    groups = group_numbers(example.dialogue for example in examples)
    if not groups.any():
        print("all examples are of one dialogue, so the intervals have no width and say nothing", file=sys.stderr)
    return groups
