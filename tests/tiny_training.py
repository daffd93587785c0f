"""Dialogues that a tiny model learns in seconds, and runs of training over them."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import write_rows

import polyrank
from polyrank.model.checkpoint.files import WEIGHTS_FILE, CheckpointFiles
from polyrank.model.config import ModelConfig
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import Network
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.rankers.networks import CrossRanker, NetworkRanker, UniRanker, VectorRanker
from polyrank.model.registry import ARCHITECTURES, trainable
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, Report
from polyrank.model.training.config import STATE_FILE, Data, TrainConfig, TwoStageTrainConfig, settings_of
from polyrank.model.training.run import train
from polyrank.model.training.student import Student, start

TWO_STAGES = [name for name in trainable() if issubclass(settings_of(name), TwoStageTrainConfig)]
SETTINGS: dict[str, Any] = {
    "architecture": "bi",
    "steps": 40,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "code_learning_rate": 1e-2,
    "warmup_steps": 5,
    "schedule": "constant",
    "looks": 1.0,
    "dropout": 0.0,
    "n_codes": 3,
    "max_context_tokens": 40,
    "max_candidate_tokens": 16,
    "tune": "all",
    "precision": "no",  # auto depends on the processor
}


def rows(count: int = 80, topics: int = 4) -> list[dict[str, Any]]:
    """Examples whose reply follows from the first word of the context; the two others are noise."""
    noise = [(first, second) for first in range(16, 40) for second in range(16, 40)]
    random.Random(0).shuffle(noise)
    return [
        {
            "context": [f"w{n % topics} w{n % topics}", f"w{noise[n][0]} w{noise[n][1]}"],
            "response": f"w{n % topics + topics}",
            "dialogue": f"d{n}",
        }
        for n in range(count)
    ]


def write_examples(path: Path, count: int = 80) -> Path:
    """A file of them."""
    return write_rows(path, rows(count))


def orders(count: int) -> list[dict[str, Any]]:
    """Examples whose reply repeats an order's name, which the model reads as an unknown word, whatever the name."""
    names = ["order" + "".join("abcdefghij"[int(digit)] for digit in str(n)) for n in range(count)]
    return [
        {
            "context": [f"w{n % 40} hello", "w1 w2", f"w{n % 7} where is {names[n]}"],
            "response": f"w{n % 9} your {names[n]} came",
            "dialogue": f"d{n}",
        }
        for n in range(count)
    ]


def write_first_stage(base: Path, **fields: Any) -> Path:
    """A Poly-encoder's checkpoint, beside the base that it was made from."""
    sizes = {"n_codes": 3, "max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture="poly", base_name="tiny", **{**sizes, **fields})
    path = base.parent / f"{base.name}-first-stage"
    polyrank.from_base(str(base), config).save(path)
    return path


def trained(base: Path, directory: Path, **fields: Any) -> Path:
    """A checkpoint as training leaves one, its two towers unlike each other."""
    student = start(settings(base, **fields))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in student.trainable().values():
            parameter += 0.05 * torch.randn_like(parameter)
    student.save(directory, {})
    return directory


def ranker_of(student: Student) -> NetworkRanker:
    """The student as it is, behind a ranker's interface."""
    student.encoder.eval()
    files = CheckpointFiles(student.config, student.directory, {})
    row = ARCHITECTURES[student.config.architecture]
    kind: Any = VectorRanker if row.retrieves else UniRanker if row.reads_once else CrossRanker
    compiler = Compiler(TorchBackend())
    ranker: NetworkRanker = kind("student", Network.of(student.encoder), student.assembler, files, compiler)
    return ranker


def scores(ranker: NetworkRanker) -> list[float]:
    """What a model gives four replies to one context."""
    replies = ["w4", "w5 w6", "w7 w8 w9 w10", "w30"]
    return [score for _, score in sorted(ranker.rank(["w1 w2", "w3 w31"], replies))]


def dialogue(context: str | Sequence[str], response: str, *negatives: str) -> Dialogue:
    """One example, made by hand."""
    return Dialogue(Conversation.of(context), response, negatives=negatives)


def settings(base: Path, **changed: Any) -> TrainConfig:
    """Settings for a tiny base; a few are other than the defaults, because the examples are few."""
    return TrainConfig.of(**{"base": str(base), **SETTINGS, **changed})


class Seen:
    """What a run told while it went on."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.losses: list[float] = []
        self.looks: list[tuple[int, float]] = []
        self.rescaled: list[float] = []  # of these looks

    def survey(self, path: Path, report: Report) -> None:
        """A file was read."""
        self.reports.append(report)

    def watch(self, event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        """A step was made, or a look taken."""
        if event == "look":
            self.looks.append((step, figures["loss"]))
            self.rescaled.append(figures["rescaled_loss"])
        else:
            self.losses.append(figures["loss"])


def run(
    config: TrainConfig, data: Path | Data, output: Path, resume: bool = False, **more: Any
) -> tuple[NetworkRanker, Seen]:
    """Train, and give the best checkpoint and what the run told."""
    seen = Seen()
    data = data if isinstance(data, Data) else Data([data])
    return train(config, data, output, resume=resume, on_survey=seen.survey, watch=seen.watch, **more), seen


class Stop(BaseException):
    """Ends a run from outside, as Ctrl-C does."""


def interrupted(config: TrainConfig, data: Path | Data, output: Path, at: int) -> None:
    """Run until a step, whose state is not saved any more."""

    def watch(event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        if event == "step" and step == at:
            raise Stop

    data = data if isinstance(data, Data) else Data([data])
    with pytest.raises(Stop):
        train(config, data, output, on_survey=Seen().survey, watch=watch)
    assert (output / STATE_FILE).is_file()


def identical(one: Path, other: Path) -> bool:
    """Whether two checkpoints have the same weights, to the byte."""
    return (one / WEIGHTS_FILE).read_bytes() == (other / WEIGHTS_FILE).read_bytes()
