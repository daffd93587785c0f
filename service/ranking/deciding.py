"""What scores say: the probability that a text is right, and whether the first result of a ranking is an answer."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.service.errors import NotCalibrated
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.ranking.values import Decision, Ranked, RankRequest


class Line(NamedTuple):
    """What is put into the sigmoid: `slope * score + intercept`."""

    slope: float
    intercept: float


AS_IT_IS = Line(1.0, 0.0)
"""For scores of which it is not known what they say."""


def line_of(model: LateScorer | PairScorer, counts_words: bool = True) -> Line:
    """Return what the scores of a model say; words that it has may not count, for lack of a pool."""
    return AS_IT_IS if model.calibration is None else Line(*model.calibration.line(counts_words))


def relevance(scores: NDArray[np.float32], line: Line = AS_IT_IS) -> NDArray[np.float64]:
    """Map each score to 0..1 by the sigmoid of the model's line, computed in float64; the order stays.

    With the line of a calibrated model the result is the probability that a text is right. Without, it is one for a
    Cross-encoder whose score is a logit; other scores mean something only beside those of other candidates. Where the
    line is between -20 and 20, different scores stay different, except next to 0; above 36.7 the result is 1.

    >>> relevance(np.array([0.0, 2.0, -2.0], np.float32)).round(4).tolist()
    [0.5, 0.8808, 0.1192]
    """
    wide = line.slope * scores.astype(np.float64) + line.intercept
    small = np.exp(-np.abs(wide))  # of the negative magnitude: this never overflows
    return np.where(wide >= 0, 1.0, small) / (1.0 + small)


def check(request: RankRequest, ranker: LateScorer, name: str, scorer: PairScorer | None) -> None:
    """Raise NotCalibrated where a decision is asked for, and the last stage has scores that say no probability.

    name: of the ranker, as the generation has it.
    """
    if request.answer_if is None:
        return
    if scorer is not None and scorer.calibration is None:
        raise NotCalibrated(f"the reranker {scorer.name}", "start the server with the result")
    if scorer is None and ranker.calibration is None:
        raise NotCalibrated(f"the model {name}", "build again with the result")


def decided(
    request: RankRequest, ranked: Ranked, ranker: LateScorer, scorer: PairScorer | None, counts_words: bool
) -> Decision | None:
    """Say whether the first result is an answer; None: that was not asked.

    Its probability is by the model that placed it: the cross-encoder, or the generation's own. counts_words: whether
    the generation has words, which the cross-encoder's scores include then.
    """
    if request.answer_if is None:
        return None
    probability = None
    if ranked.places:
        first = ranked.places[0]
        # The words of the generation's own model always count in its scores.
        model, counts_words = (ranker, True) if first.cross is None else (scorer, counts_words)
        skipped = first.cross is None and ranked.lacks_second_stage  # a score of another kind than the calibrated ones
        if model is not None and model.calibration is not None and not skipped:
            score = np.array([first.placed_by], np.float32)
            probability = float(relevance(score, line_of(model, counts_words))[0])
    return Decision(probability is not None and probability >= request.answer_if, probability, request.answer_if)
