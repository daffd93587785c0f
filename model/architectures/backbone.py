"""The transformer of an encoder: built from its config, weights read from safetensors only, no remote code.

The library transformers is imported when a transformer is built: a compiled model runs without it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.options import MOST_WHOLE, WIDEST

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MOST_SHOWN = 1000  # letters of a library's message, or of what a file says
_NEEDED = ("hidden_size", "max_position_embeddings", "vocab_size")
_TEXT_TASKS = ("MASKED_LM", "CAUSAL_LM", "SEQUENCE_CLASSIFICATION")
# Code beside the config, which transformers would offer to run; and what changes how a transformer is called, not what
# it computes.
_LEFT_OUT = ("auto_map", "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict")
_PARTS = ("layer", "label", "group")  # of each of these transformers makes an object in Python


class TensorBatch(NamedTuple):
    """A TokenBatch as torch takes it, on one device: token ids, mask and segment ids, (B, T) each."""

    ids: Tensor
    mask: Tensor
    segments: Tensor

    @classmethod
    def of(cls, batch: TokenBatch, device: torch.device | str = "cpu") -> "TensorBatch":
        """Copy a batch to a device; on the CPU its memory is shared."""
        return cls(*(torch.from_numpy(field).to(device) for field in batch))


class Backbone(nn.Module):
    """Token ids to token states, with fused attention kernels where the family has them (MPNet has none).

    Attributes:
        max_tokens: the longest sequence that the position embeddings allow.
        autocast: what whoever runs single layers runs them under; training replaces it.

    Raises CheckpointInvalid where the config describes no transformer, or one of more than `most_parameters`.
    """

    def __init__(
        self, config: "PretrainedConfig", most_parameters: int | None = None, kind: type[Any] | None = None
    ) -> None:
        """`kind`: the class of transformers that builds the module; None: AutoModel."""
        super().__init__()
        # cuDNN builds a plan for each new shape of a batch, half a second forward and half a second back on an H100;
        # torch's other kernels take any shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.transformer: Any = _transformer(config, most_parameters, kind)
        if getattr(self.transformer, "pooler", None) is not None:
            self.transformer.pooler = None  # a head for next-sentence prediction, which no encoder here reads
        self.dim: int = config.hidden_size
        self.vocabulary: int = config.vocab_size
        pad_id = config.pad_token_id or 0
        self.pad_id: int = pad_id if 0 <= pad_id < self.vocabulary else 0  # masked; some families write -1
        self.max_tokens: int = config.max_position_embeddings - _reserved_positions(self.transformer)
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._has_segments = getattr(config, "type_vocab_size", 1) > 1

    @property
    def prefix(self) -> str:
        """What published weights may have before each of its tensors' names."""
        return f"{self.transformer.base_model_prefix}."

    def forward(self, batch: TensorBatch) -> Tensor:
        """Return the outputs of the last layer, (B, T, D)."""
        states: Tensor = self.transformer(**self.inputs(batch)).last_hidden_state
        return states

    def hidden(self, batch: TensorBatch, layers: Sequence[int]) -> Tensor:
        """Return the last outputs, and the states that enter each of these layers (from 0): (B, T, (1 + layers) D)."""
        outputs = self.transformer(**self.inputs(batch), output_hidden_states=True)
        return torch.cat([outputs.last_hidden_state, *(outputs.hidden_states[layer] for layer in layers)], dim=-1)

    def beginning_with(self, rows: Tensor, batch: TensorBatch) -> Tensor:
        """Return the outputs of the last layer, (B, T, D), with rows (K, D) as the first K word embeddings."""
        inputs = self.inputs(batch)
        words: Tensor = self.transformer.get_input_embeddings()(inputs.pop("input_ids"))
        first = rows.to(words.dtype)[None].expand(words.shape[0], -1, -1)  # a compiled model takes any number of texts
        embedded = torch.cat([first, words[:, len(rows) :]], dim=1)
        states: Tensor = self.transformer(inputs_embeds=embedded, **inputs).last_hidden_state
        return states

    def embedded(self, ids: Tensor, places: Tensor, segments: Tensor) -> Tensor:
        """Return what enters the first layer, (B, T, D), of tokens (B, T) at places (B, T) that count from 0."""
        own = {"token_type_ids": segments if self._has_segments else torch.zeros_like(segments)}
        places = places + _reserved_positions(self.transformer)
        states: Tensor = self.transformer.embeddings(input_ids=ids, position_ids=places, **own)
        project = getattr(self.transformer, "embeddings_project", None)  # ELECTRA's embeddings may be narrower
        return states if project is None else project(states)

    def inputs(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Name a batch's fields as the transformer takes them."""
        segments = {"token_type_ids": batch.segments} if self._has_segments else {}
        return {"input_ids": batch.ids, "attention_mask": batch.mask, **segments}


class PublishedScorer(Backbone):
    """A sequence classifier with one label, as it was published: token ids to one score.

    Its "token state" is the score, so `dim` is 1.
    """

    def __init__(self, config: "PretrainedConfig", most_parameters: int | None = None) -> None:
        from transformers import AutoModelForSequenceClassification

        super().__init__(config, most_parameters, AutoModelForSequenceClassification)
        self.dim = 1

    @property
    def prefix(self) -> str:
        """Nothing: the classifier's tensors are named as they were published."""
        return ""

    def forward(self, batch: TensorBatch) -> Tensor:
        """Return the score of each sequence, (B, 1, 1)."""
        scores: Tensor = self.transformer(**self.inputs(batch)).logits
        return scores[:, :1, None]


def backbone_config(path: Path, raw: Mapping[str, Any]) -> "PretrainedConfig":
    """Make a transformer's config of what the file `path` holds; nothing else is looked up, here or on the hub.

    Raises CheckpointInvalid where it describes no text encoder.
    """
    from transformers.models.auto import configuration_auto, modeling_auto

    _require_bounded(path, raw)
    family = raw.get("model_type")
    # Other families are made of several models, whose configs may name some on the hub: transformers would ask it.
    families = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in _TEXT_TASKS]
    if not isinstance(family, str) or not any(family in names for names in families):
        raise CheckpointInvalid(f"{path}: model_type is {_one_line(family)}, no text encoder that transformers knows")
    try:
        kind = configuration_auto.CONFIG_MAPPING[family]
        config: PretrainedConfig = kind.from_dict({name: raw[name] for name in raw if name not in _LEFT_OUT})
    except Exception as error:  # transformers raises anything from KeyError to its own types
        raise CheckpointInvalid(f"{path} cannot be used: {_one_line(error)}") from error
    missing = [name for name in _NEEDED if not isinstance(getattr(config, name, None), int)]
    if missing:
        raise CheckpointInvalid(f"{path} describes no text encoder: a {config.model_type} has no {missing[0]}")
    return config


