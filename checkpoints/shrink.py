"""Bring a checkpoint of adapters nearer to the base model that it was trained from.

    python checkpoints/shrink.py CHECKPOINT SHARE OUTPUT

What the adapters add to the base's weights is multiplied by SHARE (Wortsman et al. 2022, "Robust fine-tuning of
zero-shot models"). What words count is the checkpoint's; fit it anew by `polyrank train --only-evidence --seen`, which
calibrates, too.
"""

import sys
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE, CheckpointFiles, read_config
from polyrank.model.checkpoint.read import B


def main(checkpoint: Path, share: float, output: Path) -> None:
    """Write the checkpoint."""
    weights = load_file(checkpoint / WEIGHTS_FILE)
    shrunk = {name: (share * tensor).contiguous() for name, tensor in weights.items() if name.endswith(B)}
    if not shrunk:
        sys.exit(f"{checkpoint} has no adapters")
    config = replace(read_config(checkpoint / CONFIG_FILE), calibration=None, quantisation=None)
    CheckpointFiles(config, checkpoint, weights | shrunk).write(output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
