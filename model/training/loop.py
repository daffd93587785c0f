"""The training loop: steps, looks at the selection slice, the best checkpoint, and a state to resume from.

Devices, mixed precision and several processes are accelerate's business. Each process takes its own batches out
of one order that all share, and the gradients are averaged before a step. The random state is set anew at every step
from seed, process and step, so that a resumed run needs none of it stored.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import parse_flag_from_env
from torch import Tensor

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.checkpoint.base import file_sha256
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.load import Ranker, load_cross, load_late
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.data.corpus import Corpus, Report
from polyrank.model.training.data.selection import Look, look, selection_batches
from polyrank.model.training.data.stream import Batch, batches
from polyrank.model.training.errors import OutOfMemory, TrainingDiverged
from polyrank.model.training.objectives.objective import CrossObjective, LateObjective
from polyrank.model.training.schedule import LearningRate
from polyrank.model.training.state import Origin, Progress, files_sha256, write_state
from polyrank.model.training.student.student import Student

_MAX_GRADIENT_NORM = 1.0
_SAVE_SECONDS = 600.0
_LOOKS_A_RUN = 2  # at least, however short it is
_NO_MEMORY = "a training step does not fit into memory; use --gradient-cache, lower --chunk-tokens, then --batch-size"

Watch = Callable[[str, int, int, Mapping[str, float]], None]
"""Told (what happened: "step" or "look", steps done, steps of the run, figures)."""


class Training:
    """One run of training over surveyed files.

    Attributes:
        student: the model under training.
        progress: how far it is.
        steps: of the whole run.
    """

    def __init__(
        self,
        config: TrainConfig,
        student: Student,
        corpora: Sequence[tuple[Corpus, Report]],
        output: Path,
        began: float,
    ) -> None:
        """Prepare a run that began at that time of `time.monotonic()`."""
        self.config = config
        self.student = student
        self.progress = Progress()
        self._output = output
        self._counted = began
        self._corpora = [corpus for corpus, _ in corpora]
        self._accelerator = Accelerator(
            cpu=processes().device.type == "cpu",
            mixed_precision=config.precision,
            gradient_accumulation_steps=config.accumulate,
            log_with="tensorboard",
            project_dir=output / "logs",
        )
        self._parameters = student.trainable()
        teacher = load_cross(config.teacher) if config.teacher else None
        retriever = load_late(config.retriever) if config.retriever else None
        self._origin = self._identified({"teacher": teacher, "retriever": retriever})
        self._objective = self._prepare(teacher, retriever)
        self._optimizer = self._accelerator.prepare(_optimizer(self._parameters, config))
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        examples_a_step = config.batch_size * config.accumulate * self._accelerator.num_processes
        epoch = max(1, sum(report.kept for _, report in corpora) // examples_a_step)
        self.steps = config.steps or math.ceil(config.epochs * epoch)
        self._look_every = max(1, min(round(epoch / config.looks), self.steps // _LOOKS_A_RUN))
        self._schedule = LearningRate(config.schedule, config.warmup_steps, self.steps)

    def run(self, watch: Watch) -> None:
        """Train to the end, or until the selection loss has not improved for `patience` looks.

        Raises:
            TrainingDiverged: the loss is no finite number.
            OutOfMemory: a step or a look does not fit.
        """
        try:
            self._run(watch)
        except (MemoryError, RuntimeError) as error:  # of torch's own some are RuntimeErrors of no type of their own
            if _is_lack_of_memory(error):
                raise OutOfMemory(_NO_MEMORY) from error
            raise

    def _run(self, watch: Watch) -> None:
        self._accelerator.init_trackers("")
        selection = selection_batches(self._corpora, self.config.batch_size + self.config.extra_replies)
        if math.isinf(self.progress.best_loss):
            self._look(selection, watch)
            self._save_state()
        stream = self._stream()
        saved = time.monotonic()
        while self.progress.step < self.steps and not self._has_stopped():
            loss = self._step(list(islice(stream, self.config.accumulate)))
            self.progress.step += 1
            watch("step", self.progress.step, self.steps, {"loss": loss})
            self._accelerator.log({"train/loss": loss, "train/rate": self._factor()}, step=self.progress.step)
            if self.progress.step % self._look_every == 0 or self.progress.step == self.steps:
                self._look(selection, watch)
            elif time.monotonic() - saved < _SAVE_SECONDS:
                continue
            self._save_state()
            saved = time.monotonic()

    def end(self) -> None:
        """Close the logs and leave the other processes."""
        self._accelerator.end_training()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; raises InvalidInput where it is that of a run of something else."""
        self._origin.require_same(state)
        for name, parameter in self._parameters.items():
            parameter.data.copy_(state["parameters"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.restore(state["schedule"])
        if self._accelerator.scaler and state["scaler"]:  # a CPU has none
            self._accelerator.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])

    def _identified(self, others: Mapping[str, Ranker | None]) -> Origin:
        data = [
            [str(each.path), file_sha256(each.path), each.weight, each.every_turn, each.held_out_below]
            for each in self._corpora
        ]
        models: dict[str, Any] = {name: each.fingerprint for name, each in others.items() if each}
        models["base"] = files_sha256(self.student.backbone_file.parent)
        if self.config.first_stage:
            models["first_stage"] = files_sha256(Path(self.config.first_stage))
        return Origin(self.config, data, models, self._accelerator.num_processes)

    def _prepare(self, teacher: CrossRanker | None, retriever: LateRanker | None) -> LateObjective | CrossObjective:
        config, device = self.config, self._accelerator.device
        encoder = self.student.encoder.to(device).train()
        for backbone in (each for each in encoder.modules() if isinstance(each, Backbone)):
            _run_under(self._accelerator, backbone.transformer, device)
            if config.gradient_checkpointing:
                backbone.transformer.activation_checkpointing_enable()
        if config.architecture == "cross":
            return CrossObjective(self.student, config, retriever)
        return LateObjective(self.student, config, device, teacher)

    def _stream(self) -> Iterator[Batch]:
        config = self.config
        stream = batches(
            self._corpora,
            config.batch_size,
            config.seed,
            extra_replies=config.extra_replies,
            rank=self._accelerator.process_index,
            n_ranks=self._accelerator.num_processes,
        )
        return islice(stream, self.progress.step * self.config.accumulate, None)

    def _step(self, drawn: Sequence[Batch]) -> float:
        draw = self._reseed()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._factor()
        losses = [self._objective.step(each, draw, self._accelerator.backward) for each in drawn]
        loss = self._mean_over_processes(sum(losses) / len(losses))
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the loss is {loss} at step {self.progress.step + 1}; lower --learning-rate. "
                f"{self._output} keeps the best checkpoint, that of step {self.progress.best_step}"
            )
        self._average_gradients()
        self._accelerator.clip_grad_norm_(self._parameters.values(), _MAX_GRADIENT_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _mean_over_processes(self, loss: float) -> float:
        """What is no number in one process is none in all: they stop together, and none waits for another."""
        local = torch.tensor(loss, device=self._accelerator.device)
        return float(self._accelerator.reduce(local, "mean"))

    def _average_gradients(self) -> None:
        """Encoding in chunks is nothing that DistributedDataParallel can follow: one reduction a step does the same."""
        if self._accelerator.num_processes > 1:
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad = self._accelerator.reduce(parameter.grad, "mean")

    def _reseed(self) -> random.Random:
        name = f"{self.config.seed}-{self._accelerator.process_index}-{self.progress.step}"
        draw = random.Random(name)
        torch.manual_seed(draw.getrandbits(63))
        return draw

    def _factor(self) -> float:
        return self._schedule.factor(self.progress.step)

    def _look(self, selection: Sequence[list[Dialogue]], watch: Watch) -> None:
        seen: Look = look(self.student.encoder, self._objective, selection)
        watch("look", self.progress.step, self.steps, seen.figures())
        self._accelerator.log(
            {f"selection/{name}": value for name, value in seen.figures().items()}, self.progress.step
        )
        self._schedule.observe(self.progress.step, seen.loss)
        if seen.loss < self.progress.best_loss:  # what is no finite number is not
            self.progress.best_loss, self.progress.best_step = seen.loss, self.progress.step
            self.progress.looks_without = 0
            if self._accelerator.is_main_process:
                self.student.save(self._output, {"step": self.progress.step, "selection": seen.figures()})
        else:
            self.progress.looks_without += 1
        if math.isinf(self.progress.best_loss):
            raise TrainingDiverged(f"the loss is {seen.loss} before the first step; give another --base or --precision")

    def _has_stopped(self) -> bool:
        return 0 < self.config.patience <= self.progress.looks_without

    def _save_state(self) -> None:
        if not self._accelerator.is_main_process:
            return
        now = time.monotonic()
        self.progress.seconds += now - self._counted
        self._counted = now
        scaler = self._accelerator.scaler  # of fp16 on a GPU
        write_state(
            self._output,
            {
                **self._origin.to_dict(),
                "parameters": {name: each.detach().cpu() for name, each in self._parameters.items()},
                "optimizer": self._optimizer.state_dict(),
                "schedule": self._schedule.state(),
                "scaler": scaler and scaler.state_dict(),
                "progress": vars(self.progress),
            },
        )


def processes() -> PartialState:
    """Join the other processes of the run, if `torchrun` started several.

    accelerate has to be told where there is no GPU: each of several processes would take itself for the only one, and
    all would write the same checkpoint.
    """
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=on_cpu)


