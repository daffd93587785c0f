"""A back-end runs the parts of a model. `TorchBackend` in float32 is the reference; others must give its outputs."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET, TokenBatch
from polyrank.model.inference.network import NetworkPart, Sizes
from polyrank.model.inference.runners import BFLOAT16, FLOAT16, FLOAT32, TORCH, Runner

# From a padded batch to the part's outputs. Safe to call from several threads.
Forward = Callable[[TokenBatch], tuple[NDArray[Any], ...]]


class Ready(NamedTuple):
    """A part that is ready to run, the sizes of its transformer, and what runs it."""

    run: Forward
    sizes: Sizes
    runner: Runner


_HALVES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}


class Backend(Protocol):
    """Runs the parts of one model.

    `token_budget`: how many tokens a batch should have at most, padding included.
    """

    runner: Runner
    token_budget: int

    def compile(self, part: NetworkPart) -> Forward:
        """Make a part ready to run."""


class TorchBackend:
    """Runs parts as torch modules, on the device that they are on.

    In float32 it runs the part itself, so changed weights count from the next call on. In 16 bits it runs a copy, in
    which the transformer alone has 16 bits: code attention, reductions and lengths stay float32.
    """

    def __init__(self, device: torch.device, precision: str = FLOAT32, token_budget: int | None = None) -> None:
        self._device = device
        self.runner = Runner(TORCH, precision)
        self.token_budget = token_budget or (TOKEN_BUDGET if device.type == "cpu" else GPU_TOKEN_BUDGET)
        self._halves: WeakKeyDictionary[Backbone, Backbone] = WeakKeyDictionary()

    def compile(self, part: NetworkPart) -> Forward:
        """Set the part to evaluation mode; torch compiles nothing ahead."""
        return partial(self._run, (part if self.runner.precision == FLOAT32 else self._halved(part)).eval())

    def _halved(self, part: NetworkPart) -> NetworkPart:
        """Copy a part with a transformer of 16 bits, which parts with the same transformer share."""
        own = part.backbone()
        if own not in self._halves:
            self._halves[own] = copy.deepcopy(own).to(_HALVES[self.runner.precision])
        kept: dict[int, Any] = {id(each): each for each in part.modules() if isinstance(each, Backbone)}
        return copy.deepcopy(part, {**kept, id(own): self._halves[own]})

    def _run(self, part: NetworkPart, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        with torch.inference_mode():
            return tuple(output.cpu().numpy() for output in part(*batch.to(self._device)))
