"""The files that are sent to the machine with the GPU: dialogues, and a base model's weights in half precision."""

from pathlib import Path

from safetensors.torch import save

from polyrank.model.architectures.backbone import read_weights

MOST_BYTES = 60 * 2**20
BASE = "base"

PERSONA_CHAT = "synthetic_persona_chat/train.jsonl.zst"
UBUNTU = "ubuntu_irc/train.jsonl.zst"
MULTIWOZ = "multiwoz21/valid.jsonl.zst"
TASKMASTER = "taskmaster4/train.jsonl.zst"
CONVAI2_VALID = "convai2/valid_a.self_original.jsonl.zst"
UBUNTU_VALID = "ubuntu_irc/valid.jsonl.zst"
FILES = (
    PERSONA_CHAT,
    UBUNTU,
    MULTIWOZ,
    TASKMASTER,
    CONVAI2_VALID,
    UBUNTU_VALID,
)
EVALUATION = (CONVAI2_VALID, UBUNTU_VALID)


def halved(weights: Path) -> bytes:
    """Return a safetensors file with every float rounded to half precision; always the same bytes."""
    tensors = read_weights(weights)
    return save({name: each.half() if each.is_floating_point() else each for name, each in tensors.items()})
