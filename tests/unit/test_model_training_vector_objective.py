"""A batch's loss: correct replies are no negatives, a teacher's share, what a look measures."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import write_rows
from fakes import EVIDENCE
from tiny import write_checkpoint
from tiny_training import dialogue, orders, settings, write_first_stage

import polyrank
from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.rankers.load import load_cross
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import trainable
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import Dialogue, read_dialogues
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.data import Corpus, WordsInLoss, survey
from polyrank.model.training.loop import Look, look, selection_batches
from polyrank.model.training.objective import Batch, Measured, Objective, code_cosine
from polyrank.model.training.pair_objective import PairObjective
from polyrank.model.training.student import Student, start
from polyrank.model.training.vector_objective import VectorObjective

CPU = torch.device("cpu")


def made(base: Path, **fields: Any) -> tuple[Student, TrainConfig]:
    config = settings(base, **fields)
    student = start(config)
    student.encoder.eval()
    return student, config


def objective(student: Student, config: TrainConfig) -> Objective:
    kind = PairObjective if config.architecture == "cross" else VectorObjective
    return kind(student, config, CPU)


def measured(base: Path, examples: list[Dialogue], **fields: Any) -> Measured:
    student, config = made(base, **fields)
    return objective(student, config).measure(Batch(examples, [], random.Random(0)))


def stepped(base: Path, examples: list[Dialogue], **fields: Any) -> tuple[float, list[torch.Tensor]]:
    student, config = made(base, **fields)
    batch = Batch(examples, [], random.Random(0))
    loss = objective(student, config).step(batch, lambda each: each.backward())
    return loss, [each.grad for each in student.encoder.parameters() if each.grad is not None]


NOTHING_WRONG = {
    "the same reply": [dialogue("w1", "w2 w3"), dialogue("w5 w6", " W2  w3".lower()), dialogue("w7", "w2\tw3 ")],
    "both right": [dialogue("w1 w4", "w2"), dialogue("w1 w4 ", "w3")],
    "a listed one is the other's": [dialogue("w1", "w2", "w3", "w2 "), dialogue("w1", "w3")],
}


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
@pytest.mark.parametrize("name", NOTHING_WRONG)
def test_where_no_reply_is_wrong_there_is_no_loss_and_no_gradient(base: Path, name: str, architecture: str) -> None:
    loss, gradients = stepped(base, NOTHING_WRONG[name], architecture=architecture)
    assert loss == 0
    assert gradients
    assert all((each == 0).all() for each in gradients)
    wrong = [*NOTHING_WRONG[name], dialogue("w30 w31", "w32")]
    loss, gradients = stepped(base, wrong, architecture=architecture)
    # A row that has no negative leaves none to the others of a cross batch, whose rows are of one width.
    assert loss > 0.01
    assert any((each != 0).any() for each in gradients)


def test_the_loss_is_that_of_the_rankers_scores(base: Path, tmp_path: Path) -> None:
    """The scores of a step are those that the checkpoint serves."""
    examples = [dialogue(["w1 w2", "w3"], "w4"), dialogue("w5", "w6 w7 w8"), dialogue("w9 w10", "w11", "w12 w13")]
    replies = ["w4", "w6 w7 w8", "w11", "w12 w13"]
    for architecture in ("bi", "poly"):
        student, _ = made(base, architecture=architecture)
        student.save(tmp_path / architecture, {})
        ranker = polyrank.load(tmp_path / architecture)
        total = 0.0
        for gold, example in enumerate(examples):
            turns = [turn.text for turn in example.conversation.turns]
            scores = torch.tensor([score for _, score in sorted(ranker.rank(turns, replies))])
            total -= scores.log_softmax(0)[gold].item()
        found = measured(base, examples, architecture=architecture)
        assert found.loss == pytest.approx(total / 3, rel=1e-4)


@pytest.mark.parametrize("residual", [False, True])
def test_a_cross_loss_is_that_of_the_rankers_scores(base: Path, tmp_path: Path, residual: bool) -> None:
    cross: dict[str, Any] = {"architecture": "cross", "negatives": 2}
    if residual:
        cross |= {"first_stage": str(write_first_stage(base)), "n_codes": None}
    examples = [dialogue("w1 w2", "w4", "w6", "w7 w8"), dialogue(["w5", "w9"], "w10", "w1", "w2 w3 w4")]
    student, _ = made(base, **cross)
    student.save(tmp_path / "cross", {})
    ranker = polyrank.load(tmp_path / "cross")
    lists, points = 0.0, 0.0
    for example in examples:
        turns = [turn.text for turn in example.conversation.turns]
        scores = torch.tensor(
            [score for _, score in sorted(ranker.rank(turns, [example.response, *example.negatives]))]
        )
        lists -= scores.log_softmax(0)[0].item()
        points -= torch.nn.functional.logsigmoid(scores * torch.tensor([1, -1, -1])).sum().item()
    assert measured(base, examples, **cross).loss == pytest.approx(lists / 2, rel=1e-4)
    assert measured(base, examples, **cross, loss="pointwise").loss == pytest.approx(points / 2, rel=1e-4)


def test_words_of_a_first_stage_count_in_the_loss_as_a_checkpoint_serves_them(base: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "orders.jsonl", orders(80))
    corpora = [survey(data, False, 0.0, 1000)[0]] * 2
    examples = [dialogue("where is ord-7-x", "ord-7-x came", "w6", "no"), dialogue(["w5", "w9"], "w5", "w1", "ord-3-x")]
    first_stage = write_first_stage(base, evidence=EVIDENCE)
    student, config = made(base, architecture="cross", negatives=2, first_stage=str(first_stage), n_codes=None)
    assert student.config.evidence is None
    replace(student, config=replace(student.config, evidence=EVIDENCE)).save(tmp_path / "cross", {})
    ranker, pool = load_cross(tmp_path / "cross"), 2 * list(corpora[0].replies())
    losses = []
    for example in examples:
        texts = [example.response, *example.negatives]
        scores = torch.from_numpy(ranker.score_texts(example.conversation, texts, ranker.statistics(pool)))
        losses.append(-scores.log_softmax(0)[0].item())
    batch = Batch(examples, [], random.Random(0))
    found = PairObjective(student, config, CPU, WordsInLoss(LexicalScore(EVIDENCE), corpora)).measure(batch)
    assert found.loss == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert found.loss != pytest.approx(objective(student, config).measure(batch).loss, rel=0.1)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_words_count_in_the_loss_of_a_retriever_as_a_checkpoint_serves_them(
    base: Path, tmp_path: Path, architecture: str
) -> None:
    data = write_rows(tmp_path / "orders.jsonl", orders(80))
    corpora = [survey(data, False, 0.0, 1000)[0]]
    examples = [dialogue("where is ord-7-x", "ord-7-x came"), dialogue(["w5", "w9"], "w5"), dialogue("a", "ord-3-x")]
    student, config = made(base, architecture=architecture)
    replace(student, config=replace(student.config, evidence=EVIDENCE)).save(tmp_path / "model", {})
    ranker, pool = polyrank.load(tmp_path / "model"), list(corpora[0].replies())
    losses = []
    for row, example in enumerate(examples):
        texts = [each.response for each in examples]
        scores = torch.from_numpy(ranker.score_texts(example.conversation, texts, ranker.statistics(pool)))
        losses.append(-scores.log_softmax(0)[row].item())
    words = WordsInLoss(LexicalScore(EVIDENCE), corpora)
    found = VectorObjective(student, config, CPU, words).measure(Batch(examples, [], random.Random(0)))
    assert found.loss == pytest.approx(sum(losses) / 3, rel=1e-4)
    assert found.loss != pytest.approx(measured(base, examples, architecture=architecture).loss, rel=0.05)


def test_a_look_counts_gold_replies_ahead_of_all_that_may_count(base: Path) -> None:
    """Replies that share the context's words, from a base both of whose sides are equal."""
    examples = [dialogue(f"w{n} w{n + 1} w{n + 2}", f"w{n} w{n + 1} w{n + 2}") for n in (0, 10, 20)]
    found = measured(base, examples)
    assert (found.first, found.rows) == (3, 3)
    shifted = zip(examples, examples[1:] + examples[:1], strict=True)
    turned = [dialogue(one.conversation.turns[0].text, other.response) for one, other in shifted]
    assert measured(base, turned).first == 0
    # The gold reply of the second is right for the first too: what is ahead of the first's own gold reply is no error.
    assert measured(base, [dialogue("w0 w1 w2", "w30 w0"), dialogue("w0 w1 w2", "w0 w1 w2")]).first == 2


