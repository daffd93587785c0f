"""The choice of a back-end and a precision: by their names, or measured (`auto`).

`auto` takes the fastest of what was left open. A precision below float32 must pass the trials of quality on each part
of a model (trials.py). Speed is measured once in a process, with the first part of the first model: a later measurement
would run beside requests, and chance would decide.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend, trials
from polyrank.model.inference.backend import Backend, Forward, TorchBackend
from polyrank.model.inference.names import (
    AUTO,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    OPENVINO,
    OPENVINO_INT8,
    TORCH,
    Choice,
    Runner,
    why_refused,
)
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.parts import Part
from polyrank.model.inference.samples import sequences
from polyrank.model.text.assembly import Assembler

# A candidate must take at most this share of the best time before it, so that noise does not change the choice.
WORTH = 0.9
# After the first rounds, one that takes this many times as long as the fastest is not measured any further.
HOPELESS = 1.5
_FIRST_ROUNDS, _ROUNDS = 2, 5
_CALLS = 2  # in a row: during the first, threads of the previous back-end may still spin

log = logging.getLogger(__name__)
_measuring = threading.Lock()
_measured: dict[tuple[Runner, ...], dict[Runner, float]] = {}  # seconds, by what there was to choose from


def check_backend(backend: str, precision: str) -> None:
    """Raise InvalidInput where there is no such back-end or precision, or the two do not go together."""
    if why := why_refused(Runner(backend, precision)):
        raise InvalidInput(why)


def choose_backend(backend: str, precision: str, device: torch.device, assembler: Assembler) -> Backend:
    """Return what runs a model on that device; "auto" leaves a choice. The assembler is the model's.

    Raises InvalidInput where there is no such back-end, or it cannot run on the device or in the precision.
    """
    found = candidates(backend, precision, device)
    return AutomaticBackend(found, device, assembler, precision != AUTO) if len(found) > 1 else found[0]


def candidates(backend: str, precision: str, device: torch.device) -> list[Backend]:
    """Return all that was asked for, the safest first; raises InvalidInput as `choose_backend`."""
    check_backend(backend, precision)
    if device.type != "cpu":
        if backend not in (AUTO, TORCH):
            where = f"runs on CPUs, not on the device {str(device)!r}"
            raise InvalidInput(f"the back-end {backend} {where}; use torch or auto")
        return [TorchBackend(device, each) for each in _precisions(precision)]
    if backend == OPENVINO_INT8:
        return [OpenVinoBackend(INT8)]
    # On a CPU torch in 16 bits gives a text other outputs in other batches, so it runs only if it is asked for.
    by_torch = [TorchBackend(device, FLOAT32 if precision == AUTO else precision)]
    if backend == TORCH:
        return [*by_torch]
    wanted = _precisions(precision)
    if backend == OPENVINO:
        first, *others = wanted
        return [OpenVinoBackend(first), *map(OpenVinoBackend, filter(_is_offered, others))]
    return [*by_torch, *map(OpenVinoBackend, filter(_is_offered, wanted))]


def _precisions(asked: str) -> list[str]:
    return [FLOAT32, BFLOAT16, FLOAT16] if asked == AUTO else [asked]


def _is_offered(precision: str) -> bool:
    """Whether OpenVINO computes in that precision here; a broken package offers nothing."""
    try:
        with openvino_backend.translated():
            return openvino_backend.is_supported(precision)
    except InvalidInput as error:
        log.warning("OpenVINO is left out", extra={"fields": {"why": error}})
        return False


class AutomaticBackend:
    """Runs each part by the fastest of several back-ends that may run it.

    `runner` is what runs the first part. Context and candidate side of a model are tried apart, so another may run a
    later one; then `choice.refused` says why. The first back-end runs what all others must not.

    Args:
        candidates: the safest first.
        device: where the model is.
        assembler: the model's, for trials on sentences.
        is_asked_for: the precision was asked for, so trials of quality are left out.
    """

    def __init__(
        self, candidates: Sequence[Backend], device: torch.device, assembler: Assembler, is_asked_for: bool
    ) -> None:
        self._candidates = {each.runner: each for each in candidates}
        self._device, self._assembler, self._is_asked_for = device, assembler, is_asked_for
        self._first = candidates[0]
        self._has_chosen = False
        self.runner, self.token_budget, self.choice = self._first.runner, self._first.token_budget, Choice()

    @property
    def names(self) -> tuple[Runner, ...]:
        """What is chosen from, the safest first."""
        return tuple(self._candidates)

    def by(self, runner: Runner) -> Backend:
        """Return one of the back-ends that is chosen from."""
        return self._candidates[runner]

    def remember(self, runner: Runner, found: Choice) -> None:
        """Take over what an earlier process chose for a part, and what it had found out."""
        known = {
            each: found.milliseconds[" ".join(each)] for each in self.names if " ".join(each) in found.milliseconds
        }
        with _measuring:
            _measured.setdefault(self.names, {each: milliseconds / 1e3 for each, milliseconds in known.items()})
        self.choice.milliseconds = {" ".join(each): milliseconds for each, milliseconds in known.items()}
        self.choice.refused |= found.refused
        for which, why in found.refused.items():
            log.warning("back-end refused before", extra={"fields": {"which": which, "why": why}})
        self._settle(runner)

    def compile(self, part: Part) -> Forward:
        """Compile the part by the best back-end."""
        return self.compile_best(part)[1]

    def compile_best(self, part: Part) -> tuple[Runner, Forward]:
        """Compile the part by the best back-end; returns which that is, too."""
        forwards: dict[Runner, Forward] = {}
        with _measuring:
            seconds = self._seconds(part, forwards)
        while (best := fastest(seconds)) != self._first.runner and (why := self._why_not(best, part, forwards)):
            self._refuse(best, part, why)
            del seconds[best]
        self._settle(best)
        return best, forwards[best] if best in forwards else self._candidates[best].compile(part)

    def _settle(self, runner: Runner) -> None:
        """Take what runs the first part as what runs the model."""
        if not self._has_chosen:
            self.runner, self._has_chosen = runner, True
            fields = {**runner._asdict(), "ms": self.choice.milliseconds, "refused": self.choice.refused}
            log.info("back-end chosen", extra={"fields": fields})

    def _seconds(self, part: Part, forwards: dict[Runner, Forward]) -> dict[Runner, float]:
        """Return what each back-end takes; measures it in a process's first call and then fills `forwards`."""
        names = self.names
        if names not in _measured:
            for runner, backend in self._candidates.items():
                try:
                    forwards[runner] = backend.compile(part)
                except InvalidInput as error:
                    if backend is self._first:
                        raise
                    self._refuse(runner, part, str(error))
            _measured[names] = measured(forwards, trials.usual(part, self._device.type != "cpu"))
        known = _measured[names]
        self.choice.milliseconds = {" ".join(runner): round(each * 1e3, 2) for runner, each in known.items()}
        return dict(known)

    def _why_not(self, runner: Runner, part: Part, forwards: dict[Runner, Forward]) -> str | None:
        """Return why a back-end must not run a part; compiles it if need be."""
        try:
            forward = forwards[runner] = forwards.get(runner) or self._candidates[runner].compile(part)
        except InvalidInput as error:
            return str(error)
        if runner.precision == FLOAT32 or self._is_asked_for:
            return None
        reference, pad_id = TorchBackend(self._device).compile(part), part.backbone().pad_id
        return trials.why_refused(forward, reference, sequences(part, self._assembler), pad_id)

    def _refuse(self, runner: Runner, part: Part, why: str) -> None:
        name = type(part).__name__
        self.choice.refused[f"{' '.join(runner)}, {name}"] = why
        log.warning("back-end refused", extra={"fields": {**runner._asdict(), "part": name, "why": why}})


