"""Choose which weights a run changes: layers (Humeau et al. Table 3) or adapters."""

import math
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.checkpoint.read import A, B
from polyrank.model.errors import CheckpointInvalid, InvalidInput

_LAYER = re.compile(r"\.layers?\.(\d+)\.")
_EMBEDDINGS = re.compile(r"\.embed")  # includes the map from narrow embeddings to the hidden size (ALBERT, ELECTRA)
_WHOLE = "BERT, RoBERTa, DistilBERT, MPNet, ELECTRA and ModernBERT"
_RATE = (float, int)  # compared by type, because a bool is an int too
_TOP = re.compile(r"top-(\d+)")


def select_layers(encoder: nn.Module, tune: str) -> None:
    """Freeze the transformers' weights that are not tuned. Codes and head are always tuned.

    `tune` is "all", "all-but-embeddings" or "top-N" layers. Raises InvalidInput for another word, for more layers than
    there are, and where the names of the family's weights do not show their layer.
    """
    for backbone in backbones(encoder).values():
        tuned = _tuned(tune, {name for name, _ in backbone.named_parameters()}, _family(backbone))
        for name, parameter in backbone.named_parameters():
            parameter.requires_grad_(name in tuned)


def _tuned(tune: str, names: set[str], family: str) -> set[str]:
    embeddings = {name for name in names if _EMBEDDINGS.search(name)}
    layers = {name: int(match[1]) for name in names if (match := _LAYER.search(name))}
    n_layers = 1 + max(layers.values(), default=-1)
    top = _TOP.fullmatch(tune)
    if tune == "all":
        return names
    if tune == "all-but-embeddings" and embeddings:
        return names - embeddings
    if top and 1 <= int(top[1]) <= n_layers:
        return {name for name, layer in layers.items() if layer >= n_layers - int(top[1])}
    raise InvalidInput(f"tune is {tune!r}; give {_choices(bool(embeddings), n_layers, family)}")


def _choices(has_embeddings: bool, n_layers: int, family: str) -> str:
    words = ["all"] + ["all-but-embeddings"] * has_embeddings + [f"top-1 to top-{n_layers}"] * (n_layers > 0)
    choices = " or ".join(", ".join(words).rsplit(", ", 1))
    if has_embeddings and n_layers:
        return choices
    return f"{choices}: the layers of {family} share their weights or go by other names than those of {_WHOLE}"


class LowRank(nn.Module):
    """A weight (out, in) plus the product of two narrow matrices, `W + B A` (Hu et al. 2021); it begins at W.

    The sum is made once for a batch, which is cheaper than a second product for each of its tokens.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.b = nn.Parameter(weight.new_zeros(len(weight), rank))
        nn.init.kaiming_uniform_(self.a, math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.b, self.a)


def add_adapters(encoder: nn.Module, rank: int) -> None:
    """Put a low-rank adapter beside every linear map that would be tuned, and freeze the transformer's own weights.

    Raises InvalidInput where a transformer has no such map.
    """
    for backbone in backbones(encoder).values():
        targets = [
            module
            for module in backbone.transformer.modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        ]
        if not targets:
            why = f"{_family(backbone)} has no linear map to put an adapter beside"
            raise InvalidInput(f"{why}; train without --lora-rank")
        backbone.requires_grad_(False)
        for target in targets:
            register_parametrization(target, "weight", LowRank(target.weight, rank))


def adapter_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    """Return the adapters under their names in a checkpoint (checkpoint/read.py), in half precision."""
    return {name: parameter.detach().half().cpu().contiguous() for name, parameter in _adapters(encoder)}


def load_adapters(encoder: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's adapters; raises CheckpointInvalid where they are of another rank or on other layers."""
    own = dict(_adapters(encoder))
    if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in tensors.items()}:
        ranks = sorted({len(tensor) for name, tensor in tensors.items() if name.endswith("lora_A")})
        if len(ranks) == 1:
            why = f"the checkpoint's adapters have rank {ranks[0]}: give --lora-rank {ranks[0]}, and --tune as it was"
        else:
            why = f"the checkpoint's adapters have ranks from {ranks[0]} to {ranks[-1]}"
        raise CheckpointInvalid(f"{why}; or train all weights, without --lora-rank")
    for name, parameter in own.items():
        parameter.data.copy_(tensors[name])


def set_dropout(encoder: nn.Module, probability: float) -> None:
    """Set every dropout rate of the transformers, those of attention weights included.

    Some families (ModernBERT) keep the rate of attention as a number. A layer that they build only for a rate above 0
    is not added.
    """
    for backbone in backbones(encoder).values():
        for module in backbone.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability
            for name in [name for name, value in vars(module).items() if "dropout" in name and type(value) in _RATE]:
                setattr(module, name, probability)


def backbones(encoder: nn.Module) -> dict[str, Backbone]:
    """Return the transformers that training may change, by name: a shared one once, and none of a first stage."""
    return {name: module for name, module in encoder.named_children() if isinstance(module, Backbone)}


def _family(backbone: Backbone) -> str:
    return str(backbone.transformer.config.model_type)


def _adapters(encoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, module in encoder.named_modules():
        if isinstance(module, LowRank):
            linear, _, _ = name.partition(".parametrizations.")
            yield from ((linear + A, module.a), (linear + B, module.b))