def _require_bounded(path: Path, raw: Mapping[str, Any]) -> None:
    """Raise CheckpointInvalid for a whole number in parsed JSON that no transformer has."""
    values: list[tuple[str, Any]] = list(raw.items())
    while values:
        name, value = values.pop()
        if isinstance(value, dict):
            values += value.items()
        elif isinstance(value, list):
            values += ((name, each) for each in value)
        elif isinstance(value, int):
            most = WIDEST if any(part in name for part in _PARTS) else MOST_WHOLE
            if abs(value) > most:
                raise CheckpointInvalid(f"{path} claims a size of {value} as {name[:80]}; at most {most} is taken")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises CheckpointInvalid when it is missing or damaged."""
    with _readable(path):
        return load_file(path)


def read_shapes(path: Path) -> dict[str, Tensor]:
    """Read the header of a safetensors file into tensors of the device "meta", which hold nothing."""
    with _readable(path), safe_open(path, "pt") as file:
        names = file.keys()
        return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in names}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise CheckpointInvalid(f"{path.parent}: {path.name} is missing")
    try:
        yield
    except Exception as error:  # safetensors raises its own type, OSError or ValueError
        raise CheckpointInvalid(f"{path} cannot be read as safetensors: {error}") from error


def load_base_weights(backbone: Backbone, weights: Mapping[str, Tensor], source: str) -> None:
    """Put a published model's weights into the backbone.

    Published files name tensors with or without the model's prefix ("bert."); their heads are left out. Raises
    CheckpointInvalid where a tensor of the backbone is missing or has another shape.
    """
    tensors = {name.removeprefix(backbone.prefix): tensor for name, tensor in weights.items()}
    try:
        missing, _ = backbone.transformer.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise CheckpointInvalid(f"the weights of {source} do not fit its config") from error
    if missing:
        raise CheckpointInvalid(f"the weights of {source} lack {len(missing)} tensors, the first is {missing[0]}")


def _transformer(config: "PretrainedConfig", most_parameters: int | None, kind: type[Any] | None) -> Any:
    from transformers import AutoModel

    try:
        with _bounded(most_parameters):
            # None overrides what config.json asks for, which may be code of a hub: transformers takes its own.
            implementations = {"attn_implementation": None, "experts_implementation": None}
            return (kind or AutoModel).from_config(config, **implementations, trust_remote_code=False)
    except CheckpointInvalid:
        raise
    except Exception as error:  # sizes that do not fit each other raise torch's or transformers' own errors
        raise CheckpointInvalid(f"no transformer can be built from its config: {_one_line(error)}") from error


@contextmanager
def _bounded(most_parameters: int | None) -> Iterator[None]:
    """Raise CheckpointInvalid as soon as modules that this thread makes in the block have too large tensors.

    A parameter is counted before anything is written to it, so it has taken no memory by then.
    """
    thread, count = get_ident(), 0

    def add(_module: nn.Module, _name: str, tensor: Tensor | None) -> None:
        nonlocal count
        if tensor is None or most_parameters is None or get_ident() != thread:
            return
        count += tensor.numel()
        if count > most_parameters:
            raise CheckpointInvalid(
                f"its config claims more than {most_parameters} parameters, many more than model.safetensors holds"
            )

    hooks = [register_module_parameter_registration_hook(add), register_module_buffer_registration_hook(add)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_MOST_SHOWN]


def _reserved_positions(transformer: Any) -> int:
    """Count positions that no token gets: RoBERTa and its relatives (MPNet too) count from the padding's on."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1