@pytest.mark.parametrize("architecture", ["bi", "cross"])
@pytest.mark.parametrize(("score", "share"), [(math.nan, 0.0), (0.0, 1.0), (math.inf, 0.0)])
def test_of_gold_replies_that_tie_a_share_is_first(
    base: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, score: float, share: float
) -> None:
    """Of n that are all alike 1 / n is first, wherever the gold reply stands; no numbers rank nothing."""
    monkeypatch.setattr(CrossEncoder, "joint_scores", lambda _, batch: torch.full((len(batch.ids),), score))
    monkeypatch.setattr(
        VectorEncoder, "first_scores", lambda _, b, n: torch.full((len(b.first.mask), len(n.first)), score)
    )
    examples = [dialogue("w1", "w2"), dialogue("w5 w6", "w3 w9"), dialogue("w7", "w8")]
    found = measured(base, examples, architecture=architecture)
    assert (found.first, found.rows) == (pytest.approx(share), 3)
    assert measured(base, examples[:2], architecture=architecture).first == share


@pytest.mark.parametrize(
    ("architecture", "weight"), [("cross", 0.0), ("cross", 1.0), *((name, 0.3) for name in trainable())]
)
def test_a_teachers_share_of_the_loss(base: Path, tmp_path: Path, architecture: str, weight: float) -> None:
    write_checkpoint(tmp_path, "teacher", 9, architecture=architecture)
    teacher = polyrank.load(tmp_path / "teacher")
    examples = [dialogue("w1 w2", "w4", "w6", "w7 w8"), dialogue(["w5", "w9"], "w10", "w1", "w2 w3")]
    student, config = made(base, teacher=str(tmp_path / "teacher"), teacher_weight=weight)
    student.save(tmp_path / "student", {})
    ranker = polyrank.load(tmp_path / "student")
    assert isinstance(ranker, VectorRanker)
    alone = measured(base, examples).loss
    taught = 0.0
    for example in examples:
        turns, texts = [turn.text for turn in example.conversation.turns], [example.response, *example.negatives]
        p, q = (
            torch.tensor([score for _, score in sorted(each.rank(turns, texts))]).log_softmax(0)
            for each in (teacher, ranker)
        )
        taught += float((p.exp() * (p - q)).sum()) / 2
    found = VectorObjective(student, config, CPU).measure(Batch(examples, [], random.Random(0)))
    assert found.loss == pytest.approx((1 - weight) * alone + weight * taught, rel=1e-4)
    assert abs(taught - alone) > 0.01


