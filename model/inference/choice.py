"""The choice of a back-end: by its name, or measured (`auto`).

`auto` takes the fastest back-end on this machine whose outputs differ from torch's by no more than rounding. It
measures once in a process, with the first part of the first model: a later measurement would run beside requests, and
chance would decide. It never chooses fp16, bf16 or int8, because they miss the reference's ten best texts too often
(docs/measurements/backends.md); the operator has to ask for them.
"""

import logging
import threading
import time
from collections.abc import Mapping

import numpy as np
import torch

from polyrank.model.architectures.batching import TOKEN_BUDGET, TokenBatch
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend, trials
from polyrank.model.inference.backend import Backend, Forward, TorchBackend
from polyrank.model.inference.names import AUTO, BACKENDS, TORCH
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.parts import Part

CANDIDATES = (TORCH, "openvino")
# A candidate must take at most this share of the best time before it, so that noise does not change the choice.
WORTH = 0.9
_ROUNDS = 3
_CALLS = 2  # in a row: during the first, threads of the previous back-end may still spin

log = logging.getLogger(__name__)
_choosing = threading.Lock()
_chosen: list[str] = []  # what this process has measured to be best; empty before


def check_backend(name: str) -> None:
    """Raise InvalidInput where there is no back-end of that name."""
    if name not in BACKENDS:
        raise InvalidInput(f"unknown back-end {name!r}; use one of {', '.join(BACKENDS)}")


def choose_backend(name: str, device: torch.device) -> Backend:
    """Return the back-end of that name for a model on that device.

    Raises InvalidInput where there is no such back-end, or it cannot run on the device.
    """
    check_backend(name)
    if name == TORCH or (name == AUTO and device.type != "cpu"):
        return TorchBackend(device)
    if device.type != "cpu":
        raise InvalidInput(f"the back-end {name} runs on CPUs, not on the device {str(device)!r}; use torch or auto")
    return AutomaticBackend() if name == AUTO else OpenVinoBackend(name)


class AutomaticBackend:
    """Chooses a back-end when it compiles the first part, and uses that one from then on.

    Torch runs a later part if the chosen back-end cannot run it or gives other outputs.
    """

    name: str = AUTO  # before the choice
    token_budget = TOKEN_BUDGET

    def __init__(self) -> None:
        self._torch = TorchBackend(torch.device("cpu"))

    def compile(self, part: Part) -> Forward:
        """Compile the part with the chosen back-end; the first call chooses it."""
        reference = self._torch.compile(part)
        if self.name == AUTO and TORCH in _chosen:
            self.name = TORCH
        if self.name == TORCH:
            return reference
        forwards = {TORCH: reference, **_others(part)}
        if self.name == AUTO:
            self._choose(forwards, trials.usual(part))
        return forwards.get(self.name, reference)

    def _choose(self, forwards: Mapping[str, Forward], batches: list[TokenBatch]) -> None:
        self.name = TORCH
        if len(forwards) > 1:
            with _choosing:
                if not _chosen:
                    seconds = _seconds(forwards, batches)
                    _chosen.append(fastest(seconds))
                    took = {name: round(least * 1e3, 2) for name, least in seconds.items()}
                    log.info("back-end chosen", extra={"fields": {"backend": _chosen[0], "ms": took}})
            self.name = _chosen[0]


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the fastest of CANDIDATES; another one than torch must be faster by a margin (WORTH).

    >>> fastest({"torch": 1.0, "openvino": 0.95})
    'torch'
    """
    best = TORCH
    for name in CANDIDATES:
        if name in seconds and seconds[name] < WORTH * seconds[best]:
            best = name
    return best


def _others(part: Part) -> dict[str, Forward]:
    """Compile the part by each other back-end that is installed and gives torch's outputs."""
    if not openvino_backend.is_installed():
        return {}
    others = {}
    for name in (candidate for candidate in CANDIDATES if candidate != TORCH):
        try:
            others[name] = OpenVinoBackend(name).compile(part)
        except InvalidInput as error:
            why = {"part": type(part).__name__, "backend": name, "why": str(error)}
            log.warning("torch is what remains", extra={"fields": why})
    return others


def _seconds(forwards: Mapping[str, Forward], batches: list[TokenBatch]) -> dict[str, float]:
    """Time the back-ends in turns: the least seconds for each batch, and their geometric mean over batches."""
    least = {name: np.full(len(batches), np.inf) for name in forwards}
    for _ in range(_ROUNDS):
        for name, forward in forwards.items():
            for at in [*range(len(batches))] * _CALLS:
                began = time.perf_counter()
                forward(batches[at])
                least[name][at] = min(least[name][at], time.perf_counter() - began)
    return {name: float(np.exp(np.log(times).mean())) for name, times in least.items()}
