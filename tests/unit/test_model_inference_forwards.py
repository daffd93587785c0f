"""Forward passes and what follows them, on a device that is not main memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import write_checkpoint
from torch import Tensor

import polyrank
from polyrank.model.rankers.networks import LateRanker
from polyrank.model.registry import ARCHITECTURES


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [] if state is None else [each for field in state for each in tensors(field)]


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.embeds])
def test_what_was_kept_is_compared_where_the_network_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = polyrank.load(write_checkpoint(tmp_path, name, 0, architecture=name))
    assert isinstance(ranker, LateRanker)
    [context], kept = ranker.represent_contexts([[2, 5, 6, 3]]), ranker.represent_candidates([[2, 5, 3], [2, 6, 7, 3]])
    seen: list[str] = []

    def late_scores(*states: Any) -> Tensor:
        seen.extend(each.device.type for each in tensors(states))
        return torch.tensor([[1.0, 2.0]])

    ranker.encoder.to("meta")
    monkeypatch.setattr(ranker.encoder, "late_scores", late_scores)
    assert ranker.late_scores(context, kept).tolist() == [1, 2]
    assert len(seen) >= 3
    assert set(seen) == {"meta"}