def fastest(seconds: Mapping[Runner, float]) -> Runner:
    """Return the fastest; one must be faster than those before it by a margin (WORTH).

    >>> fastest({Runner("torch", "float32"): 1.0, Runner("openvino", "float32"): 0.95}).backend
    'torch'
    """
    best, *others = seconds
    for runner in others:
        if seconds[runner] < WORTH * seconds[best]:
            best = runner
    return best


def measured(forwards: Mapping[Runner, Forward], batches: list[TokenBatch]) -> dict[Runner, float]:
    """Time the back-ends in turns: the least seconds for each batch, and their geometric mean over batches."""
    least = {runner: np.full(len(batches), np.inf) for runner in forwards}
    seconds = dict.fromkeys(forwards, np.inf)
    for round_ in range(_ROUNDS if len(forwards) > 1 else 1):
        hopeless = HOPELESS * min(seconds.values()) if round_ >= _FIRST_ROUNDS else np.inf
        for runner, forward in forwards.items():
            if seconds[runner] > hopeless:
                continue
            for at in [*range(len(batches))] * _CALLS:
                began = time.perf_counter()
                forward(batches[at])
                least[runner][at] = min(least[runner][at], time.perf_counter() - began)
        seconds = {runner: float(np.exp(np.log(times).mean())) for runner, times in least.items()}
    return seconds
