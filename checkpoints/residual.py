"""Make chat-uni of a plain Uni-encoder and the Poly-encoder before it.

    python checkpoints/residual.py PLAIN CHAT_POLY OUTPUT

A pair's score is chat-poly's plus a quarter of the plain one's, the share at which `--first-stage` lets training begin.
No weight is trained here. The plain one's adapters are cut to the singular values that say most for their bytes, so
that OUTPUT, with chat-poly's weights in it, stays below 12 MB. Words count as in chat-poly.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE, CheckpointFiles, read_config
from polyrank.model.checkpoint.read import A, B, split

HEAD_SHARE = 0.25
ADAPTER_BYTES = 760_000


def cut(adapter: dict[str, Tensor], most_bytes: int) -> dict[str, Tensor]:
    """Return adapters of lower ranks whose products are nearest for their size, in half precision."""
    found = {}
    for name in sorted(each.removesuffix(A) for each in adapter if each.endswith(A)):
        left, values, right = torch.linalg.svd(
            adapter[name + B].float() @ adapter[name + A].float(), full_matrices=False
        )
        found[name] = left, values, right, 2 * (len(left) + right.shape[1])
    worth = sorted(
        ((float(value) ** 2 / size, name, size) for name, (_, values, _, size) in found.items() for value in values),
        reverse=True,
    )
    ranks, used = dict.fromkeys(found, 0), 0
    for _, name, size in worth:
        if used + size > most_bytes:
            break
        ranks[name], used = ranks[name] + 1, used + size
    kept = {}
    for name, (left, values, right, _) in found.items():
        rank = max(1, ranks[name])
        root = values[:rank].sqrt()
        kept[name + B] = (left[:, :rank] * root).half().contiguous()
        kept[name + A] = (root[:, None] * right[:rank]).half().contiguous()
    return kept


def main(plain: Path, poly: Path, output: Path) -> None:
    """Write the checkpoint."""
    adapter, head = split(load_file(plain / WEIGHTS_FILE))
    first = {f"poly.{name}": tensor for name, tensor in load_file(poly / WEIGHTS_FILE).items()}
    weights = cut(adapter, ADAPTER_BYTES) | {name: HEAD_SHARE * tensor for name, tensor in head.items()} | first
    config = read_config(plain / CONFIG_FILE)
    training = {**config.training, "first_stage": poly.name, "head_share": HEAD_SHARE, "adapter_bytes": ADAPTER_BYTES}
    training.pop("evidence", None)
    evidence = read_config(poly / CONFIG_FILE).evidence
    config = replace(config, residual=True, evidence=evidence, calibration=None, training=training)
    CheckpointFiles(config, plain, weights).write(output)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
