"""The training loop: steps, looks at the selection slice, the best checkpoint, and a state to resume from.

accelerate handles devices, mixed precision and several processes. All processes share one order of batches; each takes
its own, and gradients are averaged before a step. The random state is set anew at every step from seed, process and
step, so a resumed run needs none of it stored.

The learning rate warms up, then follows a schedule. The selection slice, held-out dialogues of the training files,
chooses the best checkpoint.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.errors import OutOfMemory, TrainingDiverged
from polyrank.model.text.dialogues import Dialogue, Report
from polyrank.model.training.config import LOGS, Schedule, TrainConfig
from polyrank.model.training.data import Corpus, OnProgress, Rows, WordsInLoss, draw_rows, no_progress
from polyrank.model.training.objective import AnyObjective, Batch
from polyrank.model.training.state import Origin, RunProgress, write_state
from polyrank.model.training.student import Student
from polyrank.model.training.tuning import backbones

PLATEAU_FACTOR = 0.4
_RECENT_STEPS = 100  # their mean tells how long the next ones take; no two are of one length
_FIRST_STEPS = 1  # they tell nothing: rows are read ahead, and memory is new


class LearningRate:
    """The factor on the base learning rate at each step. It first rises linearly from 0 to 1, the warm-up.

    plateau: multiplied by 0.4 after each look at which the selection loss has not improved. linear, cosine: falls to 0
    at the last step. constant: stays. inverse-sqrt: falls with the root of the steps, from the warm-up's last one on
    (Humeau et al. 4.1).
    """

    def __init__(self, schedule: Schedule, warmup_steps: int, steps: int) -> None:
        self._schedule = schedule
        self._warmup = warmup_steps
        self._steps = steps
        self._reduced = 1.0
        self._best = math.inf

    def factor(self, step: int) -> float:
        """Factor for the step with this number, from 0.

        >>> rate = LearningRate("linear", warmup_steps=2, steps=6)
        >>> [rate.factor(step) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        if step < self._warmup:
            return (step + 1) / self._warmup * self._reduced
        if self._schedule == "inverse-sqrt":
            return math.sqrt(max(1, self._warmup) / max(1, step))
        progress = min(1.0, (step - self._warmup) / max(1, self._steps - self._warmup))
        if self._schedule == "linear":
            return 1.0 - progress
        if self._schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return self._reduced

    def observe(self, step: int, selection_loss: float) -> None:
        """Take the selection loss after that many steps; only `plateau` uses it, and only after the warm-up."""
        if self._schedule == "plateau" and step > self._warmup and selection_loss >= self._best:
            self._reduced *= PLATEAU_FACTOR
        self._best = min(self._best, selection_loss)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"reduced": self._reduced, "best": self._best}

    def restore(self, state: dict[str, Any]) -> None:
        self._reduced, self._best = state["reduced"], state["best"]


_SEED = 0  # the same in every run, so that runs can be compared


