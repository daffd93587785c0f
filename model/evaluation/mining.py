"""Hard negatives: texts of a pool that a model ranks high as the reply to a context, and that are wrong.

A text that a model ranks high without being the gold reply is either the most useful one to train against, or a reply
that is right as well: most of the unlabelled passages that a retriever ranks first are relevant (Qu et al. 2021,
RocketQA, arXiv 2010.08191). Therefore four filters leave out some of the `depth` best texts, in this order:

1. "positive": gold replies of examples with the same context, this example included.
2. "rank": the `skip` best of the others. Near-duplicates of the gold reply gather there, and the texts that follow are
   hardly easier.
3. "margin": texts that score at or above `score_bound`, which lies below the example's own gold score. Moreira et al.
   2024 (NV-Retriever, arXiv 2407.15831) compare such filters; one relative to the gold score, at 95 % of it, did best.
4. "check": texts that a cross-encoder, if one is given, scores at or above the gold reply less `check_margin`
   (RocketQA's denoising). It reads only as many texts as it takes to fill the row.

Scores are those of the model as it ranks: where it has evidence, words count, and where it has a second stage, that one
places what the first one found. So the texts that it confuses with the gold reply are those that a server confuses.

The hardest of the texts that remain are taken, as Moreira et al. do: after these filters a high rank speaks for a
negative, and a uniform draw would be only as hard as the middle of the window. `sample` draws uniformly nevertheless,
for noisy logs whose gold replies make the filters less certain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.rankings import ReportProgress, require_finite, scores_of_rows, second_stage
from polyrank.model.lexical.table import WordTable
from polyrank.model.rankers.networks import CrossRanker, Retriever
from polyrank.model.representations import Additions, ContextEncoding, Representations
from polyrank.model.search.scan import Query, Scan, prepare
from polyrank.model.search.topk import TopK
from polyrank.model.text.conversations import Positives
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import text_key

REASONS = ("positive", "rank", "margin", "check")
_TEXTS_AT_ONCE = 8192
_EXAMPLES_AT_ONCE = 256
_CONTEXTS_A_PASS = 32  # where words count, each takes 4 bytes for each text of the pool
_RETRIEVED = 200  # for a second stage, as a server's retrieve_k is by default; more where more are looked at
_RANDOM_TEXTS = 256  # enough to know their mean score to a sixteenth of its spread
_RANDOM_TEXTS_OF_TWO_STAGES = 64  # to an eighth; a Deformer reads each with each context


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningRules:
    """Which texts of the pool become negatives; the module's docstring gives the reasons."""

    depth: int = 100
    skip: int = 5  # how many of the best texts to leave out, after the positives
    # Share of the gold reply's lead that a negative must stay behind by (`score_bound`); None: no bound.
    margin: float | None = 0.05
    check_margin: float = 0.0  # how far below the gold reply the cross-encoder must score a negative, in its own units
    negatives: int = 7
    sample: bool = False  # draw the negatives uniformly from what remains, instead of taking the hardest
    seed: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of what was mined so far: examples, their negatives, examples without any, texts left out by reason."""

    examples: int = 0
    negatives: int = 0
    without: int = 0
    filtered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class TextPool(NamedTuple):
    """The texts that may become negatives; those that `text_key` takes for the same count once.

    texts: (N,), as first written. keys: their `text_key`, (N,). representations: what the model keeps of them. scan:
    of their vectors. words: of the texts, which also say how rare a word is; None where words do not count.
    """

    texts: list[str]
    keys: NDArray[np.uint64]
    representations: Representations
    scan: Scan
    words: WordTable | None

    @classmethod
    def encode(cls, ranker: Retriever, texts: Iterable[str], report: ReportProgress) -> "TextPool":
        """Encode each text once; `report` is called with ("encode", done, total).

        Raises InvalidInput where there is no text, ModelError where the model gives vectors that are not finite.
        """
        distinct: dict[int, str] = {}
        for text in texts:
            distinct.setdefault(text_key(text), text)
        if not distinct:
            raise InvalidInput("the pool holds no text; there is nothing to mine")
        pool = list(distinct.values())
        parts = []
        for start in range(0, len(pool), _TEXTS_AT_ONCE):
            report("encode", start, len(pool))
            parts.append(_encoded(ranker, pool[start : start + _TEXTS_AT_ONCE]))
        report("encode", len(pool), len(pool))
        encodings = Representations.join(parts)
        return cls(pool, np.fromiter(distinct, np.uint64), encodings, prepare(encodings.first), ranker.word_table(pool))


class _Example(NamedTuple):
    """An example with what the model makes of its context and of its gold reply, and what words add to the pool."""

    dialogue: Dialogue
    context: ContextEncoding
    gold: Representations
    additions: Additions | None


class Miner:
    """Gives examples their negatives, and counts them in `tally`."""

    def __init__(
        self,
        ranker: Retriever,
        pool: TextPool,
        positives: Positives,
        rules: MiningRules,
        check: CrossRanker | None = None,
    ) -> None:
        self.tally = Tally()
        self._ranker = ranker
        self._pool = pool
        self._statistics = None if pool.words is None else pool.words.statistics
        self._positives = positives
        self._rules = rules
        self._check = check
        self._generator = np.random.default_rng(rules.seed)
        count = _RANDOM_TEXTS if ranker.late_rows is None else _RANDOM_TEXTS_OF_TWO_STAGES
        self._random = self._generator.choice(len(pool.texts), min(len(pool.texts), count), replace=False)

    def mine(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Yield each example with its negatives, hardest first, in place of those it had.

        Examples are read a few hundred at a time; the same ones in the same order get the same negatives.
        """
        remaining = iter(dialogues)
        while chunk := list(islice(remaining, _EXAMPLES_AT_ONCE)):
            for example, best in self._best(chunk):
                negatives = self._negatives(example, best)
                self.tally.examples += 1
                self.tally.negatives += len(negatives)
                self.tally.without += not negatives
                yield replace(example.dialogue, negatives=negatives)

    def _best(self, dialogues: Sequence[Dialogue]) -> Iterator[tuple[_Example, TopK]]:
        ranker, depth = self._ranker, self._rules.depth
        contexts = ranker.represent_contexts([ranker.tokenize_context(each.conversation)[0] for each in dialogues])
        golds = _encoded(ranker, [each.response for each in dialogues])
        remaining = enumerate(zip(dialogues, contexts, strict=True))
        while several := list(islice(remaining, _CONTEXTS_A_PASS)):
            examples = [
                _Example(each, context, golds.take([at]), ranker.additions(each.conversation, self._pool.words))
                for at, (each, context) in several
            ]
            count = depth if ranker.late_rows is None else max(depth, _RETRIEVED)
            queries = [Query(each.context.codes, count, additions=each.additions) for each in examples]
            for own, best in zip(examples, self._pool.scan.top_k(queries), strict=True):
                yield own, best if ranker.late_rows is None else self._placed(own, best)

    def _placed(self, example: _Example, best: TopK) -> TopK:
        rows, scores = second_stage(self._ranker, self._pool.representations, example.context, best, example.additions)
        return TopK(rows[: self._rules.depth], scores[: self._rules.depth])

    def _negatives(self, example: _Example, best: TopK) -> tuple[str, ...]:
        """Filter the best texts of the pool, then take the hardest of the rest or draw from it."""
        rules = self._rules
        positives = self._positives.of(example.dialogue.conversation)
        best = self._filtered("positive", best, ~np.isin(self._pool.keys[best.rows], positives))
        best = self._filtered("rank", best, np.arange(len(best.rows)) >= rules.skip)
        if rules.margin is not None:
            best = self._filtered("margin", best, best.scores < self._bound(example, rules.margin))
        order = self._generator.permutation(len(best.rows)) if rules.sample else np.arange(len(best.rows))
        if self._check is not None:
            order = self._checked(self._check, example.dialogue, best.rows, order)
        hardest_first = np.sort(order[: rules.negatives])
        return tuple(self._pool.texts[row] for row in best.rows[hardest_first])

    def _filtered(self, reason: str, best: TopK, keep: NDArray[np.bool_]) -> TopK:
        self.tally.filtered[reason] += int((~keep).sum())
        return TopK(best.rows[keep], best.scores[keep])

    def _bound(self, example: _Example, margin: float) -> float:
        dialogue, context, gold, additions = example
        gold_words = None if self._statistics is None else WordTable.of([dialogue.response], self._statistics)
        of_gold = self._ranker.additions(dialogue.conversation, gold_words)
        gold_score = float(self._ranker.scores(context, gold, of_gold)[0])
        random_scores = scores_of_rows(self._ranker, self._pool.representations, context, self._random, additions)
        random_score = float(random_scores.mean(dtype=np.float64))
        require_finite(self._ranker.name, [np.array([gold_score, random_score])])
        return score_bound(gold_score, random_score, margin)

    def _checked(
        self, check: CrossRanker, dialogue: Dialogue, rows: NDArray[np.int64], order: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the places, in their order, of texts that pass the cross-encoder; stops when there are enough."""
        places = order[:0]
        for start in range(0, len(order), self._rules.negatives):
            group = order[start : start + self._rules.negatives]
            texts = [dialogue.response, *(self._pool.texts[row] for row in rows[group])]
            scores = check.score_texts(dialogue.conversation, texts, self._statistics, as_search=True)
            require_finite(check.name, [scores])
            below = scores[1:] < scores[0] - self._rules.check_margin
            self.tally.filtered["check"] += int((~below).sum())
            places = np.append(places, group[below])
            if len(places) >= self._rules.negatives:
                break
        return places


def score_bound(gold: float, random: float, margin: float) -> float:
    """Return the score that a negative must stay below: `gold - margin * max(0, gold - random)`.

    This is the share of the gold score of Moreira et al. (TopK-PercPos, `(1 - margin) * gold`), measured from the mean
    score of random texts instead of from 0. The two agree if random texts score 0, as cosines nearly do. But training
    with a softmax over replies leaves zero and scale of a score free, and any score may be negative; this bound moves
    along when a constant is added to the scores of a context, or they are multiplied by one. It is never above the gold
    score.

    >>> score_bound(8.0, 0.0, 0.25), score_bound(-2.0, -10.0, 0.25), score_bound(1.0, 3.0, 0.25)
    (6.0, -4.0, 1.0)
    """
    return gold - margin * max(0.0, gold - random)


def _encoded(ranker: Retriever, texts: Sequence[str]) -> Representations:
    representations = ranker.represent_candidates(ranker.tokenize_candidates(texts)[0])
    require_finite(ranker.name, (rows for rows, _ in representations.blocks()))
    return representations
