"""A step's gradients do not depend on how it is cut into chunks, on who is beside whom, or on caching."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import dialogue, write_first_stage
from tiny_training import settings as training_settings
from torch import Tensor, nn

from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.objective import Batch
from polyrank.model.training.student import Student, start

ONE_CHUNK = 10**6

KINDS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi"},
    "bi shared": {"architecture": "bi", "shared_encoder": True},
    "bi first": {"architecture": "bi", "reduction": "first", "normalize": False, "score_scale": 0.1},
    "colbert": {"architecture": "colbert", "normalize": True, "score_scale": 5.0},
    "colbert shared": {"architecture": "colbert", "shared_encoder": True, "first_weight": 0.0, "score_scale": 5.0},
    "mix": {"architecture": "mix", "normalize": True, "score_scale": 5.0},
    "mix two": {"architecture": "mix", "rows": 2, "row_strategy": "inputs", "interaction_layers": [-2, -1]},
    "mix alone": {"architecture": "mix", "residual": False, "first_weight": 0.5, "shared_encoder": True},
    "deformer": {"architecture": "deformer", "normalize": True, "score_scale": 5.0},
    "deformer alone": {"architecture": "deformer", "residual": False, "upper_layers": 1, "shared_encoder": True},
    "virt": {"architecture": "virt", "normalize": True, "score_scale": 5.0},
    "virt alone": {"architecture": "virt", "residual": False, "first_weight": 0.5, "shared_encoder": True},
    "cross": {"architecture": "cross", "negatives": 3},
    "cross pointwise": {"architecture": "cross", "negatives": 2, "loss": "pointwise"},
    "residual": {"architecture": "cross", "first_stage": "", "n_codes": None, "negatives": 3},
}
for _vectors in ("codes", "first", "last", "last+first"):
    for _n_codes in (2, 12):  # 12: more than most contexts below have tokens
        KINDS[f"poly {_vectors} {_n_codes}"] = {
            "architecture": "poly", "context_vectors": _vectors, "n_codes": _n_codes,
            "shared_encoder": _vectors == "last",
        }  # fmt: skip

words = st.integers(0, 39).map(lambda n: f"w{n}")
texts = st.lists(words, min_size=1, max_size=9).map(" ".join)
examples_of = st.lists(
    st.builds(dialogue, st.lists(texts, min_size=1, max_size=2), texts),
    min_size=2,
    max_size=6,
    unique_by=lambda each: each.response,
)
budgets = st.integers(1, 60)


@pytest.fixture(scope="module", autouse=True)
def in_double_precision() -> Iterator[None]:
    """What is left of a difference then is no rounding: sums in another order differ by 1e-5 in single precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, base: Path) -> "Kind":
    return Kind(base, KINDS[request.param])


class Kind:
    """One kind of model, and what a step over it gives."""

    def __init__(self, base: Path, fields: dict[str, Any]) -> None:
        self._fields = dict(fields)
        if "first_stage" in fields:
            self._fields["first_stage"] = str(write_first_stage(base))
        self._base = base
        self.student = cache(self._started)

    def _started(self) -> Student:
        student = start(training_settings(self._base, **{**self._fields, "dropout": None}))
        student.encoder.double()
        with torch.no_grad():
            for parameter in student.encoder.parameters():  # two towers of the same base are equal: tell them apart
                parameter += 0.02 * torch.randn_like(parameter)
        return student

    def step(
        self, examples: list[Dialogue], budget: int, *, cached: bool = False, dropout: bool = False
    ) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradients."""
        student = self.student()
        config = training_settings(
            self._base, **{**self._fields, "chunk_tokens": budget, "gradient_cache": cached, "dropout": None}
        )
        kind = resolve_name(ARCHITECTURES[config.architecture].objective or "")
        objective = kind(student, config, torch.device("cpu"))
        student.encoder.zero_grad()
        with dropping(student.encoder, dropout):
            torch.manual_seed(1)
            batch = Batch(examples, [], random.Random(2))
            loss = objective.step(batch, lambda each: each.backward())
        found = {name: each.grad.clone() for name, each in student.trainable().items() if each.grad is not None}
        assert set(found) == set(student.trainable()), "every parameter has its gradient"
        return loss, found


@contextmanager
def dropping(encoder: nn.Module, dropout: bool) -> Iterator[None]:
    encoder.train(dropout)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def assert_same(one: tuple[float, dict[str, Tensor]], other: tuple[float, dict[str, Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-9, abs=1e-9)
    size = max(float(each.abs().max()) for each in other[1].values())
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-9, atol=1e-9 * max(size, 1e-3), msg=name)


@settings(max_examples=cases(8))
@given(examples_of, budgets)
def test_caching_gives_the_plain_steps_gradients_with_dropout(kind: Kind, drawn: list[Dialogue], budget: int) -> None:
    plain = kind.step(drawn, budget, dropout=True)
    assert_same(kind.step(drawn, budget, dropout=True, cached=True), plain)


@settings(max_examples=cases(8))
@given(examples_of, budgets)
def test_chunks_give_what_one_chunk_gives(kind: Kind, drawn: list[Dialogue], budget: int) -> None:
    """A budget of one token encodes each sequence alone, without any padding: padding leaks nowhere."""
    whole = kind.step(drawn, ONE_CHUNK)
    assert_same(kind.step(drawn, 1), whole)
    assert_same(kind.step(drawn, budget), whole)
    assert_same(kind.step(drawn, budget, cached=True), whole)


LATE = [name for name in KINDS if KINDS[name]["architecture"] != "cross"]


@pytest.mark.parametrize("kind", LATE, indirect=True)
@settings(max_examples=cases(8))
@given(examples_of, budgets, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_is_nothing(kind: Kind, drawn: list[Dialogue], budget: int, draw: random.Random) -> None:
    turned = list(drawn)
    draw.shuffle(turned)
    assert_same(kind.step(turned, budget), kind.step(drawn, ONE_CHUNK))


@pytest.mark.parametrize("kind", LATE, indirect=True)
@settings(max_examples=cases(8))
@given(st.lists(st.integers(4, 40), min_size=1, max_size=6), st.lists(st.integers(4, 40), min_size=7, max_size=20))
def test_a_longer_neighbour_changes_no_score_and_no_gradient(kind: Kind, short: list[int], long: list[int]) -> None:
    encoder = kind.student().encoder
    assert isinstance(encoder, VectorEncoder)

    def scored(*neighbours: list[int]) -> tuple[float, dict[str, Tensor]]:
        contexts = encoder.context_batch(encoder.config, [short, *neighbours], encoder.context.pad_id)
        replies = encoder.candidate_batch(encoder.config, [[42, 43], *neighbours], encoder.candidate.pad_id)
        encoder.zero_grad()
        with dropping(encoder, False):
            encoded = encoder.encode_contexts(TensorBatch.of(contexts))
            score = encoder.late_scores(encoded, encoder.encode_candidates(TensorBatch.of(replies)))[0, 0]
            score.backward()
        return score.item(), {
            name: each.grad.clone() for name, each in encoder.named_parameters() if each.grad is not None
        }

    assert_same(scored(long), scored())