class Forecast:
    """Tells how long a run will still take: its steps, its looks at the selection slice, what is fitted after them."""

    def __init__(self, steps: int, look_every: int, after: Callable[[float], float]) -> None:
        """Begin with a run of so many steps; `after` tells, by `look_seconds`, what follows the last look takes."""
        self.look_seconds = 0.0  # what the latest look took; all read the same examples
        self._steps, self._look_every, self._after = steps, look_every, after
        self._timed_steps, self._step_seconds = 0, 0.0

    def step_took(self, seconds: float) -> None:
        self._timed_steps += 1
        count = min(self._timed_steps - _FIRST_STEPS, _RECENT_STEPS)
        if count > 0:
            self._step_seconds += (seconds - self._step_seconds) / count

    def figures(self, step: int) -> Mapping[str, float]:
        """Return the seconds left after that step, before its look if it has one; nothing before the third one seen."""
        if self._timed_steps < _FIRST_STEPS + 2:
            return {}
        looks = -(-self._steps // self._look_every) - (step - 1) // self._look_every
        left = (self._steps - step) * self._step_seconds + looks * self.look_seconds + self._after(self.look_seconds)
        return {"seconds_left": left}


class Look(NamedTuple):
    """Figures of the slice.

    loss: mean loss. rescaled_loss: mean cross entropy at the scale of scores that suits them best. recall_at_1: share
    of gold replies ranked first in their batch. code_cosine: mean cosine of the codes.
    """

    loss: float
    rescaled_loss: float
    recall_at_1: float
    code_cosine: float


def selection_batches(corpora: Sequence[Corpus], n_replies: int) -> list[list[Dialogue]]:
    """Cut each file's slice into batches of `n_replies`; a rest of less than half a batch joins the last one.

    n_replies: how many replies a training batch has, its rows' and those of others. Here rows are each other's
    negatives, so a look is then as hard as a step.
    """
    batches: list[list[Dialogue]] = []
    for corpus in corpora:
        examples = list(corpus.examples(selection=True))
        random.Random(_SEED).shuffle(examples)  # neighbours in a file may be turns of one dialogue
        cuts = range(0, max(1, len(examples) - n_replies // 2), n_replies)
        ends = [*cuts[1:], len(examples)]
        batches += [examples[start:end] for start, end in zip(cuts, ends, strict=True)]
    return batches


def look(
    encoder: nn.Module,
    objective: AnyObjective,
    batches: Sequence[Sequence[Dialogue]],
    on_progress: OnProgress = no_progress,
) -> Look:
    """Measure all batches with dropout off; larger batches count for more. The stage is "looking", of examples."""
    draw, count, examples = random.Random(_SEED), 0, sum(map(len, batches))
    encoder.eval()
    measured = []
    for batch in batches:
        on_progress("looking", count, examples)
        measured.append(objective.measure(Batch(batch, (), draw)))
        count += len(batch)
    on_progress("looking", count, examples)
    encoder.train()
    rows = sum(batch.rows for batch in measured)
    at_each_scale = zip(*([batch.rows * loss for loss in batch.rescaled] for batch in measured), strict=True)
    return Look(
        loss=sum(batch.loss * batch.rows for batch in measured) / rows,
        rescaled_loss=min(map(sum, at_each_scale)) / rows,
        recall_at_1=sum(batch.first for batch in measured) / rows,
        code_cosine=sum(batch.code_cosine * batch.rows for batch in measured) / rows,
    )


_MAX_GRADIENT_NORM = 1.0
_SAVE_SECONDS, _SAVE_SHARE = 60.0, 0.02  # a state is written so often, unless that took more than this share of it
_LOOKS_A_RUN = 2  # at least, even in a short run
_NO_MEMORY = "a training step does not fit into memory; use --gradient-cache, lower --chunk-tokens, then --batch-size"

Watch = Callable[[str, int, int, Mapping[str, float]], None]
"""Called with what happened ("step" or "look"), steps done, steps of the run, and figures.

Those of a step are its loss and, from the third one on, how many seconds are left until the checkpoint is done.
"""


class Begun(NamedTuple):
    """What a run begins with: settings, model, surveyed files, what trains it, and words that count beside it.

    after: as in Forecast.
    """

    config: TrainConfig
    student: Student
    corpora: list[tuple[Corpus, Report]]
    objective: type[AnyObjective]
    words: WordsInLoss | None = None
    after: Callable[[float], float] = lambda _look_seconds: 0.0


class Training:
    """One run of training over surveyed files; `steps` is how many steps the whole run has."""

    def __init__(self, begun: Begun, output: Path, began: float) -> None:
        """Prepare a run that began at that value of `time.monotonic()`."""
        config, student, corpora, objective, words, after = begun
        self.config = config
        self.student = student
        self.progress = RunProgress()
        self._output = output
        self._counted_until = began
        self._corpora = [corpus for corpus, _ in corpora]
        self._accelerator = Accelerator(
            cpu=processes().device.type == "cpu",
            mixed_precision=config.precision,
            gradient_accumulation_steps=config.accumulate,
            log_with="tensorboard",
            project_dir=output / LOGS,
        )
        self._parameters = student.trainable()
        device = self._accelerator.device
        encoder = student.encoder.to(device).train()
        for backbone in (module for module in encoder.modules() if isinstance(module, Backbone)):
            _run_under(self._accelerator, backbone, device)
            if config.gradient_checkpointing:
                backbone.transformer.activation_checkpointing_enable()
        self._objective = objective(student, config, device, words)
        self._origin = Origin.of(
            config,
            self._corpora,
            student.directory,
            self._objective.models,
            self._accelerator.num_processes,
            None if words is None else words.evidence,
        )
        self._optimizer = self._accelerator.prepare(_optimizer(student, config))
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        held_out = chain.from_iterable(corpus.examples(selection=True) for corpus in self._corpora)
        self._batch_size = len(self._objective.take(cycle(held_out)))
        examples_a_step = self._batch_size * config.accumulate * self._accelerator.num_processes
        epoch = max(1, sum(report.examples for _, report in corpora) // examples_a_step)
        self.steps = config.steps or math.ceil(config.epochs * epoch)
        self._look_every = max(1, min(round(epoch / config.looks), self.steps // _LOOKS_A_RUN))
        self._schedule = LearningRate(config.schedule, config.warmup_steps, self.steps)
        self._forecast = Forecast(self.steps, self._look_every, after)

    def run(self, watch: Watch, on_progress: OnProgress = no_progress) -> None:
        """Train to the end, or until `patience` looks have not been the best so far.

        Raises TrainingDiverged where the loss is not a finite number, OutOfMemory where a step or a look does not fit.
        """
        try:
            self._run(watch, on_progress)
        except (MemoryError, RuntimeError) as error:  # torch raises some lack of memory as a plain RuntimeError
            message = str(error).lower()
            is_lack = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if is_lack or ("memory" in message and "alloc" in message):
                raise OutOfMemory(_NO_MEMORY) from error
            raise

    def _run(self, watch: Watch, on_progress: OnProgress) -> None:
        self._accelerator.init_trackers("")
        on_progress("reading what is held out", 0, None)
        selection = selection_batches(self._corpora, self._batch_size + self.config.extra_replies)
        if math.isinf(self.progress.best[0]):
            self._look(selection, watch, on_progress)
            self._save_state()
        rows = draw_rows(
            self._corpora,
            self.config.batch_size,
            self.config.seed,
            extra_replies=self.config.extra_replies,
            rank=self._accelerator.process_index,
            n_ranks=self._accelerator.num_processes,
            take=self._objective.take,
        )
        rows = islice(rows, self.progress.step * self.config.accumulate, None)  # those not seen yet
        save_at = time.monotonic() + _SAVE_SECONDS
        on_progress("train", self.progress.step, self.steps)
        patience = self.config.patience or math.inf
        while self.progress.step < self.steps and self.progress.looks_without < patience:
            began = time.monotonic()
            loss = self._step(list(islice(rows, self.config.accumulate)))
            self.progress.step += 1
            self._forecast.step_took(time.monotonic() - began)
            watch("step", self.progress.step, self.steps, {"loss": loss, **self._forecast.figures(self.progress.step)})
            self._accelerator.log({"train/loss": loss, "train/rate": self._factor()}, step=self.progress.step)
            if self.progress.step % self._look_every == 0 or self.progress.step == self.steps:
                self._look(selection, watch, on_progress)
            elif time.monotonic() < save_at:
                continue
            began = time.monotonic()
            self._save_state()
            took = time.monotonic() - began
            save_at = began + took + max(_SAVE_SECONDS, took / _SAVE_SHARE)

    def _step(self, parts: Sequence[Rows]) -> float:
        """Make one optimizer step from some batches; returns their mean loss."""
        draw = random.Random(f"{self.config.seed}-{self._accelerator.process_index}-{self.progress.step}")
        torch.manual_seed(draw.getrandbits(63))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._factor()
        first = self.progress.step * self.config.accumulate
        batches = [Batch(rows.examples, rows.others, draw, first + at) for at, rows in enumerate(parts)]
        losses = [self._objective.step(batch, self._accelerator.backward) for batch in batches]
        # If one process's loss is not finite, neither is the mean: all stop, none waits for another.
        local = torch.tensor(sum(losses) / len(losses), device=self._accelerator.device)
        loss = float(self._accelerator.reduce(local, "mean"))
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the loss is {loss} at step {self.progress.step + 1}; lower --learning-rate. "
                f"{self._output} keeps the best checkpoint, that of step {self.progress.best_step}"
            )
        if self._accelerator.num_processes > 1:  # here, as DistributedDataParallel cannot follow an encoding in chunks
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad = self._accelerator.reduce(parameter.grad, "mean")
        self._accelerator.clip_grad_norm_(self._parameters.values(), _MAX_GRADIENT_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _factor(self) -> float:
        return self._schedule.factor(self.progress.step)

    def _look(self, selection: Sequence[list[Dialogue]], watch: Watch, on_progress: OnProgress) -> None:
        """Measure the selection slice, and write a checkpoint if it is the best so far.

        The best has the lowest loss at the scale that suits its scores best, because a calibration fits the scale
        later. At their own scale, scores that tell little, such as a base's that lie close together, lose less than
        those of a model that ranks better and is too sure of it. R@1 tells too little over a small slice. Where every
        reply held out comes first, a large scale makes every loss 0, and the loss at their own scale decides.
        """
        progress, began = self.progress, time.monotonic()
        now = look(self.student.encoder, self._objective, selection, on_progress)
        self._forecast.look_seconds = time.monotonic() - began
        figures = now._asdict()
        watch("look", progress.step, self.steps, figures)
        self._accelerator.log({f"selection/{name}": value for name, value in figures.items()}, progress.step)
        self._schedule.observe(progress.step, now.loss)
        if math.isfinite(now.loss) and (now.rescaled_loss, now.loss) < progress.best:
            if math.isinf(progress.best[0]):
                self._save_state()  # whoever is killed while the first checkpoint is written goes on from here
            progress.best, progress.best_step = (now.rescaled_loss, now.loss), progress.step
            progress.looks_without = 0
            if self._accelerator.is_main_process:
                self.student.save(self._output, {"step": progress.step, "selection": figures})
        else:
            progress.looks_without += 1
        if math.isinf(progress.best[0]):
            raise TrainingDiverged(f"the loss is {now.loss} before the first step; give another --base or --precision")

    def _save_state(self) -> None:
        if not self._accelerator.is_main_process:
            return
        now = time.monotonic()
        self.progress.seconds += now - self._counted_until
        self._counted_until = now
        scaler = self._accelerator.scaler  # of fp16 on a GPU
        write_state(
            self._output,
            {
                **asdict(self._origin),
                "parameters": {name: parameter.detach().cpu() for name, parameter in self._parameters.items()},
                "optimizer": self._optimizer.state_dict(),
                "schedule": self._schedule.state(),
                "scaler": scaler and scaler.state_dict(),
                "progress": vars(self.progress),
                "look_seconds": self._forecast.look_seconds,
            },
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; raises InvalidInput where the run was started with something else."""
        self._origin.require_same(state)
        for name, parameter in self._parameters.items():
            parameter.data.copy_(state["parameters"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.restore(state["schedule"])
        if self._accelerator.scaler and state["scaler"]:  # a CPU has none
            self._accelerator.scaler.load_state_dict(state["scaler"])
        self.progress = RunProgress(**state["progress"])
        self._forecast.look_seconds = state["look_seconds"]

    def end(self) -> None:
        """Close the logs and leave the other processes."""
        trackers = [each for each in self._accelerator.trackers if hasattr(each, "writer")]
        self._accelerator.trackers = trackers  # an interrupt may have come while they began
        self._accelerator.end_training()
        AcceleratorState._reset_state()  # it would refuse another precision to the next run of this process


def processes() -> PartialState:
    """Join the other processes of the run, if `torchrun` started several.

    Without a GPU accelerate needs `cpu=True`. Otherwise each of several processes takes itself for the only one,
    and all of them write the same checkpoint.
    """
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=on_cpu)


def _optimizer(student: Student, config: TrainConfig) -> torch.optim.Optimizer:
    """Group the parameters: matrices; biases and norms, which do not decay; and what was drawn at random."""
    transformers = tuple(f"{name}." for name in backbones(student.encoder))
    groups: dict[str, list[Tensor]] = {"matrices": [], "vectors": [], "drawn": []}
    for name, parameter in student.trainable().items():
        kind = ("matrices" if parameter.ndim > 1 else "vectors") if name.startswith(transformers) else "drawn"
        groups[kind].append(parameter)
    settings: dict[str, dict[str, float]] = {
        "matrices": {},
        "vectors": {"weight_decay": 0.0},
        "drawn": {"lr": config.code_learning_rate},
    }
    used: list[dict[str, Any]] = [{"params": group, **settings[kind]} for kind, group in groups.items() if group]
    optimizer = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adamax
    return optimizer(used, config.learning_rate, betas=(0.9, config.beta2), weight_decay=config.weight_decay)


def _run_under(accelerator: Accelerator, backbone: Backbone, device: torch.device) -> None:
    """Use mixed precision in the transformer alone: attention over codes and scores stay in float32.

    On a CPU a step with attention as plain products takes half the time of one with torch's fused kernel, whose
    backward is slow.
    """
    transformer = backbone.transformer
    if device.type == "cpu":
        transformer.set_attn_implementation("eager")
    forward, backbone.autocast = transformer.forward, accelerator.autocast

    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with accelerator.autocast():
            return forward(*args, **kwargs)

    transformer.forward = autocast_forward
