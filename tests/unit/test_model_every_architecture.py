"""What holds for every architecture: a score depends on its pair alone, and is the same in every way to it."""

import random
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from tiny import write_base
from tiny_training import dialogue, settings, trained

import polyrank
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.rankers.networks import CrossRanker, NetworkRanker
from polyrank.model.registry import ARCHITECTURES, trainable
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.objective import Batch
from polyrank.model.training.student import start

CONTEXTS = ["w1", "w2 w3 w4 w5", "w30 w31 w32 w33 w34 w35 w36 w37 w38"]
REPLIES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10", "w39 w38 w37"]
MORE = ["[MASK]", "[unused0]", "[unused1]"]
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[*trainable(), "lexical"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "lexical":
        return "lexical"
    parent = tmp_path_factory.mktemp(request.param)
    return str(trained(write_base(parent / "base", 3, MORE), parent / "model", architecture=request.param))


def scores(ranked: list[tuple[int, float]]) -> list[float]:
    """What `rank` gives, in the order of the replies."""
    return [score for _, score in sorted(ranked)]


def test_rank_gives_a_pair_what_evaluate_gives_and_what_it_gets_alone(checkpoint: str) -> None:
    ranker = polyrank.load(checkpoint)
    together = np.array([scores(ranker.rank(text, REPLIES)) for text in CONTEXTS])
    assert np.ptp(together, axis=1).max() > 10 * TOLERANCE
    lists = [Dialogue(Conversation.of(text), REPLIES[0], candidates=tuple(REPLIES)) for text in CONTEXTS]
    measured = rank_lists(ranker, lists, lambda *_: None)
    np.testing.assert_allclose(measured.scores, together, rtol=0, atol=TOLERANCE)
    if checkpoint == "lexical":  # how rare a word is depends on all texts
        return
    alone = [[scores(ranker.rank(text, [reply]))[0] for reply in REPLIES] for text in CONTEXTS]
    np.testing.assert_allclose(alone, together, rtol=0, atol=TOLERANCE)
    turned = [scores(ranker.rank(text, REPLIES[::-1]))[::-1] for text in CONTEXTS]
    np.testing.assert_allclose(turned, together, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("architecture", trainable())
def test_the_training_matrix_holds_the_scores_of_rank(architecture: str, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 3, MORE)
    model = trained(base, tmp_path / "model", architecture=architecture)
    config = settings(model, architecture=architecture, negatives=len(REPLIES) - 1)
    student = start(config)
    student.encoder.eval()
    examples = [dialogue(text, REPLIES[0], *REPLIES[1:]) for text in CONTEXTS]
    objective = resolve_name(ARCHITECTURES[architecture].objective or "")(student, config, torch.device("cpu"))
    prepared = objective.prepare(Batch(examples, [], random.Random(0)))
    with torch.no_grad():
        matrix = prepared.scored([encode() for encode in prepared.chunks]).scores.numpy()
    ranker: NetworkRanker = polyrank.load(model)  # type: ignore[assignment]
    ranked = [scores(ranker.rank(text, REPLIES)) for text in CONTEXTS]
    assert isinstance(ranker, CrossRanker) == (architecture == "cross")
    np.testing.assert_allclose(matrix, ranked, rtol=0, atol=TOLERANCE)
