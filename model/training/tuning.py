"""Which weights a run changes: layers (Humeau et al. Table 3), or adapters; and what a checkpoint keeps of them."""

import re
from collections.abc import Iterator, Mapping

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from model.adapter import A, B
from model.backbone import Backbone
from model.errors import CheckpointInvalid, InvalidInput

_LAYER = re.compile(r"\.layers?\.(\d+)\.")
_TOP = re.compile(r"top-(\d+)")


def select_layers(encoder: nn.Module, tune: str) -> None:
    """Freeze what is not to be tuned; what is no part of a transformer (codes, head) always is.

    Args:
        encoder: any architecture.
        tune: "all", "all-but-embeddings", or "top-N" layers.

    Raises InvalidInput for another word, or more layers than there are.
    """
    for backbone in backbones(encoder).values():
        names = [name for name, _ in backbone.named_parameters()]
        n_layers = 1 + max((int(found[1]) for found in map(_LAYER.search, names) if found), default=-1)
        lowest = _lowest_layer(tune, n_layers)
        for name, parameter in backbone.named_parameters():
            layer = _LAYER.search(name)
            parameter.requires_grad_(tune == "all" or (layer is not None and int(layer[1]) >= lowest))


def _lowest_layer(tune: str, n_layers: int) -> int:
    if tune in ("all", "all-but-embeddings"):
        return 0
    top = _TOP.fullmatch(tune)
    if top is None or not 1 <= int(top[1]) <= n_layers:
        raise InvalidInput(f"tune is {tune!r}; give all, all-but-embeddings or top-1 to top-{n_layers}")
    return n_layers - int(top[1])


def add_adapters(encoder: nn.Module, rank: int) -> None:
    """Put a low-rank adapter beside every linear map that would be tuned, and freeze the transformer's own weights."""
    for backbone in backbones(encoder).values():
        targets = [
            name
            for name, module in backbone.transformer.named_modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        ]
        backbone.requires_grad_(False)
        # alpha = rank: the product is added as it is, which is what a checkpoint says.
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets), backbone.transformer)
        for module in backbone.modules():
            if isinstance(module, LoraLayer):
                module.cast_input_dtype_enabled = False  # autocast does it where it must; peft would copy every input


def adapter_tensors(encoder: nn.Module) -> dict[str, Tensor]:
    """The adapters in a checkpoint's names (model.adapter), in half precision: three digits of a small difference."""
    return {name: parameter.detach().half().cpu().contiguous() for name, parameter in _adapters(encoder)}


def load_adapters(encoder: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Go on from a checkpoint's adapters; raises CheckpointInvalid where they are of another rank or other layers."""
    own = dict(_adapters(encoder))
    if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in tensors.items()}:
        raise CheckpointInvalid(
            "the checkpoint's adapters are of another rank or on other layers; use its own settings"
        )
    for name, parameter in own.items():
        parameter.data.copy_(tensors[name])


def set_dropout(encoder: nn.Module, probability: float) -> None:
    """Set every dropout of the transformers, that of the attention weights included."""
    for backbone in backbones(encoder).values():
        for module in backbone.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability


def backbones(encoder: nn.Module) -> dict[str, Backbone]:
    """The transformers of an encoder by name; a shared one once."""
    return {name: module for name, module in encoder.named_children() if isinstance(module, Backbone)}


def _adapters(encoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in encoder.named_parameters():
        for ours, theirs in ((A, ".lora_A.default.weight"), (B, ".lora_B.default.weight")):
            if name.endswith(theirs):
                yield name.removesuffix(theirs) + ours, parameter
