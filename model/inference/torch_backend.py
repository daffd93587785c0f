"""The back-end torch, whose outputs in float32 all others must give. Importing this does not import torch."""

import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET, Batch
from polyrank.model.inference.network import Forward
from polyrank.model.inference.runners import FLOAT32, TORCH, Runner, is_cpu

if TYPE_CHECKING:
    from polyrank.model.architectures.backbone import Backbone
    from polyrank.model.inference.parts import NetworkPart


class TorchBackend:
    """Runs parts as torch modules, on the device that they are on.

    In float32 it runs the part itself, so changed weights count from the next call on. In 16 bits it runs a copy, in
    which the transformer alone has 16 bits: code attention, reductions and lengths stay float32.
    """

    def __init__(self, device: str = "cpu", precision: str = FLOAT32, token_budget: int | None = None) -> None:
        self._device = device
        self.runner = Runner(TORCH, precision)
        self.token_budget = token_budget or (TOKEN_BUDGET if is_cpu(device) else GPU_TOKEN_BUDGET)
        self._halves: WeakKeyDictionary[Backbone, Backbone] = WeakKeyDictionary()  # parts share a transformer's copy

    def compile(self, part: "NetworkPart") -> Forward:
        return partial(_run, (part if self.runner.precision == FLOAT32 else self._halved(part)).eval(), self._device)

    def _halved(self, part: "NetworkPart") -> "NetworkPart":
        """Copy a part, its transformer in 16 bits."""
        import torch

        from polyrank.model.architectures.backbone import Backbone

        own = part.backbone()
        if own not in self._halves:
            self._halves[own] = copy.deepcopy(own).to(getattr(torch, self.runner.precision))
        memo: dict[int, Any] = {id(each): each for each in part.modules() if isinstance(each, Backbone)}
        return copy.deepcopy(part, {**memo, id(own): self._halves[own]})


def _run(part: "NetworkPart", device: str, batch: Batch) -> tuple[NDArray[Any], ...]:
    import torch

    with torch.inference_mode():
        fields = (torch.from_numpy(field).to(device) for field in batch)
        return tuple(output.cpu().numpy() for output in part(*fields))