Activation = Callable[[Tensor], Tensor]

_TANH_GELU = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "relu": F.relu,
    "silu": F.silu,
}


class Layer(nn.Module):
    """The maps of a layer of BERT: attention, feed-forward network, and a norm behind each."""

    def __init__(self, dim: int, heads: int, inner: int, eps: float, activation: Activation = F.gelu) -> None:
        super().__init__()
        self._heads, self._activation = heads, activation
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.norm, self.last_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)

    @classmethod
    def like(cls, backbone: Backbone) -> Self:
        """Build one of the shapes of a transformer's layers; its weights are random.

        Raises CheckpointInvalid if the function between its two linear maps is not known here.
        """
        shape = backbone.transformer.config
        if shape.hidden_act not in _ACTIVATIONS:
            raise CheckpointInvalid(
                f"hidden_act is {shape.hidden_act!r}; layers are copied for {', '.join(_ACTIVATIONS)}"
            )
        sizes = backbone.dim, shape.num_attention_heads, shape.intermediate_size
        return cls(*sizes, shape.layer_norm_eps, _ACTIVATIONS[shape.hidden_act])

    def take(self, layer: Any) -> None:
        """Copy the maps of a layer of BERT."""
        own = layer.attention.self
        copied: list[tuple[Any, Any]] = [(self.query, own.query), (self.key, own.key), (self.value, own.value)]
        copied += [(self.output, layer.attention.output.dense), (self.norm, layer.attention.output.LayerNorm)]
        copied += [(self.up, layer.intermediate.dense), (self.down, layer.output.dense)]
        copied += [(self.last_norm, layer.output.LayerNorm)]
        for mine, theirs in copied:
            mine.weight.copy_(theirs.weight)
            mine.bias.copy_(theirs.bias)

    def attended(self, states: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's outputs at some places, (N, Q, D).

        states: what enters the layer there, (N, Q, D). query: their queries, (N, Q, D). key, value: of all rows, (N, S,
        D). mask: which of these rows count, (N, S).
        """
        q, k, v = (self.split(each).transpose(1, 2) for each in (query, key, value))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.fed(self.norm(self.output(heads.transpose(1, 2).flatten(-2)) + states))

    def fed(self, states: Tensor) -> Tensor:
        """Run the feed-forward network, with its own residual connection and norm."""
        outputs: Tensor = self.last_norm(self.down(self._activation(self.up(states))) + states)
        return outputs

    def split(self, states: Tensor) -> Tensor:
        """Cut states (..., D) into heads, (..., H, D / H)."""
        return states.view(*states.shape[:-1], self._heads, -1)


def layers_of(backbone: Backbone, reader: str) -> Any:
    """Return the layers of a transformer with BERT's names.

    Raises CheckpointInvalid if it is of another family, which `reader` cannot read.
    """
    layers = getattr(getattr(backbone.transformer, "encoder", None), "layer", None)
    if layers is None or not hasattr(getattr(layers[0].attention, "self", None), "key"):
        family = backbone.transformer.config.model_type
        raise CheckpointInvalid(f"{reader} reads keys and values of BERT's and RoBERTa's layers; {family} has others")
    return layers
