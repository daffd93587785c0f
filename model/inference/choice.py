"""Which back-end runs a model."""

import torch

from polyrank.model.errors import InvalidInput
from polyrank.model.inference.automatic import AutomaticBackend
from polyrank.model.inference.backend import Backend
from polyrank.model.inference.names import AUTO, BACKENDS, TORCH
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.torch_backend import TorchBackend


def check_backend(name: str) -> None:
    """Raise InvalidInput where there is no back-end of that name."""
    if name not in BACKENDS:
        raise InvalidInput(f"unknown back-end {name!r}; use one of {', '.join(BACKENDS)}")


def choose_backend(name: str, device: torch.device) -> Backend:
    """Return the back-end of that name.

    Args:
        name: one of BACKENDS.
        device: that the model is on.

    Raises:
        InvalidInput: there is no such back-end, or it cannot run on the device.
    """
    check_backend(name)
    if name == TORCH or (name == AUTO and device.type != "cpu"):
        return TorchBackend(device)
    if device.type != "cpu":
        raise InvalidInput(f"the back-end {name} runs on CPUs, not on the device {str(device)!r}; use torch or auto")
    return AutomaticBackend() if name == AUTO else OpenVinoBackend(name)
