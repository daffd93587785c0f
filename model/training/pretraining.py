"""A whole run of pre-training: from a base model and conversations to a base model that knows conversations."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import save_file

from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.base import PUBLISHED_FILES
from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, TOKENIZER_FILE, WEIGHTS_FILE, backbone_file
from polyrank.model.durable import replacing, write_atomically
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input
from polyrank.model.training.config import Data, PretrainConfig
from polyrank.model.training.loop import Watch
from polyrank.model.training.objectives.pretraining import PretrainObjective, WordGuesser
from polyrank.model.training.recipes import PRETRAINING_FILE
from polyrank.model.training.run import Begun, OnSurvey, require_no_classes, summary, surveyed, to_the_end
from polyrank.model.training.state import STATE_FILE
from polyrank.model.training.student.student import Student, start


@dataclass(frozen=True)
class PretrainStudent(Student):
    """A transformer under pre-training, which is written as a base model."""

    def save(self, directory: Path, training: Mapping[str, Any]) -> None:
        """Write the transformer as it is now in the layout of published models; the heads are not kept."""
        directory.mkdir(parents=True, exist_ok=True)
        source = self.directory
        if backbone_file(source).name == BASE_BACKBONE_FILE:  # published: how it makes a vector stays
            for file in sorted({file for pattern in PUBLISHED_FILES for file in source.glob(pattern)}):
                if file.name != WEIGHTS_FILE or file.parent != source:
                    (directory / file.relative_to(source)).parent.mkdir(exist_ok=True)
                    shutil.copyfile(file, directory / file.relative_to(source))
        shutil.copyfile(backbone_file(source), directory / BASE_BACKBONE_FILE)
        shutil.copyfile(source / TOKENIZER_FILE, directory / TOKENIZER_FILE)
        assert isinstance(self.encoder, CrossEncoder)
        tensors = self.encoder.encoder.transformer.state_dict()
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with replacing(directory / WEIGHTS_FILE) as temporary:
            save_file(weights, temporary, metadata={"format": "pt"})
        write_atomically(directory / PRETRAINING_FILE, orjson.dumps(dict(training), option=orjson.OPT_INDENT_2))


def pretrain(
    config: PretrainConfig,
    data: Data,
    output: Path,
    *,
    resume: bool = False,
    on_survey: OnSurvey,
    watch: Watch,
) -> dict[str, Any] | None:
    """Pre-train a base model, and write that with the least loss on the selection slice as a base model.

    Arguments and errors are those of `polyrank.model.training.run.train`.

    Returns:
        How it was made; None in all but the main one of several processes.

    Raises:
        InvalidInput: also for a base without a mask token.
    """
    ended = to_the_end(partial(_begun, config, data), output, resume, on_survey, watch)
    if ended is None:
        return None
    path = output / PRETRAINING_FILE
    told: dict[str, Any] = {**orjson.loads(read_input(path)), **summary(*ended)}
    write_atomically(path, orjson.dumps(told, option=orjson.OPT_INDENT_2))
    (output / STATE_FILE).unlink(missing_ok=True)  # last, so that a run killed before can be resumed
    return told


def _begun(config: PretrainConfig, data: Data) -> Begun:
    began = start(config)
    if began.assembler.tokenizer.mask_id is None:
        raise InvalidInput(f"{config.base} has no mask token, so words cannot be masked; give another base model")
    assert isinstance(began.encoder, CrossEncoder)
    corpora = surveyed(data)
    require_no_classes(corpora)
    student = PretrainStudent(WordGuesser(began.encoder), began.config, began.directory, began.assembler)
    return Begun(config, student, corpora, PretrainObjective)
