"""The choice of a back-end and a precision: by their names, or measured (`auto`).

`auto` takes the fastest of what was not named whose outputs differ from those of torch in float32 by no more than
rounding. It measures once in a process, with the first part of the first model: a later measurement would run beside
requests, and chance would decide.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend, trials
from polyrank.model.inference.backend import Backend, Forward, TorchBackend
from polyrank.model.inference.names import AUTO, FLOAT32, INT8, OPENVINO, OPENVINO_INT8, TORCH, Runner, why_refused
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.parts import Part

# A candidate must take at most this share of the best time before it, so that noise does not change the choice.
WORTH = 0.9
_ROUNDS = 3
_CALLS = 2  # in a row: during the first, threads of the previous back-end may still spin

log = logging.getLogger(__name__)
_choosing = threading.Lock()
_chosen: dict[tuple[Runner, ...], "Choice"] = {}  # the best of several, as this process or an earlier one measured


def check_backend(backend: str, precision: str) -> None:
    """Raise InvalidInput where there is no such back-end or precision, or the two do not go together."""
    if why := why_refused(Runner(backend, precision)):
        raise InvalidInput(why)


def choose_backend(backend: str, precision: str, device: torch.device) -> Backend:
    """Return what runs a model on that device; "auto" leaves a choice.

    Raises InvalidInput where there is no such back-end, or it cannot run on the device or in the precision.
    """
    check_backend(backend, precision)
    if device.type != "cpu" and backend not in (AUTO, TORCH):
        raise InvalidInput(f"the back-end {backend} runs on CPUs, not on the device {str(device)!r}; use torch or auto")
    if backend == OPENVINO_INT8:
        return OpenVinoBackend(INT8)
    wanted = FLOAT32 if precision == AUTO else precision
    if backend == OPENVINO:
        return OpenVinoBackend(wanted)
    first = TorchBackend(device, wanted)
    if backend == TORCH or device.type != "cpu" or not openvino_backend.is_supported(wanted):
        return first
    return AutomaticBackend([first, OpenVinoBackend(wanted)])


class Choice(NamedTuple):
    """The fastest of several, and the milliseconds that each one took, by its name."""

    runner: Runner
    milliseconds: Mapping[str, float]


class AutomaticBackend:
    """Chooses one of several back-ends when it compiles the first part, and uses that one from then on.

    The first of them runs a part that the chosen one cannot run or gives other outputs for.
    """

    def __init__(self, candidates: Sequence[Backend]) -> None:
        self._candidates = {each.runner: each for each in candidates}
        self.runner = candidates[0].runner  # until the choice
        self.token_budget = candidates[0].token_budget
        self._is_first = True

    @property
    def candidates(self) -> tuple[Runner, ...]:
        """What is chosen from; the first is the one to be left only if it is worth it."""
        return tuple(self._candidates)

    @property
    def choice(self) -> Choice | None:
        """What was chosen from such candidates; None: nothing yet."""
        return _chosen.get(self.candidates)

    def remember(self, choice: Choice) -> None:
        """Take over what an earlier process has chosen, for all models of this one."""
        _chosen.setdefault(self.candidates, choice)
        log.info("back-end chosen before", extra={"fields": _described(choice)})

    def compile(self, part: Part) -> Forward:
        """Compile the part with the chosen back-end; the first call chooses it."""
        first = self.candidates[0]
        if self.choice is not None and self.choice.runner == first:
            return self._candidates[first].compile(part)
        forwards = self._forwards(part)
        with _choosing:
            if self.choice is None and len(forwards) > 1:
                _chosen[self.candidates] = _measured(forwards, trials.usual(part))
        runs = self.choice.runner if self.choice is not None and self.choice.runner in forwards else first
        self.runner = runs if self._is_first else self.runner
        self._is_first = False
        return forwards[runs]

    def _forwards(self, part: Part) -> dict[Runner, Forward]:
        """Compile the part by the first back-end, and by each other one that can run it."""
        first, *others = self._candidates.values()
        forwards = {first.runner: first.compile(part)}
        for each in others:
            try:
                forwards[each.runner] = each.compile(part)
            except InvalidInput as error:
                names = {"part": type(part).__name__, "refused": " in ".join(each.runner), "why": str(error)}
                log.warning("%s is what remains", first.runner.backend, extra={"fields": names})
        return forwards


def fastest(seconds: Mapping[Runner, float]) -> Runner:
    """Return the fastest; another one than the first must be faster by a margin (WORTH).

    >>> fastest({Runner("torch", "float32"): 1.0, Runner("openvino", "float32"): 0.95}).backend
    'torch'
    """
    best, *others = seconds
    for name in others:
        if seconds[name] < WORTH * seconds[best]:
            best = name
    return best


def _measured(forwards: Mapping[Runner, Forward], batches: list[TokenBatch]) -> Choice:
    """Time the back-ends, log what they took, and choose the fastest."""
    seconds = _seconds(forwards, batches)
    choice = Choice(fastest(seconds), {" in ".join(name): round(least * 1e3, 2) for name, least in seconds.items()})
    log.info("back-end chosen", extra={"fields": _described(choice)})
    return choice


def _described(choice: Choice) -> dict[str, object]:
    return {"backend": choice.runner.backend, "precision": choice.runner.precision, "ms": choice.milliseconds}


def _seconds(forwards: Mapping[Runner, Forward], batches: list[TokenBatch]) -> dict[Runner, float]:
    """Time the back-ends in turns: the least seconds for each batch, and their geometric mean over batches."""
    least = {name: np.full(len(batches), np.inf) for name in forwards}
    for _ in range(_ROUNDS):
        for name, forward in forwards.items():
            for at in [*range(len(batches))] * _CALLS:
                began = time.perf_counter()
                forward(batches[at])
                least[name][at] = min(least[name][at], time.perf_counter() - began)
    return {name: float(np.exp(np.log(times).mean())) for name, times in least.items()}
