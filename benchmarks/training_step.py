"""What a training step costs on this machine's CPU, by dropout, kind of attention, and what is tuned.

    python benchmarks/training_step.py [--base MODEL] [--sequences 32] [--tokens 128] [--rounds 6]

One forward and backward pass of the base model's transformer under bfloat16 autocast, over random token ids; no
optimizer. The ways take turns in each round, and the best of the rounds counts: other work on the machine only adds.
"""

import argparse
import time

import torch
from torch import nn

from polyrank.model.architectures.backbone import Backbone, load_base_weights, read_backbone_config, read_weights
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.checkpoint.base import resolve_base
from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.model.training.student.tuning import add_adapters, select_layers, set_dropout
from polyrank.service.cli.measuring.timing import machine

RANK = 32
WAYS = {  # attention, dropout kept, adapters alone
    "as published": ("sdpa", True, False),
    "attention as plain products": ("eager", True, False),
    "no dropout": ("sdpa", False, False),
    "both": ("eager", False, False),
    f"both, adapters of rank {RANK}": ("eager", False, True),
}


class Encoder(nn.Module):
    """A transformer by itself, as the training code expects one."""

    def __init__(self, base: str, attention: str, dropout: bool, adapters: bool) -> None:
        super().__init__()
        found = resolve_base(base)
        self.backbone = Backbone(read_backbone_config(found.directory))
        load_base_weights(self.backbone, read_weights(found.directory / WEIGHTS_FILE), base)
        self.backbone.transformer.set_attn_implementation(attention)
        select_layers(self, "all-but-embeddings")
        if adapters:
            add_adapters(self, RANK)
        if not dropout:
            set_dropout(self, 0.0)

    def seconds(self, batch: TokenBatch) -> float:
        """Time one step."""
        self.zero_grad(set_to_none=True)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            states = self.backbone(batch)
        torch.autograd.backward(states.float().square().mean())
        return time.perf_counter() - began


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    torch.manual_seed(0)
    ids = torch.randint(1000, 20000, (given.sequences, given.tokens))
    batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    encoders = {name: Encoder(given.base, *way).train() for name, way in WAYS.items()}
    rounds = [{name: encoder.seconds(batch) for name, encoder in encoders.items()} for _ in range(given.rounds)]
    print(f"{given.sequences} x {given.tokens} tokens, {torch.get_num_threads()} threads; {machine()}")
    for name in WAYS:
        print(f"| {name} | {min(each[name] for each in rounds):.2f} s |")


if __name__ == "__main__":
    main()