def test_a_teacher_does_not_learn(base: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "teacher", 9, architecture="cross")
    student, config = made(base, teacher=str(tmp_path / "teacher"))
    examples = [dialogue("w1 w2", "w4", "w6"), dialogue("w9", "w10", "w1")]
    taught = VectorObjective(student, config, CPU)
    taught.step(Batch(examples, [], random.Random(0)), lambda each: each.backward())
    assert all(each.grad is None for each in taught.models["teacher"].encoder.parameters())


def test_code_cosine_is_the_mean_over_pairs_of_vectors_that_exist() -> None:
    torch.manual_seed(0)
    vectors, mask = torch.randn(3, 4, 5), torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]]).bool()
    per_row = []
    for row in range(3):
        there = [vectors[row, at] for at in range(4) if mask[row, at]]
        pairs = [(a, b) for a in range(len(there)) for b in range(len(there)) if a != b]
        cosines = [torch.cosine_similarity(there[a], there[b], dim=0).item() for a, b in pairs]
        per_row.append(sum(cosines) / len(cosines) if cosines else 0.0)
    assert code_cosine(ContextCodes(vectors, mask)) == pytest.approx(sum(per_row) / 3, abs=1e-6)
    same = vectors[:, :1].expand(-1, 4, -1)
    assert code_cosine(ContextCodes(same, torch.ones(3, 4, dtype=torch.bool))) == pytest.approx(1.0, abs=1e-6)


