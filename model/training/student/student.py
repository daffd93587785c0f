"""The model that a run trains: built from a base model or a checkpoint, and written as a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyrank.model.architectures.backbone import read_weights
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.adapter import split
from polyrank.model.checkpoint.base import BaseModel, resolve_base
from polyrank.model.checkpoint.files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, CheckpointFiles, read_config
from polyrank.model.checkpoint.kind import require_network
from polyrank.model.checkpoint.published import Published, read_published
from polyrank.model.checkpoint.read import Encoder, begin, build, completed, load_base, own_tensors, read_checkpoint
from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.options import options_of
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.tokenizer import Tokenizer
from polyrank.model.training.config import MODEL_FIELDS, PairTrainConfig, TrainConfig
from polyrank.model.training.student.first_stage import begin_near_first_stage, first_stage_config, take_first_stage
from polyrank.model.training.student.tuning import (
    adapter_tensors,
    add_adapters,
    backbones,
    load_adapters,
    select_layers,
    set_dropout,
)


@dataclass(frozen=True)
class Student:
    """An encoder under training.

    Attributes:
        directory: where the transformer's config and tokenizer.json for its checkpoint are.
        fixed: adapters that belong in the checkpoint and are not trained (those of a first stage).
    """

    encoder: Encoder
    config: ModelConfig
    directory: Path
    assembler: Assembler
    fixed: dict[str, Tensor] = field(default_factory=dict)

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that training changes."""
        return {name: parameter for name, parameter in self.encoder.named_parameters() if parameter.requires_grad}

    def save(self, directory: Path, training: Mapping[str, Any]) -> None:
        """Write a checkpoint of the weights as they are now."""
        tensors = own_tensors(self.encoder)
        if self.config.weights == "adapter":
            tensors |= adapter_tensors(self.encoder) | self.fixed
        weights = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        config = replace(self.config, training=training)
        CheckpointFiles(config, self.directory, weights).write(directory)


def start(config: TrainConfig) -> Student:
    """Build the model that a run begins with.

    From a base model both sides start equal (Humeau et al. 4.2), and codes and head are drawn at random. From a
    checkpoint the transformers are taken over: side by side where both models have two, the context side's where this
    one has one; codes and head too where they fit. A residual Cross-encoder begins near its first stage's ranking.

    Raises ModelNotFound or CheckpointInvalid where the base cannot be used, InvalidInput for conflicting settings.
    """
    require_network(config.base)
    torch.manual_seed(config.seed)
    directory, first_stage = Path(config.base), _first_stage(config)
    source = read_config(directory / CONFIG_FILE) if (directory / CONFIG_FILE).is_file() else None
    if source is not None and source.head == "published":
        raise InvalidInput(f"{config.base} is a copy of a published reranker; give {source.base_name} itself as --base")
    if source is None:
        student = _from_base(config)
    elif config.lora_rank:
        student = _adapters_from_checkpoint(config, directory, source)
    else:
        student = _from_checkpoint(config, directory)
    if first_stage is None:
        return student
    assert isinstance(student.encoder, CrossEncoder)
    begin_near_first_stage(student.encoder, source)
    return replace(student, fixed=take_first_stage(student.encoder, first_stage, student.directory))


def _first_stage(config: TrainConfig) -> Path | None:
    return Path(config.first_stage) if isinstance(config, PairTrainConfig) and config.first_stage else None


def _from_base(config: TrainConfig) -> Student:
    base = resolve_base(config.base)
    separator = Tokenizer(base.directory / TOKENIZER_FILE).separator
    source = _like_a_sentence_encoder(base.name, separator, read_published(base.directory))
    student = _untrained(_model_config(config, source, base.sha256), base.directory, base)
    load_base(student.encoder, base)
    _prepare(student.encoder, config)
    return student


def _from_checkpoint(config: TrainConfig, directory: Path) -> Student:
    source, _ = read_checkpoint(directory)
    student = _untrained(_model_config(config, source.config, ""), directory)
    _take_over(own_tensors(student.encoder), source.state_dict())
    begin(student.encoder)  # with the transformers that were taken over; then what the source has itself
    _take_over(own_tensors(student.encoder), source.state_dict())
    _prepare(student.encoder, config)
    return student


