"""Make a checkpoint of trained ones. No weight is trained here.

    python checkpoints/joined.py average OUTPUT CHECKPOINT CHECKPOINT ...
    python checkpoints/joined.py residual OUTPUT PLAIN_UNI CHAT_POLY

`average`: Poly-encoders of one base model and one seed become one, whose weights lie in their middle (Wortsman et al.
2022, arXiv 2203.05482). Products of adapters are averaged, not their factors, and cut to the rank that they had. All
else is the first one's.

`residual`: a pair's score is chat-poly's plus a quarter of the plain Uni-encoder's, the share at which `--first-stage`
lets training begin. The adapters of both are cut to the singular values that say most for their bytes, so that OUTPUT
stays below 12 MB. Words count as in chat-poly.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE, CheckpointFiles, read_config
from polyrank.model.checkpoint.read import A, B, split

HEAD_SHARE = 0.25
PLAIN_BYTES, POLY_BYTES = 3_250_000, 7_900_000  # of adapters


class Product(NamedTuple):
    """An adapter's product, (out, in), by its singular values."""

    left: Tensor
    values: Tensor
    right: Tensor

    @classmethod
    def of(cls, product: Tensor) -> "Product":
        return cls(*torch.linalg.svd(product, full_matrices=False))

    @property
    def bytes_of_a_rank(self) -> int:
        """What a rank takes in half precision."""
        return 2 * (len(self.left) + self.right.shape[1])

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return A (rank, in) and B (out, rank) in half precision, whose product is nearest."""
        root = self.values[:rank].sqrt()
        low, high = root[:, None] * self.right[:rank], self.left[:, :rank] * root
        return low.half().contiguous(), high.half().contiguous()


def products(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what an adapter adds to each weight, (out, in), by the weight's name."""
    names = [name.removesuffix(A) for name in adapter if name.endswith(A)]
    return {name: adapter[name + B].float() @ adapter[name + A].float() for name in names}


def adapter_of(found: Mapping[str, Product], ranks: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the tensors of an adapter as a checkpoint names them."""
    tensors = {}
    for name, product in found.items():
        tensors[name + A], tensors[name + B] = product.factors(ranks[name])
    return tensors


def cut(adapter: Mapping[str, Tensor], most_bytes: int) -> dict[str, Tensor]:
    """Return adapters of lower ranks whose products are nearest for their size."""
    found = {name: Product.of(product) for name, product in products(adapter).items()}
    worth = sorted(
        (
            (float(value) ** 2 / product.bytes_of_a_rank, name)
            for name, product in found.items()
            for value in product.values
        ),
        reverse=True,
    )
    ranks, used = dict.fromkeys(found, 0), 0
    for _, name in worth:
        used += found[name].bytes_of_a_rank
        if used > most_bytes:
            break
        ranks[name] += 1
    return adapter_of(found, {name: max(1, rank) for name, rank in ranks.items()})


def average(*checkpoints: Path) -> CheckpointFiles:
    """Average Poly-encoders."""
    adapters, others = zip(*(split(load_file(each / WEIGHTS_FILE)) for each in checkpoints), strict=True)
    added = [products(each) for each in adapters]
    middle = {name: Product.of(mean([each[name] for each in added])) for name in added[0]}
    weights = adapter_of(middle, {name: len(adapters[0][name + A]) for name in middle})
    weights |= {name: mean([each[name] for each in others]) for name in others[0]}
    config = read_config(checkpoints[0] / CONFIG_FILE)
    training = {**config.training, "averaged": [each.name for each in checkpoints]}
    return CheckpointFiles(replace(config, quantisation=None, training=training), checkpoints[0], weights)


def mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).mean(dim=0)


def residual(plain: Path, poly: Path) -> CheckpointFiles:
    """Add a plain Uni-encoder to a Poly-encoder."""
    adapter, head = split(load_file(plain / WEIGHTS_FILE))
    first_adapter, codes = split(load_file(poly / WEIGHTS_FILE))
    first = cut(first_adapter, POLY_BYTES) | codes
    weights = cut(adapter, PLAIN_BYTES) | {name: HEAD_SHARE * tensor for name, tensor in head.items()}
    weights |= {f"poly.{name}": tensor for name, tensor in first.items()}
    config = read_config(plain / CONFIG_FILE)
    about = {"head_share": HEAD_SHARE, "plain_bytes": PLAIN_BYTES, "poly_bytes": POLY_BYTES}
    training = {**config.training, "first_stage": poly.name, **about}
    training.pop("evidence", None)
    evidence = read_config(poly / CONFIG_FILE).evidence
    config = replace(config, residual=True, evidence=evidence, calibration=None, training=training)
    return CheckpointFiles(config, plain, weights)


COMMANDS: dict[str, Callable[..., CheckpointFiles]] = {"average": average, "residual": residual}

if __name__ == "__main__":
    command, output, *given = sys.argv[1:]
    COMMANDS[command](*map(Path, given)).write(Path(output))