class Counting:
    """Stands in for an objective: notes whether dropout was on."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        self._encoder = encoder
        self.draws: list[float] = []

    def measure(self, batch: Batch) -> Measured:
        assert not self._encoder.training
        self.draws.append(batch.draw.random())
        loss = float(batch.examples[0])
        return Measured(loss, 1, len(batch.examples), [9.0, loss], 0.5)


def test_a_look_weighs_batches_by_their_rows_and_leaves_the_encoder_in_training() -> None:
    encoder = torch.nn.Linear(1, 1).train()
    objective = Counting(encoder)
    found = look(encoder, objective, [[1.0, 0, 0], [3.0]])
    assert found == Look(loss=pytest.approx(1.5), rescaled_loss=pytest.approx(1.5), recall_at_1=0.5, code_cosine=0.5)
    assert encoder.training
    first = objective.draws
    look(encoder, again := Counting(encoder), [[1.0, 0, 0], [3.0]])
    assert again.draws == first, "every look draws alike"


@pytest.mark.parametrize(("examples", "sizes"), [(1, [1]), (3, [3]), (6, [6]), (7, [4, 3]), (8, [4, 4]), (9, [4, 5])])
def test_selection_batches_are_like_those_of_training(examples: int, sizes: list[int], tmp_path: Path) -> None:
    rows = [{"dialogue": f"d{n}", "context": [f"{n}"], "response": f"{n}"} for n in range(examples)]
    path = write_rows(tmp_path / "data.jsonl", rows)
    conversations = identified(read_dialogues(path))[1]
    held = Corpus(path, False, 1.0, conversations, np.ones(examples, bool))
    found = selection_batches([held, held], 4)
    assert [len(batch) for batch in found] == 2 * sizes
    names = [each.response for batch in found[: len(sizes)] for each in batch]
    assert sorted(names, key=int) == [str(n) for n in range(examples)]
    assert selection_batches([held, held], 4) == found


def test_replies_of_others_are_negatives_of_all_rows(base: Path) -> None:
    rows = [dialogue("w1 w2", "w4"), dialogue("w9", "w10")]
    others = [dialogue("w5", "w6"), dialogue("w9", "w11"), dialogue("w3", "W4 ")]
    student, config = made(base)
    loss = objective(student, config).step(Batch(rows, others, random.Random(0)), lambda each: None)
    student.save(base.parent / "with others", {})
    ranker = polyrank.load(base.parent / "with others")
    expected = [
        -torch.tensor([score for _, score in sorted(ranker.rank(context, texts))]).log_softmax(0)[0].item()
        for context, texts in (
            (["w1 w2"], ["w4", "w10", "w6", "w11"]),
            (["w9"], ["w10", "w4", "w6"]),
        )  # w11 is right too
    ]
    assert loss == pytest.approx(sum(expected) / 2, rel=1e-4)
