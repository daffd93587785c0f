"""A back-end runs the parts of a model. `TorchBackend` is the reference; the others must give its outputs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET, TokenBatch
from polyrank.model.inference.names import TORCH
from polyrank.model.inference.parts import Part

# From a padded batch to the part's outputs. Safe to call from several threads.
Forward = Callable[[TokenBatch], tuple[NDArray[Any], ...]]


class Backend(Protocol):
    """Runs the parts of one model.

    `token_budget`: how many tokens a batch should have at most, padding included.
    """

    name: str
    token_budget: int

    def compile(self, part: Part) -> Forward:
        """Make a part ready to run."""


class TorchBackend:
    """Runs parts as torch modules, on the device that they are on. Changed weights count from the next call on."""

    name = TORCH

    def __init__(self, device: torch.device, token_budget: int | None = None) -> None:
        self._device = device
        self.token_budget = token_budget or (TOKEN_BUDGET if device.type == "cpu" else GPU_TOKEN_BUDGET)

    def compile(self, part: Part) -> Forward:
        """Set the part to evaluation mode; torch compiles nothing ahead."""
        return partial(self._run, part.eval())

    def _run(self, part: Part, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        with torch.inference_mode():
            return tuple(output.cpu().numpy() for output in part(*batch.to(self._device)))
