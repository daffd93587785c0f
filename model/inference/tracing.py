"""Parts as models of OpenVINO: torch traces a part, and OpenVINO's front end converts what it finds."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.jit import _recursive

from polyrank.model.inference.parts import NetworkPart

if TYPE_CHECKING:
    import openvino as ov

_EXAMPLE, _STARTS = [[1, 1, 1, 1], [1, 1, 1]], [2, 2]
# Of parts for as long as they live: the models share the weights of their part.
_traces: "WeakKeyDictionary[NetworkPart, tuple[ov.Model, ov.Model]]" = WeakKeyDictionary()
_one_thread = threading.Lock()  # guards torch's types, which all threads share


def traced(part: NetworkPart) -> tuple["ov.Model", "ov.Model"]:
    """Return a part's transformer and its ending as models of OpenVINO; a part is traced once for all precisions."""
    if part not in _traces:
        part.eval()
        example = tuple(map(torch.from_numpy, part.laid_out(_EXAMPLE, _STARTS)))
        states = torch.ones(*example[0].shape, part.width)
        _traces[part] = _converted(_Transformer(part), example), _converted(_Ending(part), (states, example[1]))
    return _traces[part]


class _Transformer(nn.Module):
    """A part's transformer as a module of its own, from a batch's fields to token states."""

    def __init__(self, part: NetworkPart) -> None:
        super().__init__()
        self.part = part

    def forward(self, *fields: Tensor) -> Tensor:
        return self.part.states(self.part.tensors(*fields))


class _Ending(nn.Module):
    """A part's ending as a module of its own, from token states and mask to the part's outputs."""

    def __init__(self, part: NetworkPart) -> None:
        super().__init__()
        self.part = part

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.part.ending(states, mask)


def _converted(module: nn.Module, example: tuple[Tensor, ...]) -> "ov.Model":
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with _one_thread, torch.inference_mode(), _quiet():
        # torch has no type for it.
        scripted: Any = torch.jit.trace(module.eval(), example, check_trace=False)  # type: ignore[no-untyped-call]
        # What `openvino.convert_model` does, without its telemetry.
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(scripted, example_input=example)  # the front end holds no reference
        converted = frontend.convert(frontend.load(decoder))
        # Torch would keep every module ever traced, 8 MiB for each part of MiniLM. Its own tests clear this way too.
        torch._C._jit_clear_class_registry()
        _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
        return converted


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of tracing, which reads every attribute of a module."""
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        transformers_logging.set_verbosity(before)
