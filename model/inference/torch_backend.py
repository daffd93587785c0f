"""The back-end torch, whose outputs in float32 all others must give. Importing this does not import torch."""

from functools import cached_property, partial
from typing import TYPE_CHECKING

from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET
from polyrank.model.inference.network import Forward
from polyrank.model.inference.runners import FLOAT32, TORCH, Runner, is_cpu

if TYPE_CHECKING:
    from polyrank.model.inference.parts import NetworkPart
    from polyrank.model.inference.torch_forward import Halved


class TorchBackend:
    """Runs parts as torch modules, on the device that they are on.

    In float32 it runs the part itself, so changed weights count from the next call on. In 16 bits it runs a copy, in
    which the transformer alone has 16 bits: code attention, reductions and lengths stay float32.
    """

    def __init__(self, device: str = "cpu", precision: str = FLOAT32, token_budget: int | None = None) -> None:
        self._device = device
        self.runner = Runner(TORCH, precision)
        self.token_budget = token_budget or (TOKEN_BUDGET if is_cpu(device) else GPU_TOKEN_BUDGET)

    def compile(self, part: "NetworkPart") -> Forward:
        from polyrank.model.inference.torch_forward import run

        return partial(run, (part if self.runner.precision == FLOAT32 else self._halved.of(part)).eval(), self._device)

    @cached_property
    def _halved(self) -> "Halved":
        from polyrank.model.inference.torch_forward import Halved

        return Halved(self.runner.precision)
