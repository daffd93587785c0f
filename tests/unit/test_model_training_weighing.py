"""What is fitted after training: the weights of words, and what a score says.

A calibration by labels: first replies that people took for right or wrong.
"""

import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from command_line import write_rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny import write_checkpoint
from tiny_training import orders

import polyrank
from polyrank.model.config import CalibrationConfig, LexicalConfig, ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.lexical.fit import Figures, ScoredList
from polyrank.model.lexical.score import FEATURES
from polyrank.model.lexical.words import Statistics
from polyrank.model.rankers.load import load_cross
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.sequences import Pairs
from polyrank.model.training import weighing
from polyrank.model.training.config import Data
from polyrank.model.training.data import Corpus, survey
from polyrank.model.training.run import train_calibration
from polyrank.model.training.weighing import (
    FEWEST_LISTS,
    PRIOR,
    Calibrated,
    Weighed,
    calibrate,
    lack,
    scored_lists,
    weigh,
)
from polyrank.service.ranking.selection import Line, relevance


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Tracked(Dialogue):
    """An example that can be seen to be alive."""


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    parent = tmp_path_factory.mktemp("weighing")
    loaded = polyrank.load(write_checkpoint(parent, "bi", 0, architecture="bi", normalize=True, score_scale=5.0))
    assert loaded.retrieves
    return loaded


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path: Path = write_rows(tmp_path_factory.mktemp("data") / "orders.jsonl", orders(200))
    return survey(path, False, 0.0, 1000)[0]


def test_words_that_replies_repeat_gain_a_weight(ranker: VectorRanker, corpus: Corpus) -> None:
    weighed = weigh(scored_lists(ranker, [corpus], False))
    assert weighed.lists == 200
    assert weighed.evidence.weights["last"] > 0.5
    assert weighed.evidence.weights["said"] < 0
    assert weighed.evidence.weights["persona"] == 0, "there is none"
    figures = weighed.figures
    assert figures["all features"].plain > 0.95 > 0.5 > figures["without words"].plain
    assert figures["without last"].plain < 0.5


def test_what_the_model_was_trained_on_is_left_out(ranker: VectorRanker, corpus: Corpus) -> None:
    seen = weigh(scored_lists(ranker, [corpus], True))
    assert seen.lists == sum(1 for _ in corpus.examples(selection=True)) < 40
    assert seen.evidence.late_weight > 0
    assert weigh(scored_lists(ranker, [corpus], True)) == seen


def test_a_large_file_is_not_held_in_memory_to_draw_from_it(ranker: VectorRanker, corpus: Corpus, monkeypatch) -> None:
    monkeypatch.setattr(weighing, "_OF_VECTORS", (20, 99))
    alive: weakref.WeakSet[Tracked] = weakref.WeakSet()
    most = 0

    def tracked(of: Corpus, selection: bool = False) -> Iterator[Dialogue]:
        nonlocal most
        for example in examples(of, selection):
            tracked = Tracked(**{field.name: getattr(example, field.name) for field in fields(example)})
            alive.add(tracked)
            most = max(most, len(alive))
            yield tracked

    examples = Corpus.examples
    monkeypatch.setattr(Corpus, "examples", tracked)
    assert weigh(scored_lists(ranker, [corpus], False)).lists == 20
    assert 20 <= most < 25


def test_every_file_is_weighed(ranker: VectorRanker, corpus: Corpus, monkeypatch) -> None:
    monkeypatch.setattr(weighing, "_OF_VECTORS", (20, 99))
    assert weigh(scored_lists(ranker, [corpus, corpus], False)).lists == 40


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> CrossRanker:
    path = write_checkpoint(tmp_path_factory.mktemp("weighing"), "cross", 0, architecture="cross")
    return load_cross(path)


def test_words_beside_a_cross_encoder_are_weighed_too(cross: CrossRanker, corpus: Corpus) -> None:
    weighed = weigh(scored_lists(cross, [corpus], False))
    assert weighed.evidence.weights["last"] > 0.5
    assert weighed.evidence.weights["said"] < 0
    assert weighed.figures["all features"].plain > 0.95 > 0.5 > weighed.figures["without words"].plain


