"""What holds for every architecture: its row is true, and a score depends on its pair alone, in every way to it."""

import random
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from tiny import write_base
from tiny_training import dialogue, settings, trained

import polyrank
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.rankers.networks import CrossRanker, NetworkRanker
from polyrank.model.registry import ARCHITECTURES, trainable
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import TrainConfig, settings_of
from polyrank.model.training.objective import Batch, Objective
from polyrank.model.training.student import start

CONTEXTS = ["w1", "w2 w3 w4 w5", "w30 w31 w32 w33 w34 w35 w36 w37 w38"]
REPLIES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10", "w39 w38 w37"]
MORE = ["[MASK]", "[unused0]", "[unused1]"]
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
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
    ranker: NetworkRanker = polyrank.load(model)
    ranked = [scores(ranker.rank(text, REPLIES)) for text in CONTEXTS]
    assert isinstance(ranker, CrossRanker) != ARCHITECTURES[architecture].retrieves
    np.testing.assert_allclose(matrix, ranked, rtol=0, atol=TOLERANCE)


def test_only_the_lexical_row_has_no_network() -> None:
    assert {name for name, row in ARCHITECTURES.items() if row.encoder is None} == {"lexical"}
    assert set(ARCHITECTURES) - set(trainable()) == {"lexical"}
    assert not ARCHITECTURES["lexical"].embeds
    with pytest.raises(InvalidInput, match=f"architecture is 'lexical'; give {', '.join(trainable())}"):
        TrainConfig.of(architecture="lexical", base="b")


@pytest.mark.parametrize("name", trainable())
def test_a_rows_references_lead_to_what_it_says(name: str) -> None:
    row = ARCHITECTURES[name]
    assert issubclass(resolve_name(row.encoder), VectorEncoder if row.retrieves else PairEncoder)
    assert issubclass(resolve_name(row.objective), Objective)
    assert issubclass(settings_of(name), resolve_name(row.settings))
    assert row.options is None or row.options.of == name


@pytest.mark.parametrize("name", trainable())
def test_a_ranker_can_do_what_its_row_says(name: str, tmp_path: Path) -> None:
    sizes = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture=name, base_name="", **sizes)
    ranker = polyrank.from_base(str(write_base(tmp_path / "base", 0)), config)
    assert ranker.architecture == name
    assert ranker.retrieves == ARCHITECTURES[name].retrieves == hasattr(ranker, "encode_candidates")
    assert ranker.retrieves != hasattr(ranker, "score_pairs")


PAIRS = 64
MOST_STEPS = 150
OPTIONS: dict[str, dict[str, Any]] = {
    "colbert": {"shared_encoder": True}, "cross": {"negatives": 7}, "deformer": {"upper_layers": 1},
    "uni": {"negatives": 7},
}  # fmt: skip
RATES = {"colbert": 3e-3, "deformer": 2e-3}
AT_ONCE = {"deformer": 16}  # where a step reads each context beside each reply, several small ones learn sooner


@pytest.mark.slow
@pytest.mark.parametrize("name", trainable())
def test_sixty_four_pairs_are_learnt_by_heart(name: str, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 3, ["[MASK]", "[unused0]", "[unused1]"])
    config = settings(base, architecture=name, batch_size=PAIRS, **OPTIONS.get(name, {}))
    torch.manual_seed(5)
    student = start(config)
    objective = resolve_name(ARCHITECTURES[name].objective or "")(student, config, torch.device("cpu"))
    pairs = [(at // 8, at % 8) for at in range(PAIRS)]
    examples = [dialogue(f"w{a} w{b + 8}", f"w{a + 16} w{b + 24}") for a, b in pairs]
    optimizer = torch.optim.AdamW(student.trainable().values(), lr=RATES.get(name, 5e-3))
    first, size, order = 0, AT_ONCE.get(name, PAIRS), random.Random(0)
    every = 5 * PAIRS // size
    for step in range(MOST_STEPS * PAIRS // size):
        optimizer.zero_grad()
        batch = Batch(order.sample(examples, size), [], random.Random(step))
        objective.step(batch, lambda loss: loss.backward())
        optimizer.step()
        whole = Batch(examples, [], random.Random(0))
        if step % every == every - 1 and (first := objective.measure(whole).first) == PAIRS:
            break
    assert first == PAIRS


def test_a_copy_of_a_checkpoint_ranks_as_it_does(checkpoint: str, tmp_path: Path) -> None:
    ranker = polyrank.load(checkpoint)
    ranker.save(tmp_path / "copy")
    copy = polyrank.load(tmp_path / "copy")
    assert (copy.fingerprint, copy.config) == (ranker.fingerprint, ranker.config)
    assert copy.rank(CONTEXTS[1], REPLIES) == ranker.rank(CONTEXTS[1], REPLIES)


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.options])
def test_what_its_block_has_not_or_of_another_type_is_refused_by_its_name(name: str) -> None:
    row = ARCHITECTURES[name]
    raw = ModelConfig(architecture=name, base_name="", own=row.options()).to_json()
    assert ModelConfig.from_json(raw).own == row.options()
    for field in raw[name]:
        with pytest.raises(CheckpointInvalid, match=f"{name}.{field} is "):
            ModelConfig.from_json({**raw, name: {**raw[name], field: {}}})
    with pytest.raises(CheckpointInvalid, match=f"unknown field {name}.more"):
        ModelConfig.from_json({**raw, name: {"more": 1}})
