"""What a residual Cross-encoder does beside adding two scores (tests/golden)."""

from pathlib import Path

import pytest
import torch
from tiny import CLS, SEP, write_checkpoint

import model
from model.pairs import Pairs
from model.residual import ResidualEncoder

LONG = [CLS, *range(10, 30), SEP]
PAIRS = Pairs(
    [[CLS, 5, SEP], LONG], [[CLS, 7, SEP], LONG[:12], [CLS, 7, SEP], [CLS, 8, 9, SEP]], [0, 0, 1, 1], prefix=1
)


@pytest.fixture
def encoder(tmp_path: Path) -> ResidualEncoder:
    loaded = model.load(write_checkpoint(tmp_path, "residual", 3, architecture="cross", residual=True, n_codes=3))
    assert isinstance(loaded.encoder, ResidualEncoder)
    return loaded.encoder


def test_company_changes_no_score(encoder: ResidualEncoder) -> None:
    with torch.inference_mode():
        together = encoder.score_pairs(PAIRS)
        alone = torch.cat([encoder.score_pairs(PAIRS.take([each])) for each in range(4)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_no_gradient_and_no_dropout_reach_the_poly_encoder(encoder: ResidualEncoder) -> None:
    encoder.train()
    assert encoder.encoder.training
    assert not any(each.training for each in encoder.poly.modules())
    encoder.score_pairs(PAIRS).sum().backward()  # type: ignore[no-untyped-call]
    assert encoder.head.weight.grad is not None
    assert all(each.grad is None and not each.requires_grad for each in encoder.poly.parameters())
    assert not encoder.eval().encoder.training
