"""The transformer of an encoder: built from config.json, weights read from safetensors only, no remote code.

The library transformers is imported when a transformer is built: a compiled model runs without it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import Tensor, nn

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.errors import CheckpointInvalid

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_NEEDED = ("hidden_size", "max_position_embeddings", "vocab_size")
# Far above every published encoder. A transformer is built before its weights are read, and takes memory by then.
_MOST_LAYERS = 1000
_MOST_PARAMETERS = 16e9


class Backbone(nn.Module):
    """Token ids to token states, with fused attention kernels where the family has them (MPNet has none).

    Attributes:
        dim: D, the hidden size.
        max_tokens: the longest sequence that the position embeddings allow.
        vocabulary: number of token ids.
    """

    def __init__(self, config: "PretrainedConfig") -> None:
        super().__init__()
        self.transformer: Any = _transformer(config)
        if getattr(self.transformer, "pooler", None) is not None:
            self.transformer.pooler = None  # a head for next-sentence prediction, which no encoder here reads
        self.dim: int = config.hidden_size
        self.pad_id: int = config.pad_token_id or 0
        self.vocabulary: int = config.vocab_size
        self.max_tokens: int = config.max_position_embeddings - _reserved_positions(self.transformer)
        self._has_segments = getattr(config, "type_vocab_size", 1) > 1

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the outputs of the last layer, (B, T, D)."""
        segments = {"token_type_ids": batch.segments} if self._has_segments else {}
        outputs = self.transformer(input_ids=batch.ids, attention_mask=batch.mask, **segments)
        states: Tensor = outputs.last_hidden_state
        return states


def read_backbone_config(directory: Path) -> "PretrainedConfig":
    """Read the transformer's config.json; raises CheckpointInvalid where it describes no text encoder."""
    from transformers import AutoConfig

    path = directory / "config.json"
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises anything from KeyError to its own types
        raise CheckpointInvalid(f"{path} cannot be used: {_one_line(error)}") from error
    lacking = [name for name in _NEEDED if not isinstance(getattr(config, name, None), int)]
    if lacking:
        raise CheckpointInvalid(f"{path} describes no text encoder: a {config.model_type} has no {lacking[0]}")
    if (layers := _whole(config, "num_hidden_layers")) > _MOST_LAYERS:
        raise CheckpointInvalid(f"{path} claims {layers} layers; at most {_MOST_LAYERS} are built")
    if (parameters := _parameters(config)) > _MOST_PARAMETERS:
        many = f"{float(parameters):.3g} parameters; at most {_MOST_PARAMETERS:.3g} are built"
        raise CheckpointInvalid(f"{path} claims {many}")
    return config


def _parameters(config: "PretrainedConfig") -> int:
    """Estimate the number of parameters: embeddings, four projections of the attention, two of the feed-forward."""
    a_layer = 4 * _whole(config, "hidden_size") + 2 * _whole(config, "intermediate_size")
    embedded = sum(_whole(config, name) for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
    return _whole(config, "hidden_size") * (embedded + _whole(config, "num_hidden_layers") * a_layer)


def _whole(config: "PretrainedConfig", name: str) -> int:
    """Return a size; 0 where the family has none of this name, or not one number."""
    size = getattr(config, name, 0)
    return size if isinstance(size, int) else 0


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises CheckpointInvalid when it is damaged."""
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type, OSError or ValueError
        raise CheckpointInvalid(f"{path} cannot be read as safetensors: {error}") from error


def load_base_weights(backbone: Backbone, weights: Mapping[str, Tensor], source: str) -> None:
    """Put a published model's weights into the backbone.

    Published files name tensors with or without the model's prefix ("bert."); their heads are left out. Raises
    CheckpointInvalid where a tensor of the backbone is missing or has another shape.
    """
    prefix = backbone.transformer.base_model_prefix + "."
    named = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    try:
        missing, _ = backbone.transformer.load_state_dict(named, strict=False)
    except RuntimeError as error:
        raise CheckpointInvalid(f"the weights of {source} do not fit its config.json") from error
    if missing:
        raise CheckpointInvalid(f"the weights of {source} lack {len(missing)} tensors, the first is {missing[0]}")


def _transformer(config: "PretrainedConfig") -> Any:
    from transformers import AutoModel

    build: Callable[..., Any] = AutoModel.from_config
    try:
        # None overrides what config.json asks for: transformers takes "sdpa", or "eager" where there is none.
        return build(config, attn_implementation=None)
    except Exception as error:  # sizes that do not fit each other raise torch's or transformers' own errors
        raise CheckpointInvalid(f"no transformer can be built from config.json: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _reserved_positions(transformer: Any) -> int:
    """Count positions that no token gets: RoBERTa and its relatives (MPNet too) count from the padding's on."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1
