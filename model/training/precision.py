"""The precision that a run computes in: autocast's, in the transformers alone."""

import logging

import torch

from polyrank.model import processor
from polyrank.model.errors import InvalidInput
from polyrank.model.training.config import Precision

log = logging.getLogger(__name__)


def precision_on(device: torch.device, precision: Precision) -> Precision:
    """Return the precision in which a run computes on a device, which is never "auto".

    "auto" is bf16 where the device multiplies it faster than float32, and float32 elsewhere.

    Raises InvalidInput for fp16 on a processor: nothing would be computed in it.
    """
    if precision == "fp16" and device.type == "cpu":
        raise InvalidInput("precision fp16 is for GPUs; on a processor give auto, no or bf16")
    # Instructions for it: those of VNNI are for whole numbers, and Arm's were not tried.
    native = device.type == "cpu" and (processor.has("amx_bf16") or processor.has("avx512_bf16"))
    native |= device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not native:
        log.warning("this machine has no instructions for bf16: it is slower than float32; give --precision auto")
    if precision == "auto":
        return "bf16" if native else "no"
    return precision
