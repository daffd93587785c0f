"""A calibration by labels: first replies that people took for right or wrong."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import write_rows
from tiny import write_checkpoint
from tiny_training import orders

import polyrank
from polyrank.model.config import LexicalConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.lexical.words import Statistics
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.config import Data
from polyrank.model.training.run import train_calibration
from polyrank.service.ranking.selection import Line, relevance

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
