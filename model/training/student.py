"""The model that a run trains: built from a base model or a checkpoint, and written as a checkpoint.

Weights that were trained without decay may give outputs so large that attention over them saturates. So a transformer's
outputs can be re-scaled to the spread of another's before training (Humeau et al. 5.3: the last linear layer is
re-scaled until the standard deviation of its output matches BERT's; in transformers of BERT's kind that is the map of
the last norm).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone, TensorBatch, read_weights
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.pairs import FIRST_STAGE, PairEncoder
from polyrank.model.checkpoint.discovery import read_checkpoint
from polyrank.model.checkpoint.files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    CheckpointFiles,
    backbone_file,
    file_sha256,
    read_config,
)
from polyrank.model.checkpoint.lookup import BaseModel, by_published_name, require_network, resolve_base
from polyrank.model.checkpoint.read import (
    Encoder,
    begin,
    build,
    completed,
    load_base,
    own_tensors,
    split,
)
from polyrank.model.checkpoint.sentence_encoder import Published, read_published
from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.options import options_of
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.registry import ARCHITECTURES, in_words
from polyrank.model.text.assembly import Assembler, Conversation
from polyrank.model.text.tokenizer import Tokenizer
from polyrank.model.training.config import MODEL_FIELDS, PairTrainConfig, TrainConfig
from polyrank.model.training.tuning import (
    adapter_tensors,
    add_adapters,
    backbones,
    load_adapters,
    select_layers,
    set_dropout,
)


@dataclass(frozen=True)
class Student:
    """An encoder under training."""

    encoder: Encoder
    config: ModelConfig
    directory: Path  # where the transformer's config and tokenizer.json for its checkpoint are
    assembler: Assembler
    # Adapters that belong in the checkpoint and are not trained (those of a first stage).
    fixed: dict[str, Tensor] = field(default_factory=dict)

    def trainable(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in self.encoder.named_parameters() if parameter.requires_grad}

    def save(self, directory: Path, training: Mapping[str, Any]) -> None:
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
    assert isinstance(student.encoder, PairEncoder)
    begin_near_first_stage(student.encoder, source)
    return replace(student, fixed=take_first_stage(student.encoder, first_stage, student.directory))


def _first_stage(config: TrainConfig) -> Path | None:
    return Path(config.first_stage) if isinstance(config, PairTrainConfig) and config.first_stage else None


def _from_base(config: TrainConfig) -> Student:
    base = by_published_name(resolve_base(config.base))
    separator = Tokenizer(base.directory / TOKENIZER_FILE).separator
    source = _like_a_sentence_encoder(base.name, separator, read_published(base.directory))
    student = _untrained(_model_config(config, source, base), base.directory, base)
    load_base(student.encoder, base)
    _prepare(student.encoder, config)
    return student


def _from_checkpoint(config: TrainConfig, directory: Path) -> Student:
    source, _ = read_checkpoint(directory)
    student = _untrained(_model_config(config, source.config), directory)
    _take_over(own_tensors(student.encoder), source.state_dict())
    begin(student.encoder)  # with the transformers that were taken over; then what the source has itself
    _take_over(own_tensors(student.encoder), source.state_dict())
    _prepare(student.encoder, config)
    return student


def _adapters_from_checkpoint(config: TrainConfig, directory: Path, source: ModelConfig) -> Student:
    if source.weights == "full":
        why = f"{directory} holds full weights, which an adapter cannot refer to"
        raise InvalidInput(f"{why}; train without --lora-rank")
    base = resolve_base(source.base_name, source.base_weights)
    student = _untrained(_model_config(config, source, base), directory, base)
    load_base(student.encoder, base)
    _prepare(student.encoder, config)
    weights = directory / WEIGHTS_FILE
    adapter, others = split(read_weights(weights) if weights.is_file() else {})
    if source.weights == "adapter":
        counterparts = {name: _counterpart(name, adapter) for name in adapter_tensors(student.encoder)}
        load_adapters(student.encoder, {name: tensor for name, tensor in counterparts.items() if tensor is not None})
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
    values = {each.field: each.about["start"] for each in options_of(TrainConfig) if "start" in each.about}
    return ModelConfig(
        architecture="bi",
        base_name=base_name,
        reduction=published.reduction,
        **values,
        assembly=AssemblyConfig(
            turn_separator=separator,
            persona_separator=separator,
            context_prompt=published.context_prompt,
            candidate_prompt=published.candidate_prompt,
        ),
    )


def _model_config(config: TrainConfig, source: ModelConfig, base: BaseModel | None = None) -> ModelConfig:
    """Return the config of the source, or of the first stage if there is one, with this run's settings.

    base: the model that adapters refer to.
    """
    first_stage = _first_stage(config)
    if first_stage is not None:
        source = replace(first_stage_config(first_stage), base_name=source.base_name)
    elif source.residual:
        raise InvalidInput("the base adds to a poly-encoder's scores: give that one as --first-stage, or as the base")
    adapter = config.lora_rank > 0
    settings = {name: value for name in MODEL_FIELDS if (value := getattr(config, name)) is not None}
    if "reduction_m" in settings and settings.get("reduction", source.reduction) != "first-m mean":
        raise InvalidInput("reduction_m is for --reduction 'first-m mean': give that, too")
    turns = settings.pop("max_turns", source.assembly.max_turns)
    languages = tuple(settings.pop("languages", source.languages))
    return replace(
        source,
        **settings,
        own=config.own(source.own),
        languages=languages,
        architecture=config.architecture,
        residual=first_stage is not None,
        labels=tuple(config.labels),
        class_from=config.class_from,
        base_sha256=base.sha256 if adapter and base else "",
        base_forms=base.other_forms if adapter and base else (),
        weights="adapter" if adapter else "full",
        assembly=replace(source.assembly, max_turns=turns),
        evidence=None,  # fitted to the scores of the source, as the calibration
        calibration=None,
        quantisation=None,
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
        counterpart = _counterpart(name, tensors)
        if counterpart is not None and counterpart.shape == tensor.shape:
            tensor.copy_(counterpart)


def _counterpart(name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Find the tensor of that name, or the one of the other model's transformer that is nearest in its part."""
    tower, _, rest = name.partition(".")
    nearest = {"context": ("encoder",), "candidate": ("context", "encoder"), "encoder": ("context",)}.get(tower, ())
    for side in (tower, *nearest):
        if (tensor := tensors.get(f"{side}.{rest}" if rest else side)) is not None:
            return tensor
    return None


