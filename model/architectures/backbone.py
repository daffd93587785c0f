"""The transformer of an encoder: built from its config, weights read from safetensors only, no remote code.

The library transformers is imported when a transformer is built: a compiled model runs without it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import orjson
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.errors import CheckpointInvalid

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_NEEDED = ("hidden_size", "max_position_embeddings", "vocab_size")
_LARGEST_NUMBER = 10_000_000  # far above every size in a published config.json; lists are made of so many layers


class Backbone(nn.Module):
    """Token ids to token states, with fused attention kernels where the family has them (MPNet has none).

    Attributes:
        dim: D, the hidden size.
        max_tokens: the longest sequence that the position embeddings allow.
        vocabulary: number of token ids.

    Raises CheckpointInvalid where the config describes no transformer, or one of more than `most_parameters`.
    """

    def __init__(
        self, config: "PretrainedConfig", most_parameters: int | None = None, of: Callable[..., Any] | None = None
    ) -> None:
        """`of`: builds the module of transformers; None: AutoModel's way."""
        super().__init__()
        # cuDNN builds a plan for each new shape of a batch, half a second forward and half a second back on an H100;
        # torch's other kernels take any shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.transformer: Any = _transformer(config, most_parameters, of)
        if getattr(self.transformer, "pooler", None) is not None:
            self.transformer.pooler = None  # a head for next-sentence prediction, which no encoder here reads
        self.dim: int = config.hidden_size
        self.pad_id: int = config.pad_token_id or 0
        self.vocabulary: int = config.vocab_size
        self.max_tokens: int = config.max_position_embeddings - _reserved_positions(self.transformer)
        self._has_segments = getattr(config, "type_vocab_size", 1) > 1

    @property
    def prefix(self) -> str:
        """What published weights may have before each of its tensors' names."""
        return f"{self.transformer.base_model_prefix}."

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the outputs of the last layer, (B, T, D)."""
        states: Tensor = self.transformer(**self.inputs(batch)).last_hidden_state
        return states

    def hidden(self, batch: TokenBatch, layers: Sequence[int]) -> Tensor:
        """Return the last outputs, and the states that enter each of these layers (from 0): (B, T, (1 + layers) D)."""
        outputs = self.transformer(**self.inputs(batch), output_hidden_states=True)
        return torch.cat([outputs.last_hidden_state, *(outputs.hidden_states[layer] for layer in layers)], dim=-1)

    def beginning_with(self, rows: Tensor, batch: TokenBatch) -> Tensor:
        """Return the outputs of the last layer, (B, T, D), with rows (K, D) as the first K word embeddings."""
        inputs = self.inputs(batch)
        words: Tensor = self.transformer.get_input_embeddings()(inputs.pop("input_ids"))
        first = rows.to(words.dtype)[None].expand(words.shape[0], -1, -1)  # a compiled model takes any number of texts
        embedded = torch.cat([first, words[:, len(rows) :]], dim=1)
        states: Tensor = self.transformer(inputs_embeds=embedded, **inputs).last_hidden_state
        return states

    def inputs(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Name a batch's fields as the transformer takes them."""
        segments = {"token_type_ids": batch.segments} if self._has_segments else {}
        return {"input_ids": batch.ids, "attention_mask": batch.mask, **segments}


class PublishedScorer(Backbone):
    """A sequence classifier with one label, as it was published: token ids to one score.

    Its "token state" is the score, so `dim` is 1.
    """

    def __init__(self, config: "PretrainedConfig", most_parameters: int | None = None) -> None:
        from transformers import AutoModelForSequenceClassification

        super().__init__(config, most_parameters, AutoModelForSequenceClassification.from_config)
        self.dim = 1

    @property
    def prefix(self) -> str:
        """Nothing: the classifier's tensors are named as they were published."""
        return ""

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the score of each sequence, (B, 1, 1)."""
        scores: Tensor = self.transformer(**self.inputs(batch)).logits
        return scores[:, :1, None]


def read_backbone_config(path: Path) -> "PretrainedConfig":
    """Read a transformer's config; raises CheckpointInvalid where it describes no text encoder."""
    from transformers import AutoConfig

    try:
        large = [each for each in _whole_numbers(orjson.loads(path.read_bytes())) if each > _LARGEST_NUMBER]
        if large:
            raise CheckpointInvalid(f"{path} claims a size of {large[0]}; at most {_LARGEST_NUMBER} is taken")
        config: PretrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except CheckpointInvalid:
        raise
    except Exception as error:  # transformers raises anything from KeyError to its own types
        raise CheckpointInvalid(f"{path} cannot be used: {_one_line(error)}") from error
    lacking = [name for name in _NEEDED if not isinstance(getattr(config, name, None), int)]
    if lacking:
        raise CheckpointInvalid(f"{path} describes no text encoder: a {config.model_type} has no {lacking[0]}")
    return config


def _whole_numbers(value: object) -> Iterator[int]:
    """Yield every whole number in parsed JSON."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _whole_numbers(each)


def parameters_in(path: Path) -> int:
    """Count the parameters in a safetensors file by its header; raises CheckpointInvalid as `read_weights`."""
    if not path.is_file():
        raise CheckpointInvalid(f"{path.parent}: {path.name} is missing")
    try:
        with safe_open(path, "pt") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - it is no mapping
    except Exception as error:  # as in `read_weights`
        raise CheckpointInvalid(f"{path} cannot be read as safetensors: {error}") from error


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
    named = {name.removeprefix(backbone.prefix): tensor for name, tensor in weights.items()}
    try:
        missing, _ = backbone.transformer.load_state_dict(named, strict=False)
    except RuntimeError as error:
        raise CheckpointInvalid(f"the weights of {source} do not fit its config") from error
    if missing:
        raise CheckpointInvalid(f"the weights of {source} lack {len(missing)} tensors, the first is {missing[0]}")


def _transformer(config: "PretrainedConfig", most_parameters: int | None, of: Callable[..., Any] | None) -> Any:
    from transformers import AutoModel

    build: Callable[..., Any] = of or AutoModel.from_config
    try:
        with _bounded(most_parameters):
            # None overrides what config.json asks for: transformers takes "sdpa", or "eager" where there is none.
            return build(config, attn_implementation=None)
    except CheckpointInvalid:
        raise
    except Exception as error:  # sizes that do not fit each other raise torch's or transformers' own errors
        raise CheckpointInvalid(f"no transformer can be built from its config: {_one_line(error)}") from error


@contextmanager
def _bounded(most_parameters: int | None) -> Iterator[None]:
    """Raise CheckpointInvalid as soon as modules that this thread makes in the block have too many parameters.

    A tensor is counted before anything is written to it, so it has taken no memory by then.
    """
    thread, count = get_ident(), 0

    def add(_module: nn.Module, _name: str, parameter: Tensor | None) -> None:
        nonlocal count
        if parameter is None or most_parameters is None or get_ident() != thread:
            return
        count += parameter.numel()
        if count > most_parameters:
            raise CheckpointInvalid(
                f"its config claims more than {most_parameters} parameters, many more than model.safetensors holds"
            )

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _reserved_positions(transformer: Any) -> int:
    """Count positions that no token gets: RoBERTa and its relatives (MPNet too) count from the padding's on."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1
