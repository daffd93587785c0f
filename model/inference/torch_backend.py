"""The reference: torch runs the modules as they are, on the device that they are on."""

from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET, TokenBatch
from polyrank.model.inference.backend import Forward
from polyrank.model.inference.names import TORCH
from polyrank.model.inference.parts import Part


class TorchBackend:
    """Runs parts as they are; changed weights count from the next call on."""

    name = TORCH

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.token_budget = TOKEN_BUDGET if device.type == "cpu" else GPU_TOKEN_BUDGET

    def compile(self, part: Part) -> Forward:
        """There is nothing to be done ahead."""
        return partial(self._run, part.eval())

    def _run(self, part: Part, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        with torch.inference_mode():
            return tuple(each.cpu().numpy() for each in part(*batch.to(self._device)))