# Two models that are right about the same rows count them twice. Of Cross-encoders that were trained apart and added to
# a Poly-encoder's scores, those at 0.1 to 0.3 of their size ranked best.
_HEAD_SHARE = 0.25


def first_stage_config(directory: Path) -> ModelConfig:
    """Read the config of a first stage; raises InvalidInput where it is no Poly-encoder's checkpoint."""
    if not (directory / CONFIG_FILE).is_file():
        raise InvalidInput(f"{directory} is no checkpoint; give a poly-encoder's as --first-stage")
    config = read_config(directory / CONFIG_FILE)
    if config.architecture != FIRST_STAGE:
        raise InvalidInput(f"{directory} is {in_words(config.architecture)}; give a poly-encoder as --first-stage")
    return config


def take_first_stage(encoder: PairEncoder, directory: Path, base: Path) -> dict[str, Tensor]:
    """Fill the Poly-encoder of a residual encoder of pairs from its own checkpoint.

    `base` is the directory of that encoder's config and tokenizer.json. Returns the Poly-encoder's adapters,
    under their names in its checkpoint.

    Raises InvalidInput where the two do not go together, CheckpointInvalid where the first stage is damaged.
    """
    assert encoder.poly is not None
    ranker, config = load_vector_ranker(directory), encoder.config
    stored = ranker.config
    tokenizers = (directory / TOKENIZER_FILE, base / TOKENIZER_FILE)
    for its, own in ((backbone_file(directory), backbone_file(base)), tokenizers):
        if file_sha256(its) != file_sha256(own):
            raise InvalidInput(f"{directory} has another {its.name} than the base; train both from one base model")
    if config.weights == "adapter" and (stored.weights == "full" or stored.base_sha256 != config.base_sha256):
        raise InvalidInput(f"{directory} is no adapter on the base's base model; train without --lora-rank")
    encoder.poly.load_state_dict(ranker.encoder.state_dict())
    if stored.weights != "adapter" or config.weights != "adapter":
        return {}
    adapters, _ = split(read_weights(directory / WEIGHTS_FILE))
    return {f"poly.{name}": tensor for name, tensor in adapters.items()}


