"""Forward passes by torch itself."""

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import Batch
from polyrank.model.inference.parts import NetworkPart
from polyrank.model.inference.runners import BFLOAT16, FLOAT16

_HALVES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}


class Halved:
    """Copies of transformers in 16 bits, which parts with the same transformer share."""

    def __init__(self, precision: str) -> None:
        self._dtype = _HALVES[precision]
        self._made: WeakKeyDictionary[Backbone, Backbone] = WeakKeyDictionary()

    def of(self, part: NetworkPart) -> NetworkPart:
        """Copy a part, its transformer in 16 bits."""
        own = part.backbone()
        if own not in self._made:
            self._made[own] = copy.deepcopy(own).to(self._dtype)
        kept: dict[int, Any] = {id(each): each for each in part.modules() if isinstance(each, Backbone)}
        return copy.deepcopy(part, {**kept, id(own): self._made[own]})


def run(part: NetworkPart, device: str, batch: Batch) -> tuple[NDArray[Any], ...]:
    """Run a part on the device that it is on."""
    with torch.inference_mode():
        fields = (torch.from_numpy(field).to(device) for field in batch)
        return tuple(output.cpu().numpy() for output in part(*fields))
