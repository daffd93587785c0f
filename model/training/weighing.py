"""Weighs the evidence of a model: how much words count beside its vectors, by dialogues whose reply is known.

Each example becomes a list: its reply, replies of other dialogues, and an earlier turn of its own conversation. Lists
that a file brings along are not used: what is wrong in them was drawn in ways that features can see through.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import EvidenceConfig
from polyrank.model.evidence.evidence import feature_table
from polyrank.model.evidence.fit import Figures, ScoredList, fit, shares
from polyrank.model.evidence.reading import read
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.evidence.words import key_of, normalised
from polyrank.model.rankers.networks import Retriever
from polyrank.model.search.topk import scores_of
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.positives import text_key
from polyrank.model.training.data.corpus import Corpus

FEWEST_LISTS = 50  # weights fitted to noise on fewer lists cost up to a quarter of R@1, on as many under a tenth
SEEN_SHARE = 0.6  # of the late weight, where the model was trained on dialogues of this kind (evidence/fit.py)
_LISTS = 500  # of a file; more move no weight by much
_OTHERS = 99  # they cost no encoding, and steady the weights
_SEED = 0
_CONTEXTS_AT_ONCE = 256


class Weighed(NamedTuple):
    """The evidence, how many lists it was fitted on, and R@1 with and without each feature."""

    evidence: EvidenceConfig
    lists: int
    figures: dict[str, Figures]

    def objection(self) -> str | None:
        """Return why a model is better off without this evidence; None: it gains by it."""
        if self.lists < FEWEST_LISTS:
            return f"{self.lists} lists are too few to weigh words by, {FEWEST_LISTS} are needed; give more dialogues"
        without, own = self.figures["late alone"].plain, self.figures["all features"].plain
        if own <= without:
            return f"words do not help: over {self.lists} lists R@1 is {without:.3f} without and {own:.3f} with them"
        return None

    def summary(self) -> dict[str, object]:
        """Return what a checkpoint says of it."""
        return {"lists": self.lists, "recall_at_1": {name: own._asdict() for name, own in self.figures.items()}}


def weigh(ranker: Retriever, corpora: Sequence[Corpus], seen: bool) -> Weighed:
    """Fit the evidence of a model on files of dialogues.

    seen: the model was trained on these files. Then only their selection slices are used, and the late score counts
    less than it seems to be worth.
    """
    files = [_scored_lists(ranker, corpus, seen) for corpus in corpora]
    late_share = SEEN_SHARE if seen else 1.0
    return Weighed(fit(files, late_share), sum(map(len, files)), shares(files, late_share))


def _scored_lists(ranker: Retriever, corpus: Corpus, seen: bool) -> list[ScoredList]:
    draw = random.Random(_SEED)
    lists = _lists(_drawn(_examples(corpus, only_selection=seen), draw), draw)
    statistics = Statistics.of(_replies(corpus))
    return [
        ScoredList(
            late.astype(np.float64),
            feature_table(read(each.example.conversation), WordTable.of(each.texts, statistics)),
            each.repeats,
            text_key(each.example.dialogue) % 2,
        )
        for each, late in zip(lists, _late_scores(ranker, lists), strict=True)
    ]


def _examples(corpus: Corpus, only_selection: bool = False) -> Iterator[Dialogue]:
    """Stream the examples of the selection slice, then the others."""
    return chain(corpus.examples(selection=True), () if only_selection else corpus.examples())


def _drawn(examples: Iterable[Dialogue], draw: random.Random) -> list[Dialogue]:
    """Draw examples in random order, each as likely as any other; no others are held in memory."""
    kept: list[Dialogue] = []
    for count, example in enumerate(examples, 1):  # Vitter 1985, "Random sampling with a reservoir", algorithm R
        if len(kept) < _LISTS:
            kept.append(example)
        elif (place := draw.randrange(count)) < _LISTS:
            kept[place] = example
    draw.shuffle(kept)
    return kept


def _replies(corpus: Corpus) -> Iterator[str]:
    """Stream each distinct reply of the file: the pool that a server would answer from."""
    seen: set[int] = set()
    for example in _examples(corpus):
        if (key := key_of(example.response)) not in seen:
            seen.add(key)
            yield example.response


class _List(NamedTuple):
    """An example and its candidates: the right reply first, and at the end `repeats` earlier turns."""

    example: Dialogue
    texts: list[str]
    repeats: int


def _lists(examples: Sequence[Dialogue], draw: random.Random) -> list[_List]:
    replies = list({example.response: example.dialogue for example in examples}.items())
    return [_list(example, replies, draw) for example in examples]


def _list(example: Dialogue, replies: Sequence[tuple[str, str]], draw: random.Random) -> _List:
    gold = normalised(example.response)
    turns = {normalised(turn.text): turn.text for turn in example.conversation.turns}
    turns.pop(gold, None)
    wrong = []
    for text, dialogue in draw.sample(replies, len(replies)):
        if dialogue != example.dialogue and (form := normalised(text)) != gold and form not in turns:
            wrong.append(text)
        if len(wrong) == _OTHERS:
            break
    repeated = draw.sample(sorted(turns.values()), min(1, len(turns)))
    return _List(example, [example.response, *wrong, *repeated], len(repeated))


def _late_scores(ranker: Retriever, lists: Sequence[_List]) -> list[NDArray[np.float32]]:
    row_of: dict[str, int] = {}
    for each in lists:
        for text in each.texts:
            row_of.setdefault(text, len(row_of))
    embeddings = ranker.encode_candidates(ranker.tokenize_candidates(list(row_of))[0])
    contexts = [ranker.tokenize_context(each.example.conversation)[0] for each in lists]
    codes = [
        own
        for start in range(0, len(contexts), _CONTEXTS_AT_ONCE)
        for own in ranker.encode_contexts(contexts[start : start + _CONTEXTS_AT_ONCE])
    ]
    return [
        scores_of(embeddings[[row_of[text] for text in each.texts]], own)
        for each, own in zip(lists, codes, strict=True)
    ]
