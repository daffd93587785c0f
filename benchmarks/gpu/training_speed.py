"""What a training step takes: chat-poly's recipe for a few steps, on random words and random weights."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.gpu.measured import trained
from benchmarks.gpu.ship import config_of
from benchmarks.random_models import MINILM, SPECIAL, TINY, Shape, write_base

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.model.training.config import Data

TURNS, WORDS = 6, (4, 24)  # of an example; of a turn
SMALL = {"batch_size": 8, "extra_replies": 8, "max_context_tokens": 40, "max_candidate_tokens": 16, "steps": 3}


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield examples a second and the memory of tensors; reading and weighing words are only in `seconds`."""
    changed: dict[str, Any]
    name, shape, changed = ("tiny", TINY, SMALL) if tiny else ("MiniLM", MINILM, {"steps": 20})
    with TemporaryDirectory() as folder:
        base, examples = write_base(Path(folder) / "base", shape), Path(folder) / "examples.jsonl"
        config = config_of("chat-poly", base, warmup_steps=1, looks=1, **changed)
        write_dialogues(examples, shape, 8 * config.batch_size)
        figures = trained(config, Data([examples], [1.0], held_out=config.batch_size), Path(folder) / "trained")
    yield {"what": "training", "model": name, "batch": config.batch_size, **figures}


def write_dialogues(path: Path, shape: Shape, count: int) -> None:
    """Write so many examples of random words."""
    rng = np.random.default_rng(0)
    with new_dialogues(path) as write:
        for at in range(count):
            words = [rng.integers(shape.vocabulary - len(SPECIAL), size=rng.integers(*WORDS)) for _ in range(TURNS)]
            *turns, reply = (" ".join(f"w{n}" for n in of_turn) for of_turn in words)
            write(Dialogue(Conversation.of(turns), reply, dialogue=str(at)))