def _optimizer(parameters: Mapping[str, Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    """Weights and what was drawn at random in groups of their own; biases and norms do not decay."""
    fresh = {name for name in parameters if name.split(".")[0] in ("code_vectors", "head")}
    groups: list[dict[str, Any]] = [
        {"params": [each for name, each in parameters.items() if name not in fresh and each.ndim > 1]},
        {
            "params": [each for name, each in parameters.items() if name not in fresh and each.ndim == 1],
            "weight_decay": 0.0,
        },
        {"params": [parameters[name] for name in parameters if name in fresh], "lr": config.code_learning_rate},
    ]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adamax
    used = [group for group in groups if group["params"]]
    return kind(used, lr=config.learning_rate, weight_decay=config.weight_decay)


def _run_under(accelerator: Accelerator, transformer: Any, device: torch.device) -> None:
    """Mixed precision for the transformer alone: attention over codes and scores stay in float32.

    On a CPU a step with attention as plain products takes half the time of one with torch's fused kernel, whose
    backward is slow.
    """
    if device.type == "cpu":
        transformer.set_attn_implementation("eager")
    forward = transformer.forward

    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with accelerator.autocast():
            return forward(*args, **kwargs)

    transformer.forward = autocast_forward


def _is_lack_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or ("memory" in message and "alloc" in message)
