"""What calibration found for int8: the file quantised.safetensors of a checkpoint.

It holds no weights: these are rounded anew whenever a part is compiled (polyrank.model.inference.int8). So it is small,
some tens of kilobytes for each part.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polyrank.model.errors import CheckpointInvalid

QUANTISED_FILE = "quantised.safetensors"
MOST_QUANTISED_BYTES = 64 << 20
_SMOOTHING, _RANGE = ".smoothing", ".range"


class MapInput(NamedTuple):
    """How int8 holds what a linear map reads."""

    # Factor on each component before it is rounded, (D,) float16, above 0. The map's weights are divided by it, which
    # moves what is hard to round from the input to the weights (SmoothQuant, Xiao et al. 2023).
    smoothing: NDArray[np.float16]
    # The least and the largest of the 256 values that a component may have then.
    low: float
    high: float


Inputs = Mapping[str, MapInput]
"""Of the linear maps of a part, by name. Maps that read the same share an entry, named after the first of them."""


class Quantisation(NamedTuple):
    """What calibration found of each part, by the part's name; and the sha256 of the file that holds it."""

    parts: Mapping[str, Inputs]
    sha256: str


def quantisation_bytes(parts: Mapping[str, Inputs]) -> bytes:
    """Return the content of the file; equal findings give equal bytes."""
    tensors: dict[str, NDArray[np.floating]] = {}
    for part, inputs in parts.items():
        for name, map_input in inputs.items():
            tensors[f"{part}/{name}{_SMOOTHING}"] = np.ascontiguousarray(map_input.smoothing, np.float16)
            tensors[f"{part}/{name}{_RANGE}"] = np.array([map_input.low, map_input.high], np.float32)
    return save(tensors)


def read_quantisation(content: bytes) -> Quantisation:
    """Read the content of the file; raises CheckpointInvalid where it is damaged."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise CheckpointInvalid(f"{QUANTISED_FILE} is damaged: {error}") from error
    parts: dict[str, dict[str, MapInput]] = {}
    for key in sorted(key for key in tensors if key.endswith(_RANGE)):
        path = key.removesuffix(_RANGE)
        part, _, name = path.partition("/")
        map_input = _map_input(tensors[key], tensors.pop(path + _SMOOTHING, None))
        if map_input is None:
            raise CheckpointInvalid(f"{QUANTISED_FILE} is damaged: {path} has no usable numbers")
        parts.setdefault(part, {})[name] = map_input
    if odd := [key for key in tensors if not key.endswith(_RANGE)]:
        raise CheckpointInvalid(f"{QUANTISED_FILE} is damaged: {sorted(odd)[0]} is not known")
    return Quantisation(parts, hashlib.sha256(content).hexdigest())


def _map_input(ends: NDArray[np.floating], smoothing: NDArray[np.floating] | None) -> MapInput | None:
    """Return an entry; None where its numbers cannot be what calibration found."""
    if smoothing is None or smoothing.ndim != 1 or smoothing.dtype != np.float16:
        return None
    if ends.shape != (2,) or ends.dtype != np.float32:
        return None
    low, high = (float(end) for end in ends)
    usable = np.isfinite(smoothing).all() and (smoothing > 0).all() and np.isfinite([low, high]).all()
    return MapInput(smoothing, low, high) if usable and low <= 0 <= high and low < high else None