def test_a_cross_encoder_reads_fewer_and_shorter_lists(cross: CrossRanker, corpus: Corpus, monkeypatch) -> None:
    read: list[int] = []

    def counted(pairs: Pairs) -> NDArray[np.float32]:
        read.append(len(pairs.owners))
        return CrossRanker.score_pairs(cross, pairs)

    monkeypatch.setattr(cross, "score_pairs", counted)
    assert weigh(scored_lists(cross, [corpus], False)).lists == len(read) == 150
    assert set(read) == {17}, "the right reply, 15 of others and an earlier turn"


def weighed(lists: int, late: float, words: float) -> Weighed:
    """An outcome with these R@1; with earlier turns in the lists words always help, which says nothing."""
    figures = {"without words": Figures(late, 0.1), "all features": Figures(words, 0.9)}
    return Weighed(LexicalConfig(), lists, figures)


def test_nothing_speaks_against_words_that_help() -> None:
    assert weighed(FEWEST_LISTS, 0.5, 0.51).objection() is None


def test_too_few_lists_speak_against_words() -> None:
    said = weighed(FEWEST_LISTS - 1, 0.5, 1.0).objection()
    assert said == "49 lists are too few to weigh words by, 50 are needed; give more dialogues"


@pytest.mark.parametrize("words", [0.5, 0.4])
def test_words_that_gain_nothing_are_spoken_against(words: float) -> None:
    said = weighed(500, 0.5, words).objection()
    assert said == f"words do not help: over 500 lists R@1 is 0.500 without and {words:.3f} with them"


def greeted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversations without names, behind four greetings."""
    greetings = ["hi", "hello", "w1", "w2"]
    return [
        {"context": [greetings[n % 4], *row["context"][1:]], "response": row["response"]} for n, row in enumerate(rows)
    ]


def test_words_are_weighed_where_all_conversations_begin_with_four_greetings(ranker: VectorRanker, tmp_path) -> None:
    corpus, report = survey(write_rows(tmp_path / "greeted.jsonl", greeted(orders(1200))), False, 0.0, 1000)
    assert (report.kept, report.held_out) == (1080, 120)
    lists = scored_lists(ranker, [corpus], seen=True)
    weighed = weigh(lists)
    assert (weighed.lists, weighed.objection()) == (120, None)
    assert weighed.figures["all features"].plain > 0.9
    assert sum(each.fold for each in lists[0]) == 60


SIZES = st.dictionaries(st.text(max_size=3), st.integers(1, 60), min_size=1, max_size=12)


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_folds_have_as_many_lists_as_whole_dialogues_allow(files: list[dict[str, int]]) -> None:
    totals = [0, 0]
    for sizes in files:
        folds = weighing._folds(sizes, totals)
        own = [sum(size for name, size in sizes.items() if folds[name] == fold) for fold in (0, 1)]
        assert folds.keys() == sizes.keys()
        assert abs(own[0] - own[1]) <= max(sizes.values())
        assert set(folds.values()) == {0, 1} or len(sizes) == 1
    assert all(totals) or sum(map(len, files)) == 1


RIGHT, WRONG, DEVIATION = 3.0, -1.0, 2.0
VECTORS, PAIRS = (ModelConfig(architecture=each, base_name="none") for each in ("bi", "cross"))


def lists(count: int, *, factor: float = 1.0, others: int = 30, repeats: int = 0) -> list[ScoredList]:
    """Scores of right and wrong replies from two normal distributions; a repeated turn scores far above."""
    draw = np.random.default_rng(0)
    return [
        ScoredList(
            np.concatenate([draw.normal(RIGHT, DEVIATION, 1), draw.normal(WRONG, DEVIATION, others), [50.0] * repeats])
            * factor,
            np.ones((1 + others + repeats, len(FEATURES))),
            repeats,
            at % 2,
        )
        for at in range(count)
    ]


def made(
    files: list[list[ScoredList]], evidence: LexicalConfig | None = None, scores_pairs: bool = False
) -> Calibrated:
    config = replace(PAIRS if scores_pairs else VECTORS, evidence=evidence)
    found = calibrate(files, config)
    assert found is not None
    return found


@pytest.mark.parametrize("factor", [1.0, 0.01, 300.0])
def test_the_line_is_that_of_two_normal_distributions(factor: float) -> None:
    """By Bayes' rule the log odds are linear in the score."""
    slope = (RIGHT - WRONG) / DEVIATION**2
    intercept = math.log(PRIOR / (1 - PRIOR)) - (RIGHT**2 - WRONG**2) / (2 * DEVIATION**2)
    found = made([lists(1500, factor=factor)])
    assert found.lists == 1500
    assert found.calibration.prior == PRIOR
    assert found.calibration.slope * factor == pytest.approx(slope, rel=0.1)
    assert found.calibration.intercept == pytest.approx(intercept, rel=0.1)
    half = -intercept / slope
    assert found.right == pytest.approx(1 - NormalDist(RIGHT, DEVIATION).cdf(half), abs=0.04)
    assert found.wrong == pytest.approx(1 - NormalDist(WRONG, DEVIATION).cdf(half), abs=0.004)


