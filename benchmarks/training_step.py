"""What a training step costs on a CPU, by dropout, implementation of attention, what is tuned, and precision.

    python -m benchmarks.training_step [--base MODEL] [--sequences 32] [--tokens 128] [--rounds 6]

Times one forward and backward pass of the base model's transformer over random token ids, without an optimizer, under
bfloat16 autocast but for the last way. The ways take turns in each round, and the best of the rounds counts: other work
on the machine can only add time.
"""

import argparse
from functools import partial

import torch
from benchmarks.timing import in_turns, machine
from torch import nn

from polyrank.model.architectures.backbone import (
    Backbone,
    TensorBatch,
    backbone_config,
    load_base_weights,
    read_weights,
)
from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, WEIGHTS_FILE, read_object
from polyrank.model.checkpoint.lookup import resolve_base
from polyrank.model.training.tuning import add_adapters, select_layers, set_dropout

RANK = 32
WAYS = {  # implementation of attention, whether dropout is kept, whether only adapters are tuned, whether in bfloat16
    "as published": ("sdpa", True, False, True),
    "attention as plain products": ("eager", True, False, True),
    "no dropout": ("sdpa", False, False, True),
    "both": ("eager", False, False, True),
    f"both, adapters of rank {RANK}": ("eager", False, True, True),
    f"both, adapters of rank {RANK}, in float32": ("eager", False, True, False),
}


class Encoder(nn.Module):
    """A transformer alone, in the form that the training code expects."""

    def __init__(self, base: str, attention: str, dropout: bool, adapters: bool, halved: bool) -> None:
        super().__init__()
        self.halved = halved
        found = resolve_base(base)
        self.backbone = Backbone(backbone_config(config := found.directory / BASE_BACKBONE_FILE, read_object(config)))
        load_base_weights(self.backbone, read_weights(found.directory / WEIGHTS_FILE), base)
        self.backbone.transformer.set_attn_implementation(attention)
        select_layers(self, "all-but-embeddings")
        if adapters:
            add_adapters(self, RANK)
        if not dropout:
            set_dropout(self, 0.0)

    def step(self, batch: TensorBatch) -> None:
        """Make one step."""
        self.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, self.halved):
            states = self.backbone(batch)
        torch.autograd.backward(states.float().square().mean())


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
    batch = TensorBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    encoders = {name: Encoder(given.base, *way).train() for name, way in WAYS.items()}
    took = in_turns({name: partial(encoder.step, batch) for name, encoder in encoders.items()}, given.rounds)
    print(f"{given.sequences} x {given.tokens} tokens, {torch.get_num_threads()} threads; {machine()}")
    for name, seconds in took.items():
        print(f"| {name} | {min(seconds):.2f} s |")


if __name__ == "__main__":
    main()
