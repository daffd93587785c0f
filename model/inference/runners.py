"""The names of back-ends and precisions, and which go together, in a module that imports without torch."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

BackendName = Literal["auto", "torch", "openvino"]
PrecisionName = Literal["auto", "float32", "float16", "bfloat16", "int8"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
AUTO: Literal["auto"] = "auto"
TORCH, OPENVINO = "torch", "openvino"
FLOAT32, FLOAT16, BFLOAT16, INT8 = "float32", "float16", "bfloat16", "int8"
PartName = Literal["contexts", "candidates", "pairs", "known", "beside"]  # of a network, by what it reads


class Runner(NamedTuple):
    """A back-end and a precision: what is asked to run forward passes, or runs them.

    What is asked for is one of BACKENDS and one of PRECISIONS. What runs is never "auto".
    """

    backend: str
    precision: str

    def request(self) -> "Runner":
        """Return what to ask for to get what runs here."""
        return Runner(AUTO, AUTO) if self == NO_RUNNER else self


NO_RUNNER = Runner("none", FLOAT32)
"""What a model without forward passes says; nobody asks for it."""


@dataclass(slots=True)
class Choice:
    """What "auto" has found out.

    milliseconds: of a usual batch, by back-end and precision. refused: why something faster does not run, by back-end,
    precision and part of the model.
    """

    milliseconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def why_refused(runner: Runner) -> str | None:
    """Return what is wrong with a request for a back-end and a precision; None: nothing.

    >>> why_refused(Runner("torch", "int8"))
    'torch does not compute in int8; use openvino or auto'
    """
    if runner.backend not in BACKENDS:
        return f"unknown back-end {runner.backend!r}; use one of {', '.join(BACKENDS)}"
    if runner.precision not in PRECISIONS:
        return f"unknown precision {runner.precision!r}; use one of {', '.join(PRECISIONS)}"
    if runner == Runner(TORCH, INT8):
        return f"{TORCH} does not compute in {INT8}; use {OPENVINO} or {AUTO}"
    return None


def is_cpu(device: str) -> bool:
    """Whether a device, in torch's notation, is the CPU.

    >>> is_cpu("cpu"), is_cpu("cpu:0"), is_cpu("cuda:1")
    (True, True, False)
    """
    return device.partition(":")[0] == "cpu"
