"""Every architecture can learn a few dialogues by heart."""

import random
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from tiny import write_base
from tiny_training import dialogue, settings

from polyrank.model.registry import ARCHITECTURES, trainable
from polyrank.model.training.objective import Batch
from polyrank.model.training.student import start

pytestmark = pytest.mark.slow

PAIRS = 64
MOST_STEPS = 150
OPTIONS: dict[str, dict[str, Any]] = {
    "colbert": {"shared_encoder": True},
    "cross": {"negatives": 7},
    "deformer": {"upper_layers": 1},
}
RATES = {"colbert": 3e-3, "deformer": 2e-3}
AT_ONCE = {"deformer": 16}  # where a step reads each context beside each reply, several small ones learn sooner


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