def test_repeated_turns_do_not_count() -> None:
    assert made([lists(100, repeats=1)]).calibration.slope > 0.5


def test_the_number_of_wrong_replies_does_not_move_the_line() -> None:
    few, many = (made([lists(1500, others=each)]).calibration for each in (5, 60))
    assert few.slope == pytest.approx(many.slope, rel=0.15)
    assert few.intercept == pytest.approx(many.intercept, abs=0.3)


def test_words_count_as_they_do_in_the_score() -> None:
    evidence = LexicalConfig(late_weight=0.5, weights={FEATURES[0]: 2.0})
    plain = made([lists(300)]).calibration
    late = made([lists(300)], evidence).calibration
    assert late.slope == pytest.approx(2 * plain.slope, rel=1e-2)
    assert late.intercept == pytest.approx(plain.intercept - 2.0 * late.slope, rel=1e-2)
    assert late.line(words=False) == late.line(words=True)
    pairs = made([lists(300)], evidence, scores_pairs=True).calibration
    assert pairs.line(words=True) == late.line(words=True)
    assert pairs.line(words=False) == plain.line(words=True)


def test_a_model_that_ranks_the_wrong_way_round_keeps_its_order() -> None:
    assert made([lists(200, factor=-1.0)]).calibration.slope > 0


def test_too_few_lists_tell_nothing() -> None:
    assert calibrate([lists(FEWEST_LISTS - 1)], VECTORS) is None
    assert calibrate([[]], VECTORS) is None
    assert calibrate([lists(FEWEST_LISTS - 10), lists(10), []], VECTORS) is not None


def test_lists_that_cannot_tell_are_no_lists() -> None:
    """Lists of one dialogue are all of one fold, and have no wrong replies where the file holds no other dialogue."""
    of_one_dialogue = [each._replace(fold=0) for each in lists(2 * FEWEST_LISTS)]
    alone = lists(2 * FEWEST_LISTS, others=0, repeats=1)
    for file, said in ((of_one_dialogue, "too few dialogues"), (alone, "0 lists with wrong replies")):
        assert calibrate([file], VECTORS) is None
        assert said in str(lack([file]))
        assert made([file, lists(300)]).calibration.slope > 0
    assert made([alone, lists(300)]) == made([lists(300)])
    assert lack([lists(FEWEST_LISTS)]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"slope": 0.0}, {"slope": float("nan")}, {"prior": 1.0},
        {"intercept": float("inf")}, {"alone_slope": 1.0}, {"version": 2},
    ],
    ids=str,
)  # fmt: skip
def test_a_line_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CheckpointInvalid, match="calibration"):
        replace(CalibrationConfig(prior=0.1, slope=1.0, intercept=0.0), **wrong)


LATER = 250  # labels of each set


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("labels")
    evidence = LexicalConfig(weights={"last": 1.0})
    return write_checkpoint(parent, "bi", 0, architecture="bi", normalize=True, score_scale=5.0, evidence=evidence)


