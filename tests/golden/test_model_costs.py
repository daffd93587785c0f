"""The formulas of cost against the multiplications that torch counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import DIM, write_base
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import polyrank
from polyrank.model.config import DeformerConfig, MixConfig, ModelConfig
from polyrank.model.rankers.late import LateRanker

KINDS: dict[str, dict[str, Any]] = {
    "colbert": {"architecture": "colbert"},
    "virt": {"architecture": "virt"},
    "mix, a": {"architecture": "mix"},
    "mix, b": {"architecture": "mix", "mix": MixConfig(layers=(-2, -1))},
    "mix, c": {"architecture": "mix", "mix": MixConfig(rows=2, layers=(-2, -1))},
    "deformer": {"architecture": "deformer", "deformer": DeformerConfig(upper=1)},
    "deformer, two": {"architecture": "deformer", "deformer": DeformerConfig(upper=2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_stage_multiplies_as_often_as_its_formula_says(kind: str, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 7, inner=4 * DIM)
    config = ModelConfig(base_name="", max_context_tokens=60, max_candidate_tokens=16, **KINDS[kind])
    ranker = polyrank.from_base(str(base), config, backend="torch")
    assert isinstance(ranker, LateRanker)
    context = [int(each) for each in np.arange(40) % 30 + 4]
    [encoded], stored = ranker.represent_contexts([context]), ranker.represent_candidates([context[:9]] * 40)
    assert stored.counts is not None

    def counted(candidates: int) -> float:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others are not counted on a CPU
            ranker.late_scores(encoded, stored.take(np.arange(candidates)))
        return counter.get_total_flops() / 2

    own = (counted(40) - counted(20)) / 20  # without what is done once for the context
    cost = ranker.encoder.late_cost(ranker.config, DIM, len(context), int(stored.counts[0]))
    assert own == pytest.approx(cost, rel=0.05)
