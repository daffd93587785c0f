"""What `polyrank evaluate` can measure: lists of candidates, a whole pool, or a collection with judgements."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import CollectionInvalid, read_collection
from polyrank.model.evaluation.rankings import ReportProgress, Retrieved, rank_lists, rerank, retrieve
from polyrank.model.inference.runners import Runner
from polyrank.model.measures import DEPTH, RECALL_AT, Ties, Values, group_numbers, judged_values, rank_values
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load, load_classifier, load_retriever
from polyrank.model.rankers.networks import CrossRanker, Retriever
from polyrank.model.rankers.networks import Ranker as AnyRanker
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import drawn_order, folded_line
from polyrank.service.cli.arguments import REFERENCE, RERANKER_HINT, loaded, read_candidates, words_left_out
from polyrank.service.cli.examples import (
    AS_LISTED,
    Draw,
    classed_examples,
    listed_examples,
    read_identified,
    report_left_out,
    require_no_classes,
)

Ranker = TypeVar("Ranker")

_AT_ONCE = 64


class TaskResult(NamedTuple):
    """What was measured."""

    values: Values
    lines: list[dict[str, Any]]  # what `--output` writes about each
    first: list[str]  # what the model put first in each; of what ties there, one
    tied_first: float  # the share of examples where several tie for the first place


def tied_first(ties: Sequence[Ties]) -> float:
    """Return the share of rankings where several candidates tie for the first place."""
    return float(np.mean([each.tie_at_first for each in ties]))


class Example(NamedTuple):
    """What a reader needs of an example: what was asked, as texts with what each is, and the right answer."""

    texts: Sequence[tuple[str, str]]
    right: str


def conversation_texts(conversation: Conversation) -> list[tuple[str, str]]:
    """Return the texts of a conversation and what each is: facts about the replying side, then the turns by role."""
    facts = [("fact", fact) for fact in conversation.persona]
    turns = [(turn.role or f"turn {number}", turn.text) for number, turn in enumerate(conversation.turns, 1)]
    return [*facts, *turns]


class Task(Protocol[Ranker]):
    """Examples that any number of models can be measured on.

    Each example is part of a group, whose number is in `groups` (examples,); `unit` is "dialogues" or "queries".
    `described` is what the answer says about the task besides its figures.
    """

    unit: str
    groups: NDArray[np.int64]
    described: dict[str, Any]

    def load(self, name: str) -> Ranker:
        """Load a model; raises WrongKind if the task cannot use its architecture."""

    def measure(self, ranker: Ranker, report: ReportProgress) -> TaskResult: ...

    def example(self, place: int) -> Example:
        """Return the example at that place, to be read."""


class ListsTask:
    """Ranks each example's own candidates, or those that are drawn for it; for any model."""

    unit = "dialogues"

    def __init__(self, data: Path, limit: int | None, runner: Runner = REFERENCE, draw: Draw = AS_LISTED) -> None:
        self._runner = runner
        self._examples, self.described, assumption = listed_examples(data, limit, draw)
        self.groups = dialogue_numbers([dialogue for _, dialogue in self._examples], assumption)

    def load(self, name: str) -> AnyRanker:
        return loaded(load, name, self._runner)

    def measure(self, ranker: AnyRanker, report: ReportProgress) -> TaskResult:
        """Measure how often the gold reply comes first, and the like."""
        ranked = rank_lists(ranker, [dialogue for _, dialogue in self._examples], report)
        lines = [
            {"example": number, **_place(ties, -np.sort(-own)), "best": own.argmax(), "scores": own}
            for (number, _), ties, own in zip(self._examples, ranked.ties, ranked.scores, strict=True)
        ]
        first = [dialogue.candidates[line["best"]] for (_, dialogue), line in zip(self._examples, lines, strict=True)]
        return TaskResult(rank_values(ranked.ties), lines, first, tied_first(ranked.ties))

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

    def find(
        self,
        ranker: Retriever,
        contexts: Sequence[Conversation],
        texts: Sequence[str],
        right: Sequence[NDArray[np.int64]],
        report: ReportProgress,
        own: Sequence[int | None] | None = None,
    ) -> list[Retrieved]:
        """Find the best texts for each context; `right` and `own` as `retrieve`."""
        rankings, cut = retrieve(ranker, contexts, texts, right, report, own)
        if cut:
            too_long = f"{ranker.name} reads {cut} of {len(texts)} texts without their end: they are too long"
            print(too_long, file=sys.stderr)
        if self.reranker is None:
            return rankings
        counts_words = ranker.evidence is not None
        if self.reranker.evidence is not None and not counts_words:
            print(f"{self.reranker.name} {words_left_out(ranker.name)}", file=sys.stderr)
        return rerank(self.reranker, contexts, texts, rankings, self.top_n, report, counts_words)

    def described(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return what the answer says about a search over these texts."""
        stages = {} if self.reranker is None else {"reranker": self.reranker.name, "top_n": self.top_n}
        return {**stages, "candidates": len(texts)}


class _SearchTask:
    def __init__(self, search: TwoStageSearch) -> None:
        self._search = search

    def load(self, name: str) -> Retriever:
        """Load a model that can search a pool; raises WrongKind for a Cross-encoder."""
        return loaded(load_retriever, name, self._search.runner, after=RERANKER_HINT)


class PoolTask(_SearchTask):
    """Finds each gold reply among all texts of a pool, where every distinct text counts once.

    A text that equals the gold reply but for case and the like is as right. A reply that is not among the DEPTH texts
    retrieved counts 0 in every figure, `mrr` too.
    """

    unit = "dialogues"

    def __init__(
        self, data: Path, pools: Sequence[Path], search: TwoStageSearch, limit: int | None, encoding: str | None = None
    ) -> None:
        super().__init__(search)
        self._ids, self._texts = _distinct_texts(pools, encoding)
        rows_of: dict[str, list[int]] = {}
        for row, text in enumerate(self._texts):
            rows_of.setdefault(folded_line(text), []).append(row)
        dialogues, assumption = read_identified(data, limit)
        require_no_classes(data, dialogues)
        self._examples = [
            (number, dialogue, np.array(rows, np.int64))
            for number, dialogue in enumerate(dialogues)
            if (rows := rows_of.get(folded_line(dialogue.response)))
        ]
        if not self._examples:
            raise InvalidInput("no gold reply is a text of the pool; give a pool that the replies were taken from")
        left_out = len(dialogues) - len(self._examples)
        report_left_out(left_out, len(dialogues), "have a gold reply that the pool lacks")
        self.groups = dialogue_numbers([dialogue for _, dialogue, _ in self._examples], assumption)
        self.described = search.described(self._texts)

    def measure(self, ranker: Retriever, report: ReportProgress) -> TaskResult:
        """Measure how often the gold reply is found first, and the like."""
        contexts = [dialogue.conversation for _, dialogue, _ in self._examples]
        right = [rows for _, _, rows in self._examples]
        rankings = self._search.find(ranker, contexts, self._texts, right, report)
        ties = [each.ties(partial(_is_in, rows)) for each, rows in zip(rankings, right, strict=True)]
        lines = [
            {"example": number, **_place(own, each.best.scores), **_retrieved(self._ids, each.best)}
            for (number, _, _), own, each in zip(self._examples, ties, rankings, strict=True)
        ]
        first = [self._texts[each.best.rows[0]] for each in rankings]
        return TaskResult(rank_values(ties, (*RECALL_AT, DEPTH), DEPTH), lines, first, tied_first(ties))

    def example(self, place: int) -> Example:
        """Return a conversation and its gold reply."""
        _, dialogue, _ = self._examples[place]
        return Example(conversation_texts(dialogue.conversation), dialogue.response)


class CollectionTask(_SearchTask):
    """Finds the relevant documents of queries with graded judgements in a whole corpus."""

    unit = "queries"

    def __init__(self, corpus: Path, queries: Path, qrels: Path, search: TwoStageSearch, limit: int | None) -> None:
        super().__init__(search)
        self._collection = collection = read_collection(corpus, queries, qrels, limit)
        if missing := collection.unknown_queries:
            print(f"{missing} judged queries are not in {queries} and were left out", file=sys.stderr)
        if missing := collection.unknown_documents:
            print(f"{missing} judged documents are not in {corpus}; they count as not found", file=sys.stderr)
        self._own = [collection.own_row(query) for query in range(len(collection.queries))]
        if echoed := len(self._own) - self._own.count(None):
            if len(collection.documents) == 1:
                raise CollectionInvalid(f"{corpus}: its only document is a query itself; there is nothing to find")
            print(f"{echoed} queries are documents themselves; each is searched without its own", file=sys.stderr)
        self.groups = np.arange(len(collection.queries))
        self.described = search.described(collection.documents)

    def measure(self, ranker: Retriever, report: ReportProgress) -> TaskResult:
        collection = self._collection
        contexts = [Conversation.of(text) for text in collection.queries]
        right = [collection.judged_rows(query) for query in range(len(contexts))]
        rankings = self._search.find(ranker, contexts, collection.documents, right, report, self._own)
        ties = [each.ties(partial(collection.gains_of, query)) for query, each in enumerate(rankings)]
        values = judged_values(ties, [collection.judged_gains(query) for query in range(len(rankings))])
        lines = [
            {
                "query": name,
                **{figure: values[figure][query] for figure in values},
                **_place(ties[query], rankings[query].best.scores),
                **_retrieved(collection.document_ids, rankings[query].best),
            }
            for query, name in enumerate(collection.query_ids)
        ]
        first = [collection.documents[each.best.rows[0]] for each in rankings]
        return TaskResult(values, lines, first, tied_first(ties))

    def example(self, place: int) -> Example:
        """Return a query and the document that is judged best."""
        return Example([("query", self._collection.queries[place])], self._collection.best_document(place))


def _distinct_texts(pools: Sequence[Path], encoding: str | None) -> tuple[list[str], list[str]]:
    """Read each text of a pool once, in drawn order; returns the id of its first row, and the text."""
    id_of: dict[str, str] = {}
    for candidate in read_candidates(pools, encoding):
        id_of.setdefault(candidate.text, candidate.id)
    if not id_of:
        raise InvalidInput(f"{', '.join(map(str, pools))}: there is no text to search")
    texts = drawn_order(id_of)
    return [id_of[text] for text in texts], texts


def _is_in(right: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.isin(rows, right).astype(np.float64)


def _place(ties: Ties, scores: NDArray[np.float32]) -> dict[str, Any]:
    """Return rank and score of the first right text, and how many tie with it; null if it was not retrieved.

    Its rank is the best that it has in any order of these.
    """
    if ties.first_right is None:
        return {"rank": None, "tied": None, "score": None}
    ahead, size, _ = ties.first_right
    return {"rank": ahead + 1, "tied": size - 1, "score": scores[ahead]}


def _retrieved(ids: Sequence[str], best: TopK) -> dict[str, Any]:
    names = [ids[row] for row in best.rows]
    return {"best": names[0], "retrieved": names, "scores": best.scores}


def dialogue_numbers(examples: Sequence[Dialogue], assumption: str | None) -> NDArray[np.int64]:
    """Number the dialogues that examples are of, (examples,); says what was assumed, and warns where it is only one."""
    if assumption:
        print(assumption, file=sys.stderr)
    groups = group_numbers(example.dialogue for example in examples)
    if not groups.any():
        print("all examples are of one dialogue, so the intervals have no width and say nothing", file=sys.stderr)
    return groups


class ClassesTask:
    """Tells the class of each example's context and response.

    Figures: accuracy, and log_loss, the mean of -log of the right class's probability.
    """

    unit = "dialogues"

    def __init__(self, data: Path, limit: int | None, runner: Runner = REFERENCE) -> None:
        self._runner = runner
        self._examples, assumption = classed_examples(data, limit)
        self.groups = dialogue_numbers(self._examples, assumption)
        self.described: dict[str, Any] = {}

    def load(self, name: str) -> Classifier:
        """Load a classifier that knows all classes of the examples."""
        classifier = loaded(load_classifier, name, self._runner)
        if unknown := sorted({each.category for each in self._examples} - set(classifier.labels)):
            raise InvalidInput(f"{name} knows no class {unknown[0]!r}; its classes: {', '.join(classifier.labels)}")
        single = sum(each.is_single_text for each in self._examples)
        if single != (0 if classifier.reads_pairs else len(self._examples)):
            kind = "pairs" if classifier.reads_pairs else "single texts"
            raise InvalidInput(
                f"{name} tells classes of {kind}; {single} of {len(self._examples)} examples are single texts"
            )
        return classifier

    def measure(self, ranker: Classifier, report: ReportProgress) -> TaskResult:
        """Measure how often, and how surely, the right class is told."""
        batches = []
        for start in range(0, len(self._examples), _AT_ONCE):
            some = self._examples[start : start + _AT_ONCE]
            batches.append(ranker.of_examples(some))
            report("classify", start + len(some), len(self._examples))
        probabilities = np.concatenate(batches).astype(np.float64)
        right = np.array([ranker.labels.index(each.category) for each in self._examples])
        best = probabilities.argmax(axis=1)
        of_right = probabilities[np.arange(len(right)), right]
        ties = [Ties.of(own, np.arange(len(own)) == gold) for own, gold in zip(probabilities, right, strict=True)]
        values = {
            "accuracy": np.array([each.found(1) for each in ties]),
            "log_loss": -np.log(np.maximum(of_right, np.finfo(np.float32).tiny)),
        }
        lines = [
            {"example": number, "label": ranker.labels[gold], "told": ranker.labels[own], "probabilities": row}
            for number, (gold, own, row) in enumerate(zip(right, best, probabilities, strict=True))
        ]
        return TaskResult(values, lines, [ranker.labels[own] for own in best], tied_first(ties))

    def example(self, place: int) -> Example:
        """Return a pair of texts and its class."""
        example = self._examples[place]
        return Example([*conversation_texts(example.conversation), ("response", example.response)], example.category)