def _adapters_from_checkpoint(config: TrainConfig, directory: Path, source: ModelConfig) -> Student:
    if source.weights == "full":
        why = f"{directory} holds full weights, which an adapter cannot refer to"
        raise InvalidInput(f"{why}; train without --lora-rank")
    base = resolve_base(source.base_name, source.base_sha256)
    student = _untrained(_model_config(config, source, base.sha256), directory, base)
    load_base(student.encoder, base)
    _prepare(student.encoder, config)
    weights = directory / WEIGHTS_FILE
    adapter, others = split(read_weights(weights) if weights.is_file() else {})
    if source.weights == "adapter":
        found = {name: _counterpart(name, adapter) for name in adapter_tensors(student.encoder)}
        load_adapters(student.encoder, {name: tensor for name, tensor in found.items() if tensor is not None})
    _take_over(own_tensors(student.encoder), others)
    return student


def _untrained(config: ModelConfig, directory: Path, base: BaseModel | None = None) -> Student:
    tokenizer = Tokenizer(directory / TOKENIZER_FILE)
    config = completed(config, tokenizer)
    assembler = Assembler(tokenizer, config)
    weights = base.directory / WEIGHTS_FILE if base is not None else None
    return Student(build(config, directory, weights), config, directory, assembler)


def _like_a_sentence_encoder(base_name: str, separator: str, published: Published) -> ModelConfig:
    """Return the defaults of a model that begins with a base model's weights.

    It reduces as the base was published, without its Dense layers. Unit length and scales suit sentence encoders, whose
    raw outputs leave both softmaxes flat (`start` of TrainConfig's fields).
    """
    begun = {each.field: each.about["start"] for each in options_of(TrainConfig) if "start" in each.about}
    return ModelConfig(
        architecture="bi",
        base_name=base_name,
        reduction=published.reduction,
        **begun,
        assembly=AssemblyConfig(
            turn_separator=separator,
            persona_separator=separator,
            context_prompt=published.context_prompt,
            candidate_prompt=published.candidate_prompt,
        ),
    )


def _model_config(config: TrainConfig, source: ModelConfig, base_sha256: str) -> ModelConfig:
    """Return the config of the source, or of the first stage if there is one, with this run's settings."""
    first_stage = _first_stage(config)
    if first_stage is not None:
        source = replace(first_stage_config(first_stage), base_name=source.base_name)
    elif source.residual:
        raise InvalidInput("the base adds to a poly-encoder's scores: give that one as --first-stage, or as the base")
    adapter = config.lora_rank > 0
    given = {name: value for name in MODEL_FIELDS if (value := getattr(config, name)) is not None}
    if "reduction_m" in given and given.get("reduction", source.reduction) != "first-m mean":
        raise InvalidInput("reduction_m is for --reduction 'first-m mean': give that, too")
    turns = given.pop("max_turns", source.assembly.max_turns)
    return replace(
        source,
        **given,
        own=config.own(source.own),
        architecture=config.architecture,
        residual=first_stage is not None,
        labels=tuple(config.labels),
        class_from=config.class_from,
        base_sha256=base_sha256 if adapter else "",
        weights="adapter" if adapter else "full",
        assembly=replace(source.assembly, max_turns=turns),
        evidence=None,  # fitted to the scores of the source, as the calibration
        calibration=None,
        training={},
    )


def _prepare(encoder: Encoder, config: TrainConfig) -> None:
    select_layers(encoder, config.tune)
    if config.lora_rank:
        add_adapters(encoder, config.lora_rank)
    if config.dropout is not None:
        set_dropout(encoder, config.dropout)
    for transformer in (backbone.transformer for backbone in backbones(encoder).values()):
        if config.gradient_checkpointing and not transformer.supports_gradient_checkpointing:
            family = transformer.config.model_type
            raise InvalidInput(f"{family} keeps all layers' activations; train without --gradient-checkpointing")


def _take_over(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy into a model's own tensors those of another model that fit."""
    for name, tensor in own.items():
        found = _counterpart(name, tensors)
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)


def _counterpart(name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Find the tensor of that name, or the one of the other model's transformer that is nearest in its part."""
    tower, _, rest = name.partition(".")
    nearest = {"context": ("encoder",), "candidate": ("context", "encoder"), "encoder": ("context",)}.get(tower, ())
    for side in (tower, *nearest):
        if (found := tensors.get(f"{side}.{rest}" if rest else side)) is not None:
            return found
    return None
