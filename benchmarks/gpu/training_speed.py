"""What a training step takes: chat-poly's recipe for a few steps, on random words and random weights."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.random_models import MINILM, SPECIAL, TINY, Shape, write_base

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.model.training.config import Data, TrainConfig
from polyrank.model.training.run import train

TURNS, WORDS = 6, (4, 24)  # of an example; of a turn
SMALL = {"batch_size": 8, "extra_replies": 8, "max_context_tokens": 40, "max_candidate_tokens": 16, "steps": 3}


CHAT_POLY: dict[str, Any] = {
    "architecture": "poly",
    "context_vectors": "codes",
    "n_codes": 64,
    "batch_size": 256,
    "extra_replies": 256,
    "max_turns": 6,
    "max_context_tokens": 128,
    "max_candidate_tokens": 48,
    "lora_rank": 64,
    "warmup_steps": 1,
    "looks": 1,
    "precision": "bf16",
    "dropout": 0.1,
    "reduction": "mean",  # the base's own, which the folder does not say
    "chunk_tokens": 500_000,  # all contexts at once, and all candidates: a GPU runs few large batches best
}


class Clock:
    """Times the steps alone: from one to the next, unless a look at the selection slice comes between.

    `seconds` has one number for each step that could be timed.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def __call__(self, event: str, _step: int, _steps: int, _figures: Mapping[str, float]) -> None:
        now = time.perf_counter()
        if event == "look":
            self._last = None
            return
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield examples a second and the memory of tensors; reading and weighing words are only in `seconds`."""
    changed: dict[str, Any]
    name, shape, changed = ("tiny", TINY, SMALL) if tiny else ("MiniLM", MINILM, {"steps": 20})
    with TemporaryDirectory() as folder:
        base, examples = write_base(Path(folder) / "base", shape), Path(folder) / "examples.jsonl"
        config = TrainConfig.of(**{"base": str(base), **CHAT_POLY, **changed})
        write_dialogues(examples, shape, 8 * config.batch_size)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        clock, began = Clock(), time.perf_counter()
        data = Data([examples], [1.0], held_out=config.batch_size)
        train(config, data, Path(folder) / "trained", on_survey=lambda *_: None, watch=clock)
    yield {
        "what": "training",
        "model": name,
        "batch": config.batch_size,
        "seconds": round(time.perf_counter() - began, 1),
        "examples_per_second": round(config.batch_size / median(clock.seconds), 1) if clock.seconds else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    }


def write_dialogues(path: Path, shape: Shape, count: int) -> None:
    """Write so many examples of random words."""
    rng = np.random.default_rng(0)
    with new_dialogues(path) as write:
        for at in range(count):
            words = [rng.integers(shape.vocabulary - len(SPECIAL), size=rng.integers(*WORDS)) for _ in range(TURNS)]
            *turns, reply = (" ".join(f"w{n}" for n in of_turn) for of_turn in words)
            write(Dialogue(Conversation.of(turns), reply, dialogue=str(at)))
