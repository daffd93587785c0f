"""The files that are sent to the machine with the GPU: dialogues, and a base model's weights in half precision."""

from pathlib import Path

from safetensors.torch import save

from polyrank.model.architectures.backbone import read_weights

MOST_BYTES = 60 * 2**20
BASE = "base"

WORDS = "words"  # a folder with the settings of a model whose words count in the loss of others
CONVAI2 = "convai2_train.jsonl.zst"
PARTNERS = "convai2_partners.jsonl.zst"
UBUNTU = "ubuntu_irc.jsonl.zst"
MULTIWOZ = "multiwoz22_train.jsonl.zst"
PERSONA_CHAT = "synthetic_persona_chat.jsonl.zst"
TASKMASTER = "taskmaster4.jsonl.zst"
TRAINING = (CONVAI2, PARTNERS, UBUNTU, MULTIWOZ, PERSONA_CHAT, TASKMASTER)  # as checkpoints/real_chat.py names them
EVALUATION = ("convai2/valid_a.self_original.jsonl.zst", "ubuntu_irc/valid.jsonl.zst")


def halved(weights: Path) -> bytes:
    """Return a safetensors file with every float rounded to half precision; always the same bytes."""
    tensors = read_weights(weights)
    return save({name: each.half() if each.is_floating_point() else each for name, each in tensors.items()})
