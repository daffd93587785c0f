"""What is fitted after training, by dialogues whose reply is known: how much words count, and what a score says.

Each example becomes a list: its reply, replies of other dialogues, and an earlier turn of its own conversation. Lists
that a file brings along are not used: what is wrong in them was drawn in ways that features can see through.

The probability that a reply is right is told by Platt's scaling (Platt 1999, "Probabilistic outputs for support vector
machines", with his targets): a line under the sigmoid, which keeps the order of the scores. It is fitted on the same
lists without the repeated turns. All right replies of a file together weigh PRIOR, all wrong ones the rest, however
many there are. Where people have said which first replies were right (labels), the line is fitted on these alone, each
of the same weight.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import CalibrationConfig, LexicalConfig, ModelConfig
from polyrank.model.lexical.fit import Figures, Files, ScoredList, fit, rounded, shares
from polyrank.model.lexical.score import FEATURES, feature_table, read
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics, normalised
from polyrank.model.rankers.networks import CrossRanker, Ranker, Retriever
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.dialogues import RIGHT, Dialogue, drawn
from polyrank.model.training.data import Corpus, OnProgress, no_progress

FEWEST_LISTS = 50  # weights fitted to noise on fewer lists cost up to a quarter of R@1, on as many under a tenth
# Labels of either kind in each half of the dialogues; and in all: a share of a half is known to 2 % then.
_FEWEST_OF_KIND, _MOST_LABELS = 5, 2000
_SEED = 0
_CONTEXTS_AT_ONCE = 256
_SCORING = "scoring lists"


# How many lists of a file are used, and how many replies of other dialogues each of them has.
_OF_VECTORS = 500, 99  # more lists move no weight by much; others cost no encoding, and steady the weights
# A Cross-encoder reads each pair, which takes 20 ms on two cores: 50 s a file. chat-poly's weights over two files came
# out nearly the same with 15 others as with 99; with 60 lists some were three times as large.
_OF_PAIRS = 150, 15


class _List(NamedTuple):
    """An example and its candidates: the right reply first, and at the end `repeats` earlier turns."""

    example: Dialogue
    texts: list[str]
    repeats: int


Labelled = tuple[ScoredList, bool]
"""A reply alone, and whether it was right."""


class Weighed(NamedTuple):
    """The evidence, how many lists it was fitted on, and R@1 with and without each feature."""

    evidence: LexicalConfig
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
        return {"lists": self.lists, "recall_at_1": {name: own._asdict() for name, own in self.figures.items()}}


def scored_lists(
    ranker: Ranker, corpora: Sequence[Corpus], seen: bool, on_progress: OnProgress = no_progress
) -> list[list[ScoredList]]:
    """Make lists of each file of dialogues, and score them by a model's network.

    seen: the model was trained on these files. Then only their selection slices are used. The stage is "scoring lists",
    of texts.
    """
    totals = [0, 0]  # lists of each fold in all files
    return [_scored_lists(ranker, corpus, seen, totals, on_progress) for corpus in corpora]


def scored_labels(
    ranker: Ranker, labels: Sequence[Dialogue], statistics: Statistics, on_progress: OnProgress = no_progress
) -> list[Labelled]:
    """Score labels, of many some that are drawn; the stage is that of `scored_lists`.

    statistics: of the replies among which they are.
    """
    labels = drawn(labels, _MOST_LABELS, random.Random(_SEED))
    lists = [_List(each, [each.response], 0) for each in labels]
    scored = _with_features(ranker, lists, statistics, [0, 0], on_progress)
    return [(own, each.category == RIGHT) for own, each in zip(scored, labels, strict=True)]


def looks_to_score(held_out: Sequence[int], retrieves: bool, negatives: int) -> float:
    """Return how many looks at the selection slice it takes, about, to score the lists of a model that has seen it.

    held_out: examples of each file in the slice. negatives: how many pairs a look reads beside the right one of each,
    unless the model `retrieves`.
    """
    lists, others = _OF_VECTORS if retrieves else _OF_PAIRS
    longer = 1.0 if retrieves else (1 + others) / (1 + negatives)
    return longer * sum(min(lists, count) for count in held_out) / sum(held_out)


def weigh(files: Files) -> Weighed:
    """Fit the evidence of a model on the scored lists of each file."""
    return Weighed(fit(files), sum(map(len, files)), shares(files))


def _scored_lists(
    ranker: Ranker, corpus: Corpus, seen: bool, totals: list[int], on_progress: OnProgress
) -> list[ScoredList]:
    on_progress(_SCORING, 0, None)
    draw = random.Random(_SEED)
    most, others = _OF_VECTORS if ranker.retrieves else _OF_PAIRS
    examples = chain(corpus.examples(selection=True), () if seen else corpus.examples())
    lists = _lists(drawn(examples, most, draw), others, draw)
    return _with_features(ranker, lists, Statistics.of(corpus.replies()), totals, on_progress)


def _with_features(
    ranker: Ranker, lists: Sequence[_List], statistics: Statistics, totals: list[int], on_progress: OnProgress
) -> list[ScoredList]:
    scored = _late_scores(ranker, lists, on_progress) if ranker.retrieves else _pair_scores(ranker, lists, on_progress)
    fold_of = _folds(Counter(each.example.dialogue for each in lists), totals)
    return [
        ScoredList(
            own.astype(np.float64),
            feature_table(read(each.example.conversation), WordTable.of(each.texts, statistics)),
            each.repeats,
            fold_of[each.example.dialogue],
        )
        for each, own in zip(lists, scored, strict=True)
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


def _pair_scores(ranker: CrossRanker, lists: Sequence[_List], on_progress: OnProgress) -> Iterator[NDArray[np.float32]]:
    total = sum(len(each.texts) for each in lists)
    done = 0
    for each in lists:
        yield ranker.score_pairs(ranker.tokenize_pairs(each.example.conversation, each.texts)[0])
        done += len(each.texts)
        on_progress(_SCORING, done, total)


def _late_scores(ranker: Retriever, lists: Sequence[_List], on_progress: OnProgress) -> Iterator[NDArray[np.float32]]:
    row_of: dict[str, int] = {}
    for each in lists:
        for text in each.texts:
            row_of.setdefault(text, len(row_of))
    total, done = len(row_of) + len(lists), 0

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        on_progress(_SCORING, done, total)

    made = ranker.represent_candidates(ranker.tokenize_candidates(list(row_of))[0], on_done)
    for start in range(0, len(lists), _CONTEXTS_AT_ONCE):
        some = lists[start : start + _CONTEXTS_AT_ONCE]
        tokens = [ranker.tokenize_context(each.example.conversation)[0] for each in some]
        for each, context in zip(some, ranker.represent_contexts(tokens), strict=True):
            yield ranker.scores(context, made.take([row_of[text] for text in each.texts]), None)
        on_done(len(some))


PRIOR = 0.1  # one text in ten is right: a search has found ten, one of which answers
_LEAST_SLOPE = 1e-4


class _Scored(NamedTuple):
    """The final scores of right replies, (R,), and of wrong ones, (W,), and their fold."""

    right: NDArray[np.float64]
    wrong: NDArray[np.float64]
    fold: int


class Calibrated(NamedTuple):
    """The calibration, how many lists it was fitted on, and what a threshold of 0.5 does."""

    calibration: CalibrationConfig
    lists: int
    # Shares of right and of wrong replies at 0.5 or above, in dialogues that it was not fitted on.
    right: float
    wrong: float

    def summary(self) -> dict[str, object]:
        return {"lists": self.lists, "right_above_half": self.right, "wrong_above_half": self.wrong}


def lack(files: Files) -> str | None:
    """Return why scored lists cannot tell what a score says; None: they can."""
    told = _telling(files)
    if (lists := sum(map(len, told))) < FEWEST_LISTS:
        return f"{lists} lists with wrong replies are too few, {FEWEST_LISTS} are needed; give more dialogues"
    if len({each.fold for file in told for each in file}) < 2:
        return "the lists are of too few dialogues to fit on some and measure on others; give more dialogues"
    return None


def lack_of_labels(labels: Sequence[Labelled]) -> str | None:
    """Return why labels cannot tell what a score says; None: they can."""
    if len(labels) < FEWEST_LISTS:
        return f"{len(labels)} labels are too few, {FEWEST_LISTS} are needed; wait for more feedback"
    kinds = Counter((own.fold, right) for own, right in labels)
    if min(kinds[fold, right] for fold in (0, 1) for right in (False, True)) < _FEWEST_OF_KIND:
        right = sum(right for _, right in labels)
        return f"{right} labels say right and {len(labels) - right} wrong: too few of one kind; wait for more feedback"
    return None


def calibrate(files: Files, config: ModelConfig) -> Calibrated | None:
    """Fit the calibration of a model on the scored lists of all files; None: they cannot tell (`lack`)."""
    if lack(files):
        return None
    files = _telling(files)
    return _calibrated(lambda words: [[_scored(each, words) for each in file] for file in files], PRIOR, config)


def calibrate_by_labels(labels: Sequence[Labelled], config: ModelConfig) -> Calibrated | None:
    """Do what `calibrate` does, by labels; the prior is the share that is right. None: see `lack_of_labels`."""
    if lack_of_labels(labels):
        return None
    prior = sum(right for _, right in labels) / len(labels)

    def scored(words: LexicalConfig | None) -> list[list[_Scored]]:
        alone = [(_scored(own, words), right) for own, right in labels]
        return [[own if right else _Scored(own.wrong, own.right, own.fold) for own, right in alone]]

    return _calibrated(scored, prior, config)


def _calibrated(
    scored_by: Callable[[LexicalConfig | None], list[list[_Scored]]],
    prior: float,
    config: ModelConfig,
) -> Calibrated:
    scored = scored_by(config.evidence)
    slope, intercept = _line(scored, prior)
    # Pairs may also count alone, where a server has no words.
    scores_pairs = not ARCHITECTURES[config.architecture].retrieves
    alone = _line(scored_by(None), prior) if config.evidence and scores_pairs else None
    calibration = CalibrationConfig(
        prior=prior,
        slope=slope,
        intercept=intercept,
        alone_slope=alone and alone[0],
        alone_intercept=alone and alone[1],
    )
    return Calibrated(calibration, sum(map(len, scored)), *_at_half(scored, prior))


def _telling(files: Files) -> list[list[ScoredList]]:
    """Return the lists that have wrong replies: a file of a single dialogue gives none."""
    return [[each for each in file if len(each.late) - each.repeats > 1] for file in files]


def _scored(each: ScoredList, evidence: LexicalConfig | None) -> _Scored:
    numbers = each.numbers(repeats=False)
    if evidence is None:
        return _Scored(numbers[:1, 0], numbers[1:, 0], each.fold)
    weights = np.array([evidence.late_weight, *(evidence.weights.get(name, 0.0) for name in FEATURES)])
    scores = numbers @ weights
    return _Scored(scores[:1], scores[1:], each.fold)


def _line(files: Sequence[Sequence[_Scored]], prior: float) -> tuple[float, float]:
    """Return slope and intercept, the slope above 0."""
    from scipy.optimize import minimize  # takes a tenth of a second, which only a fit needs

    known = [_file(file, prior) for file in files if file]
    scores, targets, weights = (np.concatenate(column) for column in zip(*known, strict=True))
    middle, width = float(scores.mean()), float(scores.std()) or 1.0
    standard = (scores - middle) / width

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = values[0] * standard + values[1]
        lost = np.logaddexp(0.0, logits) - targets * logits
        slopes = weights * (1 / (1 + np.exp(-np.clip(logits, -700, 700))) - targets)
        return float((weights * lost).sum()), np.array([(slopes * standard).sum(), slopes.sum()])

    start = np.array([1.0, float(np.log(prior / (1 - prior)))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(_LEAST_SLOPE * width, None), (None, None)])
    slope = found.x[0] / width
    return rounded(slope), rounded(found.x[1] - slope * middle)


def _file(
    file: Sequence[_Scored], prior: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return scores, targets and weights of a file's texts; the weights add up to its share, up to FEWEST_LISTS."""
    right = np.concatenate([each.right for each in file])
    wrong = np.concatenate([each.wrong for each in file])
    share = min(1.0, len(file) / FEWEST_LISTS)
    targets = (len(right) + 1) / (len(right) + 2), 1 / (len(wrong) + 2)  # Platt's, so that no list is separated by more
    weights = share * prior / len(right), share * (1 - prior) / len(wrong)
    columns = [
        np.concatenate([np.full(len(right), one), np.full(len(wrong), other)]) for one, other in (targets, weights)
    ]
    return np.concatenate([right, wrong]), columns[0], columns[1]


def _at_half(files: Sequence[Sequence[_Scored]], prior: float) -> tuple[float, float]:
    """Measure the shares of right and wrong replies at 0.5 or above; each fold by the line of the other."""
    right, wrong = [], []
    for fold in (0, 1):
        slope, intercept = _line([[each for each in file if each.fold != fold] for file in files], prior)
        for each in (each for file in files for each in file if each.fold == fold):
            right.append(slope * each.right + intercept >= 0)
            wrong.append(slope * each.wrong + intercept >= 0)
    return rounded(float(np.concatenate(right).mean())), rounded(float(np.concatenate(wrong).mean()))
