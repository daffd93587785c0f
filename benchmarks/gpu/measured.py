"""Train and evaluate on the GPU with the product's own code, and measure what it takes."""

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks.gpu.pack import EVALUATION

from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.measures import group_numbers, intervals, rank_values
from polyrank.model.rankers.load import load
from polyrank.model.rankers.networks import NetworkRanker, Ranker
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import read_dialogues
from polyrank.model.training.config import Data, TrainConfig
from polyrank.model.training.run import train

Record = dict[str, Any]

# How much of a dialogue is read: the same in every run, so that their figures can be compared.
READING = {"max_turns": 6, "max_context_tokens": 128, "max_candidate_tokens": 48}
CHUNK_TOKENS = 65_536  # large products suit a GPU; a batch of 512 makes two
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Clock:
    """Times the steps alone: from one to the next, unless a look at the selection slice comes between.

    `seconds` has one number for each step that could be timed.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def __call__(self, event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        now = time.perf_counter()
        if event == "look":
            print(f"  look {step} of {steps}: {dict(figures)}", file=sys.stderr, flush=True)
            self._last = None
            return
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def trained(config: TrainConfig, data: Data, output: Path) -> Record:
    """Train; returns the figures of the run.

    `seconds` is the whole run, `examples_per_second` that of the median step, `peak_memory_bytes` the tensors on the
    GPU.
    """
    gc.collect()  # frees the previous run, whose objects form reference cycles
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock, began = Clock(), time.perf_counter()
    ranker = train(config, data, output, on_survey=lambda *_: None, watch=clock)
    seconds = time.perf_counter() - began
    assert isinstance(ranker, NetworkRanker)  # one process
    summary = ranker.config.training
    return {
        "steps": summary["steps"],
        "seconds": round(seconds, 1),
        "examples_per_second": round(config.batch_size / median(clock.seconds), 1) if clock.seconds else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else None,
        "selection": {"step": summary["step"], **summary["selection"]},
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def evaluated(checkpoint: Path, pack: Path, names: Sequence[str] = EVALUATION) -> Record:
    """Measure on each file's own lists of candidates, with 95 % intervals over dialogues, like `polyrank evaluate`."""
    ranker = load(checkpoint, DEVICE)
    return {name: _figures(ranker, pack / name) for name in names}


def _figures(ranker: Ranker, path: Path) -> Record:
    began = time.perf_counter()
    dialogues = [each for each in identified(read_dialogues(path))[0] if each.candidates]
    values = rank_values(rank_lists(ranker, dialogues, lambda *_: None).ties)
    low, high = intervals(np.column_stack(list(values.values())), group_numbers(each.dialogue for each in dialogues))
    ends = zip(values.items(), low.tolist(), high.tolist(), strict=True)
    return {
        "examples": len(dialogues),
        **{name: {"value": float(each.mean()), "interval": [low, high]} for (name, each), low, high in ends},
        "seconds": round(time.perf_counter() - began, 1),
    }
