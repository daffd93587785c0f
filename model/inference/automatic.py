"""`auto`: the fastest back-end on this machine whose outputs are torch's, but for rounding.

It is measured once in a process, by the first part of the first model: a later one may come while requests are served
beside it, which would decide by chance. fp16, bf16 and int8 are never chosen: they do not find the reference's
ten best texts often enough (docs/measurements/backends.md), so each is a decision of whoever runs the service.
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
from polyrank.model.inference.backend import Forward
from polyrank.model.inference.names import AUTO, TORCH
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.parts import Part
from polyrank.model.inference.torch_backend import TorchBackend

# A later one has to be so much faster than the best before it: the choice must not change with the machine's moods.
CANDIDATES = (TORCH, "openvino")
WORTH = 0.9
_ROUNDS = 3
_CALLS = 2  # in a row: at the first, threads of the one before may still spin

log = logging.getLogger(__name__)
_choosing = threading.Lock()
_chosen: list[str] = []  # in this process, once something was measured


class AutomaticBackend:
    """Chooses at the first part that it compiles, and is what it has chosen from then on.

    A later part that the chosen one cannot run, or runs otherwise than torch, is left to torch.

    Attributes:
        name: AUTO until then.
    """

    name: str = AUTO
    token_budget = TOKEN_BUDGET

    def __init__(self) -> None:
        self._torch = TorchBackend(torch.device("cpu"))

    def compile(self, part: Part) -> Forward:
        """Compile the part by what was chosen; first of all, choose."""
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
                    took = {name: round(each * 1e3, 2) for name, each in seconds.items()}
                    log.info("back-end chosen", extra={"fields": {"backend": _chosen[0], "ms": took}})
            self.name = _chosen[0]


def fastest(seconds: Mapping[str, float]) -> str:
    """The fastest of CANDIDATES, where another one than torch has to be worth it.

    >>> fastest({"torch": 1.0, "openvino": 0.95})
    'torch'
    """
    best = TORCH
    for name in CANDIDATES:
        if name in seconds and seconds[name] < WORTH * seconds[best]:
            best = name
    return best


def _others(part: Part) -> dict[str, Forward]:
    """What there is besides torch and gives the same."""
    if not openvino_backend.is_installed():
        return {}
    others = {}
    for name in (each for each in CANDIDATES if each != TORCH):
        try:
            others[name] = OpenVinoBackend(name).compile(part)
        except InvalidInput as error:
            why = {"part": type(part).__name__, "backend": name, "why": str(error)}
            log.warning("torch is what remains", extra={"fields": why})
    return others


def _seconds(forwards: Mapping[str, Forward], batches: list[TokenBatch]) -> dict[str, float]:
    """The geometric mean over the batches of the least time, measured in turns."""
    least = {name: np.full(len(batches), np.inf) for name in forwards}
    for _ in range(_ROUNDS):
        for name, forward in forwards.items():
            for at in [*range(len(batches))] * _CALLS:
                began = time.perf_counter()
                forward(batches[at])
                least[name][at] = min(least[name][at], time.perf_counter() - began)
    return {name: float(np.exp(np.log(each).mean())) for name, each in least.items()}