def _asked(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    return [
        (" ".join(draw.choices([f"w{n}" for n in range(20)], k=4)), f"w{draw.randrange(20)} w{draw.randrange(20, 40)}")
        for _ in range(count)
    ]


def _labels(asked: Sequence[tuple[str, str]], is_right: Callable[[int], bool]) -> list[dict[str, Any]]:
    return [
        {
            "context": [context],
            "response": reply,
            "label": "right" if is_right(place) else "wrong",
            "dialogue": f"{place}",
        }
        for place, (context, reply) in enumerate(asked)
    ]


def _calibrated(base: Path, output: Path, *files: Path, seen: bool = False) -> Any:
    return train_calibration(str(base), Data(files), output, seen=seen, on_survey=lambda *_: None)


def _ece(probabilities: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Expected calibration error over ten bins of equal width (Guo et al. 2017, arXiv 1706.04599)."""
    bins = np.minimum((10 * probabilities).astype(int), 9)
    gaps = [abs((probabilities - right)[bins == each].sum()) for each in set(bins.tolist())]
    return float(sum(gaps)) / len(right)


@pytest.mark.slow
def test_labels_of_a_shifted_world_calibrate_what_comes_later(base: Path, tmp_path: Path) -> None:
    """Most first replies are right there, which lists with random wrong replies do not tell."""
    draw = np.random.default_rng(0)
    words = [f"w{n} w{m}" for n in range(20) for m in range(20, 40)]
    rows = [{"context": [f"w1 {n}"], "response": reply} for n, reply in enumerate(words)]
    pool = write_rows(tmp_path / "pool.jsonl", rows)
    first = _calibrated(base, tmp_path / "lists", write_rows(tmp_path / "orders.jsonl", orders(100)))
    asked = _asked(2 * LATER, 1)
    ranker, statistics = polyrank.load(base), Statistics.of(words)
    scores = np.array([ranker.score_texts(Conversation.of(said), [reply], statistics)[0] for said, reply in asked])
    truth = 1 / (1 + np.exp(-(1.0 + 1.5 * (scores - scores.mean()))))
    right = draw.random(len(truth)) < truth
    before, later = slice(0, LATER), slice(LATER, None)
    labels = write_rows(tmp_path / "labels.jsonl", _labels(asked[before], lambda place: bool(right[place])))
    second = _calibrated(base, tmp_path / "labelled", labels, pool)

    def error(calibration: Any) -> float:
        return _ece(relevance(scores, Line(*calibration.line(words=True)))[later], right[later])

    assert second.calibration.prior == right[before].mean()
    assert second.calibration.slope == pytest.approx(1.5, rel=0.35)
    assert second.fingerprint == first.fingerprint
    assert error(second.calibration) < 0.08 < 0.3 < error(first.calibration)


@pytest.mark.parametrize(("labels", "said"), [
    (49, "49 labels are too few, 50 are needed; wait for more feedback"),
    (60, "4 labels say right and 56 wrong: too few of one kind; wait for more feedback"),
])  # fmt: skip
def test_labels_that_cannot_tell_calibrate_nothing(base: Path, tmp_path: Path, labels: int, said: str) -> None:
    file = write_rows(tmp_path / "labels.jsonl", _labels(_asked(labels, 2), lambda place: place < 4))
    with pytest.raises(InvalidInput, match=f"^nothing is written: {said}$"):
        _calibrated(base, tmp_path / "out", file)
    assert not (tmp_path / "out").exists()


def test_labels_are_not_for_what_a_model_has_seen(base: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "labels.jsonl", _labels(_asked(60, 2), lambda place: place % 2 == 0))
    with pytest.raises(InvalidInput, match="labels, which no model is trained on: give no --seen"):
        _calibrated(base, tmp_path / "out", file, seen=True)


@pytest.mark.parametrize("row", [{"response": "w1", "label": "perhaps"}, {"label": "right"}], ids=str)
def test_another_class_among_labels_is_refused(base: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    rows = [*_labels(_asked(60, 2), lambda place: place % 2 == 0), {"context": ["w1"], **row}]
    with pytest.raises(InvalidInput, match=r"labels\.jsonl:61: a label must be right or wrong, beside a response$"):
        _calibrated(base, tmp_path / "out", write_rows(tmp_path / "labels.jsonl", rows))