@torch.no_grad()
def begin_near_first_stage(encoder: PairEncoder, source: ModelConfig | None) -> None:
    """Scale the head so that the sum begins near the Poly-encoder's ranking.

    `source` is the config of the checkpoint that the encoder goes on from; None: a base model.
    """
    if source is not None and source.residual:  # its head is scaled already
        return
    has_head = source is not None and not ARCHITECTURES[source.architecture].retrieves
    assert encoder.head is not None, "a published head has no first stage"
    for parameter in encoder.head.parameters():
        parameter.mul_(_HEAD_SHARE if has_head else 0.0)


_BATCH_TOKENS = 4096


def rescale(student: Student, like: str, conversations: Sequence[Conversation]) -> None:
    """Multiply the last norm of each transformer, so that its outputs vary as those of the model `like`.

    Both are measured over all components of all tokens of these conversations, each with its own tokenizer. `like` is a
    base model, or a checkpoint of a Bi- or Poly-encoder, whose context side counts.

    Raises:
        InvalidInput: vectors of unit length are compared, so a factor changes nothing; or the transformer ends with no
            norm of its own.
        WrongKind, ModelNotFound, CheckpointInvalid: `like` cannot be used.
    """
    if student.config.normalize:
        raise InvalidInput("output-like changes nothing where vectors have unit length; give --no-normalize too")
    other = load_vector_ranker(like)
    target = output_std(other.encoder.context, [other.tokenize_context(each)[0] for each in conversations])
    own = [student.assembler.context(each)[0] for each in conversations]
    for backbone in backbones(student.encoder).values():
        _multiply(backbone, target / output_std(backbone, own), own[:1])


def output_std(backbone: Backbone, texts: Sequence[Sequence[int]]) -> float:
    """Return the standard deviation of all components of the outputs of tokenised texts."""
    return float(_outputs(backbone, texts).std(correction=0))


def _multiply(backbone: Backbone, factor: float, probe: Sequence[Sequence[int]]) -> None:
    norms = [module for module in backbone.transformer.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    before = _outputs(backbone, probe)
    with torch.no_grad():
        for parameter in norms[-1].parameters() if norms else ():
            parameter.mul_(factor)
    if not torch.allclose(_outputs(backbone, probe), factor * before, rtol=1e-3, atol=1e-3 * factor):
        family = backbone.transformer.config.model_type
        raise InvalidInput(f"output-like multiplies the last norm: {family} shares it among its layers, or has none")


@torch.inference_mode()
def _outputs(backbone: Backbone, texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the outputs of all tokens, (tokens, D), with dropout off."""
    was = backbone.training
    backbone.eval()
    batches = [
        TensorBatch.of(pad([texts[row] for row in rows], backbone.pad_id))
        for rows in length_batches([len(ids) for ids in texts], _BATCH_TOKENS)
    ]
    outputs = torch.cat([backbone(batch)[batch.mask].float() for batch in batches])
    backbone.train(was)
    return outputs
