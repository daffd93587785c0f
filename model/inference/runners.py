"""The names of back-ends and precisions, and which go together, in a module that imports without torch."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

BackendName = Literal["auto", "torch", "openvino", "openvino-int8"]
PrecisionName = Literal["auto", "float32", "float16", "bfloat16"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
AUTO: Literal["auto"] = "auto"
TORCH, OPENVINO, OPENVINO_INT8 = "torch", "openvino", "openvino-int8"
FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
PartName = Literal["contexts", "candidates", "pairs", "known", "beside"]  # of a network, by what it reads
INT8 = "int8"  # what OPENVINO_INT8 says that it runs; nobody asks for it by this name


class Runner(NamedTuple):
    """A back-end and a precision: what is asked to run forward passes, or runs them.

    What is asked for is one of BACKENDS and one of PRECISIONS. What runs is never "auto"; its precision may be INT8.
    """

    backend: str
    precision: str

    def asked_again(self) -> "Runner":
        """Return what to ask for to get what runs here."""
        if self == NO_RUNNER:
            return Runner(AUTO, AUTO)
        return self._replace(precision=AUTO) if self.backend == OPENVINO_INT8 else self


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


def why_refused(asked: Runner) -> str | None:
    """Return what is wrong with a request for a back-end and a precision; None: nothing.

    >>> why_refused(Runner("openvino-int8", "float16"))
    'openvino-int8 has a precision of its own: leave precision at auto'
    """
    if asked.backend not in BACKENDS:
        return f"unknown back-end {asked.backend!r}; use one of {', '.join(BACKENDS)}"
    if asked.precision not in PRECISIONS:
        return f"unknown precision {asked.precision!r}; use one of {', '.join(PRECISIONS)}"
    if asked.backend == OPENVINO_INT8 and asked.precision != AUTO:
        return f"{OPENVINO_INT8} has a precision of its own: leave precision at auto"
    return None


def is_cpu(device: str) -> bool:
    """Whether a device, in torch's notation, is the CPU.

    >>> is_cpu("cpu"), is_cpu("cpu:0"), is_cpu("cuda:1")
    (True, True, False)
    """
    return device.partition(":")[0] == "cpu"
