"""Hard negatives: texts of a pool that a model takes for the reply to a context, and that are none.

What a model ranks high without being the gold reply is either the most useful thing to train against or a reply that
is right as well: of the unlabelled passages that a retriever ranks first, most are relevant (Qu et al. 2021, RocketQA,
arXiv 2010.08191). So of the `depth` best texts these are left out, in this order:

1. "positive": what is the gold reply of an example with the same context, this one's included.
2. "rank": the `skip` best of the others. Near-duplicates of the gold reply gather there, and the texts that follow are
   hardly easier.
3. "margin": what scores at or above `score_bound`, which lies below this example's own gold score. Moreira et al. 2024
   (NV-Retriever, arXiv 2407.15831) compare such filters; one relative to the gold score, at 95 % of it, did best.
4. "check": what a cross-encoder, where one is given, scores at or above the gold reply less `check_margin` (RocketQA's
   denoising). It reads only as many as it takes to fill the row.

Of what remains the hardest are taken, as Moreira et al. do: after these filters a high rank is a reason for a negative,
and a uniform draw would be as hard as the middle of the window only. `sample` draws uniformly nevertheless, for where
the gold replies of a noisy log make the filters less certain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.evaluate import Progress, require_finite
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.search.scan import Query, Scan, prepare
from polyrank.model.search.topk import TopK, scores_of
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.positives import Positives, text_key

REASONS = ("positive", "rank", "margin", "check")
_TEXTS_AT_ONCE = 8192
_EXAMPLES_AT_ONCE = 256
_RANDOM_TEXTS = 256  # their mean score is known to a sixteenth of its spread, of which the margin takes a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningRules:
    """Which texts of the pool become negatives; the module says why.

    Attributes:
        depth: how many of the best texts are looked at, for each context.
        skip: how many of the best are left out, after the positives.
        margin: share of the gold reply's lead that a negative must stay behind by (`score_bound`); None: no bound.
        check_margin: how far below the gold reply's score the cross-encoder's must be, in its own units.
        negatives: how many to keep for each example.
        sample: draw them uniformly from what remains, instead of taking the hardest.
        seed: of the draw, and of the random texts that the margin is measured from.
    """

    depth: int = 100
    skip: int = 5
    margin: float | None = 0.05
    check_margin: float = 0.0
    negatives: int = 7
    sample: bool = False
    seed: int = 0


@dataclass(slots=True)
class Tally:
    """What was mined so far.

    Attributes:
        examples: how many were read.
        negatives: how many they got, in all.
        without: examples that got none.
        filtered: texts left out, by reason.
    """

    examples: int = 0
    negatives: int = 0
    without: int = 0
    filtered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


def score_bound(gold: float, random: float, margin: float) -> float:
    """The score that a negative must stay below: `gold - margin * max(0, gold - random)`.

    Moreira et al.'s share of the gold score (TopK-PercPos, `(1 - margin) * gold`), measured from the mean score of
    random texts instead of from 0. Where random texts score 0, as cosines nearly do, it is theirs. Training with a
    softmax over replies leaves a score's zero and scale free, though, and any score may be negative; adding a constant
    to a context's scores, or multiplying them, moves this bound along. It never lies above the gold score.

    >>> score_bound(8.0, 0.0, 0.25), score_bound(-2.0, -10.0, 0.25), score_bound(1.0, 3.0, 0.25)
    (6.0, -4.0, 1.0)
    """
    return gold - margin * max(0.0, gold - random)


class TextPool(NamedTuple):
    """The texts that may become negatives, each once but for case and white space.

    texts: (N,), as first spelt. keys: their `text_key`, (N,). embeddings: (N, D). scan: of these.
    """

    texts: list[str]
    keys: NDArray[np.uint64]
    embeddings: NDArray[np.float32]
    scan: Scan

    @classmethod
    def encode(cls, ranker: LateRanker, texts: Iterable[str], progress: Progress) -> "TextPool":
        """Encode each text once; `progress` is told ("encode", done, total).

        Raises:
            InvalidInput: there is no text.
            ModelError: the model gives vectors that are not finite.
        """
        distinct: dict[int, str] = {}
        for text in texts:
            distinct.setdefault(text_key(text), text)
        if not distinct:
            raise InvalidInput("the pool holds no text; there is nothing to mine")
        kept = list(distinct.values())
        embeddings = np.empty((len(kept), ranker.dim), np.float32)
        for start in range(0, len(kept), _TEXTS_AT_ONCE):
            group = kept[start : start + _TEXTS_AT_ONCE]
            progress("encode", start, len(kept))
            embeddings[start : start + len(group)] = _encoded(ranker, group)
        progress("encode", len(kept), len(kept))
        return cls(kept, np.fromiter(distinct, np.uint64), embeddings, prepare(embeddings))


class Miner:
    """Gives examples their negatives.

    Attributes:
        tally: what was mined so far.
    """

    def __init__(
        self,
        ranker: LateRanker,
        pool: TextPool,
        positives: Positives,
        rules: MiningRules,
        check: CrossRanker | None = None,
    ) -> None:
        self.tally = Tally()
        self._ranker = ranker
        self._pool = pool
        self._positives = positives
        self._rules = rules
        self._check = check
        self._generator = np.random.default_rng(rules.seed)
        drawn = self._generator.choice(len(pool.texts), min(len(pool.texts), _RANDOM_TEXTS), replace=False)
        self._random = pool.embeddings[drawn]

    def mine(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Yield each example with its negatives, hardest first, in place of those it had.

        Examples are read a few hundred at a time; the same ones in the same order get the same negatives.

        Raises:
            ModelError: a model gives scores that are not finite.
        """
        remaining = iter(dialogues)
        while chunk := list(islice(remaining, _EXAMPLES_AT_ONCE)):
            contexts = [self._ranker.tokenize_context(each.conversation)[0] for each in chunk]
            golds = _encoded(self._ranker, [each.response for each in chunk])
            encoded = self._ranker.encode_contexts(contexts)
            found = self._pool.scan.top_k([Query(codes, self._rules.depth) for codes in encoded])
            for dialogue, codes, gold, best in zip(chunk, encoded, golds, found, strict=True):
                negatives = self._chosen(dialogue, self._candidates(dialogue, codes, gold, best))
                self.tally.examples += 1
                self.tally.negatives += len(negatives)
                self.tally.without += not negatives
                yield replace(dialogue, negatives=negatives)

    def _candidates(
        self, dialogue: Dialogue, codes: NDArray[np.float32], gold: NDArray[np.float32], best: TopK
    ) -> NDArray[np.int64]:
        """Rows, of the pool's best, that the first three filters leave, best first."""
        rows, scores = best
        wrong = ~np.isin(self._pool.keys[rows], self._positives.of(dialogue.conversation))
        self._count("positive", int((~wrong).sum()))
        rows, scores = rows[wrong], scores[wrong]
        self._count("rank", min(self._rules.skip, len(rows)))
        rows, scores = rows[self._rules.skip :], scores[self._rules.skip :]
        if self._rules.margin is None:
            return rows
        below = scores < self._bound(codes, gold, self._rules.margin)
        self._count("margin", int((~below).sum()))
        return rows[below]

    def _bound(self, codes: NDArray[np.float32], gold: NDArray[np.float32], margin: float) -> float:
        gold_score = float(scores_of(gold[None], codes)[0])
        random_score = float(scores_of(self._random, codes).mean(dtype=np.float64))
        require_finite(self._ranker.name, [np.array([gold_score, random_score])])
        return score_bound(gold_score, random_score, margin)

    def _chosen(self, dialogue: Dialogue, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """The texts to keep of those that are left."""
        order = self._generator.permutation(len(rows)) if self._rules.sample else np.arange(len(rows))
        if self._check is not None:
            order = self._checked(self._check, dialogue, rows, order)
        return tuple(self._pool.texts[row] for row in rows[np.sort(order[: self._rules.negatives])])

    def _checked(
        self, check: CrossRanker, dialogue: Dialogue, rows: NDArray[np.int64], order: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The places, in their order, that the cross-encoder lets pass; it stops when they are enough."""
        passed = order[:0]
        for start in range(0, len(order), self._rules.negatives):
            group = order[start : start + self._rules.negatives]
            texts = [dialogue.response, *(self._pool.texts[row] for row in rows[group])]
            scores = check.score_pairs(check.tokenize_pairs(dialogue.conversation, texts)[0])
            require_finite(check.name, [scores])
            below = scores[1:] < scores[0] - self._rules.check_margin
            self._count("check", int((~below).sum()))
            passed = np.append(passed, group[below])
            if len(passed) >= self._rules.negatives:
                break
        return passed

    def _count(self, reason: str, more: int) -> None:
        self.tally.filtered[reason] += more


def _encoded(ranker: LateRanker, texts: Sequence[str]) -> NDArray[np.float32]:
    vectors = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    require_finite(ranker.name, [vectors])
    return vectors
