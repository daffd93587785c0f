"""What scores say, and whether the first result of a ranking is an answer."""

from pathlib import Path

import numpy as np
import pytest
from service_fakes import WordCross, WordRanker, asked, build_store, open_serving, pool, rank

from polyrank.model.config import CalibrationConfig
from polyrank.service.errors import NotCalibrated
from polyrank.service.ranking.deciding import Line, decided, line_of, relevance
from polyrank.service.ranking.values import Decision, Ranked, RankedCandidate

LINE = CalibrationConfig(prior=0.1, slope=0.5, intercept=-2.0, alone_slope=0.25, alone_intercept=1.0)


class CalibratedRanker(WordRanker):
    calibration = LINE


class CalibratedCross(WordCross):
    calibration = LINE


def sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def test_relevance_keeps_the_order_of_neighbouring_float32() -> None:
    scores = np.array([-20.0, -16.0, -1.0, 1e-3, 3.0, 12.0, 17.0, 20.0], np.float32)
    pairs = relevance(np.stack([scores, np.nextafter(scores, np.float32(np.inf))]))
    assert (pairs[0] < pairs[1]).all()
    assert ((pairs > 0) & (pairs < 1)).all()


def test_relevance_is_the_sigmoid_and_of_each_score_alone() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(scale=10, size=200).astype(np.float32)
    expected = [1 / (1 + np.exp(-float(score))) for score in scores]
    assert relevance(scores).tolist() == pytest.approx(expected, rel=1e-12)
    assert relevance(scores[:1])[0] == relevance(scores)[0]


def test_relevance_never_overflows() -> None:
    assert relevance(np.array([-1e30, 1e30, -800.0], np.float32)).tolist() == [0.0, 1.0, 0.0]


def test_words_that_do_not_count_have_a_line_of_their_own() -> None:
    assert line_of(WordCross()) == (1.0, 0.0)
    assert line_of(CalibratedCross()) == Line(0.5, -2.0)
    assert line_of(CalibratedCross(), counts_words=False) == Line(0.25, 1.0)


def ranked(*scores: tuple[float, float | None], **fields: object) -> Ranked:
    """A ranking of these scores, each with that of the cross-encoder."""
    places = [RankedCandidate(f"c{at}", "w1", score, cross=cross) for at, (score, cross) in enumerate(scores)]
    return Ranked(places=places, exact=True, looked_at=len(places), **fields)  # type: ignore[arg-type]


def test_the_threshold_itself_is_enough() -> None:
    found, ranker = ranked((4.0, None), (3.0, None)), CalibratedRanker()
    assert decided(asked(answer_if=0.5), found, ranker, None, True) == Decision(True, 0.5, 0.5)
    above = float(np.nextafter(0.5, 1))
    assert decided(asked(answer_if=above), found, ranker, None, True) == Decision(False, 0.5, above)
    assert decided(asked(), found, ranker, None, True) is None


def test_the_model_that_placed_the_first_result_says_it() -> None:
    read, unread = ranked((9.0, 4.0), (1.0, 2.0)), ranked((6.0, None))
    for words, expected in ((True, 0.5), (False, sigmoid(2.0))):
        told = decided(asked(answer_if=0.6, top_n=2), read, WordRanker(), CalibratedCross(), words)
        assert told == Decision(expected >= 0.6, pytest.approx(expected, rel=1e-12), 0.6)
    told = decided(asked(answer_if=0.6, top_n=2), unread, CalibratedRanker(), CalibratedCross(), False)
    assert told == Decision(True, pytest.approx(sigmoid(1.0), rel=1e-12), 0.6)


@pytest.mark.parametrize(
    ("found", "ranker"),
    [
        (ranked(), CalibratedRanker()),
        (ranked((9.0, None), degraded=["rerank_skipped_deadline"]), WordRanker()),
        (ranked((9.0, None), degraded=["late_failed"]), CalibratedRanker()),
    ],
    ids=["no result", "the reranker was skipped", "the second stage failed"],
)
def test_what_is_not_known_is_no_answer(found: Ranked, ranker: WordRanker) -> None:
    assert decided(asked(answer_if=0.001, top_n=3), found, ranker, CalibratedCross(), True) == (False, None, 0.001)


def test_a_skipped_second_stage_does_not_matter_to_the_reranker() -> None:
    found = ranked((9.0, 4.0), degraded=["late_failed"])
    assert decided(asked(answer_if=0.5, top_n=3), found, CalibratedRanker(), CalibratedCross(), True) == (
        True,
        0.5,
        0.5,
    )


def test_the_results_stay_as_they_are(tmp_path: Path) -> None:
    build_store(tmp_path, pool(40), ranker=CalibratedRanker())
    serving = open_serving(tmp_path, load=lambda _: CalibratedRanker())
    plain = rank(serving, asked(top_k=5))
    for threshold in (0.001, 1.0):
        told = rank(serving, asked(top_k=5, answer_if=threshold))
        assert told.places == plain.places
        expected = sigmoid(0.5 * plain.places[0].score - 2.0)
        assert told.decision == Decision(expected >= threshold, pytest.approx(expected, rel=1e-12), threshold)
    kept_out = rank(serving, asked(score_threshold=plain.places[0].score + 1, answer_if=0.001))
    assert (kept_out.places, kept_out.decision) == ([], Decision(False, None, 0.001))
    assert plain.decision is None


def test_a_model_without_calibration_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    def encode() -> None:
        raise AssertionError("nothing is encoded for a request that is refused")

    build_store(tmp_path, pool(5))
    serving = open_serving(tmp_path)
    serving.ranker.on_encode = encode  # type: ignore[attr-defined]
    with pytest.raises(NotCalibrated, match=r"the model words has no calibration.*and build again with the result"):
        rank(serving, asked(answer_if=0.5))
    with pytest.raises(NotCalibrated, match=r"the reranker overlap has no calibration.*and start the server with the"):
        rank(serving, asked(answer_if=0.5, top_n=3), WordCross())
