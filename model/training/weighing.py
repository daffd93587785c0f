"""Weighs the evidence of a model: how much words count beside its network, by dialogues whose reply is known.

Each example becomes a list: its reply, replies of other dialogues, and an earlier turn of its own conversation. Lists
that a file brings along are not used: what is wrong in them was drawn in ways that features can see through.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import EvidenceConfig
from polyrank.model.evidence.evidence import feature_table
from polyrank.model.evidence.fit import Figures, Files, ScoredList, fit, shares
from polyrank.model.evidence.reading import read
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.evidence.words import normalised
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Ranker, Retriever
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus

FEWEST_LISTS = 50  # weights fitted to noise on fewer lists cost up to a quarter of R@1, on as many under a tenth
SEEN_SHARE = 0.6  # of the late weight, where the model was trained on dialogues of this kind (evidence/fit.py)
_SEED = 0
_CONTEXTS_AT_ONCE = 256


class _Size(NamedTuple):
    """How many lists of a file are used, and how many replies of other dialogues each of them has."""

    lists: int
    others: int


_OF_VECTORS = _Size(500, 99)  # more lists move no weight by much; others cost no encoding, and steady the weights
# A Cross-encoder reads each pair, which takes 20 ms on two cores: 50 s a file. chat-poly's weights over two files came
# out nearly the same with 15 others as with 99; with 60 lists some were three times as large.
_OF_PAIRS = _Size(150, 15)


class Weighed(NamedTuple):
    """The evidence, how many lists it was fitted on, and R@1 with and without each feature."""

    evidence: EvidenceConfig
    lists: int
    figures: dict[str, Figures]

    def objection(self) -> str | None:
        """Return why a model is better off without this evidence on dialogues of this kind; None: it gains by it."""
        return self.lack() or self.loss()

    def lack(self) -> str | None:
        """Return why the lists cannot tell what words are worth; None: they can."""
        if self.lists < FEWEST_LISTS:
            return f"{self.lists} lists are too few to weigh words by, {FEWEST_LISTS} are needed; give more dialogues"
        return None

    def loss(self) -> str | None:
        """Return what words fail to gain over these lists; None: they help."""
        without, own = self.figures["without words"].plain, self.figures["all features"].plain
        if own <= without:
            return f"words do not help: over {self.lists} lists R@1 is {without:.3f} without and {own:.3f} with them"
        return None

    def summary(self) -> dict[str, object]:
        """Return what a checkpoint says of it."""
        return {"lists": self.lists, "recall_at_1": {name: own._asdict() for name, own in self.figures.items()}}


def scored_lists(ranker: Ranker, corpora: Sequence[Corpus], seen: bool) -> list[list[ScoredList]]:
    """Make lists of each file of dialogues, and score them by a model's network.

    seen: the model was trained on these files. Then only their selection slices are used.
    """
    totals = [0, 0]  # lists of each fold in all files
    return [_scored_lists(ranker, corpus, seen, totals) for corpus in corpora]


def weigh(files: Files, seen: bool) -> Weighed:
    """Fit the evidence of a model on the scored lists of each file.

    seen: the model was trained on these files. Then the late score counts less than it seems to be worth.
    """
    late_share = SEEN_SHARE if seen else 1.0
    return Weighed(fit(files, late_share), sum(map(len, files)), shares(files, late_share))


def _scored_lists(ranker: Ranker, corpus: Corpus, seen: bool, totals: list[int]) -> list[ScoredList]:
    draw = random.Random(_SEED)
    size = _OF_VECTORS if ranker.retrieves else _OF_PAIRS
    examples = chain(corpus.examples(selection=True), () if seen else corpus.examples())
    lists = _lists(_drawn(examples, size.lists, draw), size.others, draw)
    statistics = Statistics.of(corpus.replies())
    scores = _late_scores(ranker, lists) if ranker.retrieves else _pair_scores(ranker, lists)
    fold_of = _folds(Counter(each.example.dialogue for each in lists), totals)
    return [
        ScoredList(
            own.astype(np.float64),
            feature_table(read(each.example.conversation), WordTable.of(each.texts, statistics)),
            each.repeats,
            fold_of[each.example.dialogue],
        )
        for each, own in zip(lists, scores, strict=True)
    ]


def _folds(sizes: Mapping[str, int], totals: list[int]) -> dict[str, int]:
    """Halve the dialogues of a file by their lists: the largest first, each into the fold that has fewer.

    totals: the lists of each fold in the files before, which decide where this file's are equal; they are updated.

    >>> _folds({"a": 1, "b": 1, "c": 2}, [0, 0])
    {'c': 0, 'a': 1, 'b': 1}
    """
    own, fold_of = [0, 0], {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fold = min((0, 1), key=lambda fold: (own[fold], totals[fold]))
        fold_of[name] = fold
        own[fold] += sizes[name]
        totals[fold] += sizes[name]
    return fold_of


def _drawn(examples: Iterable[Dialogue], most: int, draw: random.Random) -> list[Dialogue]:
    """Draw examples in random order, each as likely as any other; no others are held in memory."""
    kept: list[Dialogue] = []
    for count, example in enumerate(examples, 1):  # Vitter 1985, "Random sampling with a reservoir", algorithm R
        if len(kept) < most:
            kept.append(example)
        elif (place := draw.randrange(count)) < most:
            kept[place] = example
    draw.shuffle(kept)
    return kept


class _List(NamedTuple):
    """An example and its candidates: the right reply first, and at the end `repeats` earlier turns."""

    example: Dialogue
    texts: list[str]
    repeats: int


def _lists(examples: Sequence[Dialogue], others: int, draw: random.Random) -> list[_List]:
    replies = list({example.response: example.dialogue for example in examples}.items())
    return [_list(example, replies, others, draw) for example in examples]


def _list(example: Dialogue, replies: Sequence[tuple[str, str]], others: int, draw: random.Random) -> _List:
    gold = normalised(example.response)
    turns = {normalised(turn.text): turn.text for turn in example.conversation.turns}
    turns.pop(gold, None)
    wrong = []
    for text, dialogue in draw.sample(replies, len(replies)):
        if dialogue != example.dialogue and (form := normalised(text)) != gold and form not in turns:
            wrong.append(text)
        if len(wrong) == others:
            break
    repeated = draw.sample(sorted(turns.values()), min(1, len(turns)))
    return _List(example, [example.response, *wrong, *repeated], len(repeated))


def _pair_scores(ranker: CrossRanker, lists: Sequence[_List]) -> list[NDArray[np.float32]]:
    return [ranker.score_pairs(ranker.tokenize_pairs(each.example.conversation, each.texts)[0]) for each in lists]


def _late_scores(ranker: Retriever, lists: Sequence[_List]) -> list[NDArray[np.float32]]:
    row_of: dict[str, int] = {}
    for each in lists:
        for text in each.texts:
            row_of.setdefault(text, len(row_of))
    made = ranker.represent_candidates(ranker.tokenize_candidates(list(row_of))[0])
    tokens = [ranker.tokenize_context(each.example.conversation)[0] for each in lists]
    contexts = (
        context
        for start in range(0, len(tokens), _CONTEXTS_AT_ONCE)
        for context in ranker.represent_contexts(tokens[start : start + _CONTEXTS_AT_ONCE])
    )
    return [
        ranker.scores(context, made.take([row_of[text] for text in each.texts]), None)
        for each, context in zip(lists, contexts, strict=True)
    ]
