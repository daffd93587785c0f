"""The choice of a back-end and a precision: by their names, or measured (`auto`).

`auto` takes the fastest of what was left open. A precision below float32 must pass the trials of quality on each part
of a model (trials.py). int8 is left open where the checkpoint says that it ranks as well; it need be like float32, but
not near. Speed is measured once in a process, with the first part of the first model: a later measurement would run
beside requests, and chance would decide. What was found out is kept on disk (compiler.py); what was measured beside
other work only for a day, so that processes that start together agree and a later start measures anew.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyrank.model.architectures.batching import Batch
from polyrank.model.checkpoint.quantised import Quantisation
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend, trials
from polyrank.model.inference.network import Backend, Forward
from polyrank.model.inference.openvino_backend import OpenVinoBackend
from polyrank.model.inference.runners import (
    AUTO,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    OPENVINO,
    TORCH,
    Choice,
    Runner,
    is_cpu,
    why_refused,
)
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.inference.trials import sequences
from polyrank.model.progress import stage
from polyrank.model.text.assembly import Assembler

if TYPE_CHECKING:
    from polyrank.model.inference.parts import NetworkPart

# A candidate must take at most this share of the best time before it, so that noise does not change the choice.
WORTH = 0.9
# After the first rounds, one that takes this many times as long as the fastest is not measured any further.
HOPELESS = 1.5
_FIRST_ROUNDS, _ROUNDS = 2, 5
_CALLS = 2  # in a row: during the first, threads of the previous back-end may still spin
# Of the processors that its threads could use, torch gets nearly all if nothing else runs.
CALM = 0.8
DISTURBED_HOLDS_SECONDS = 86400.0
_PROBED_SECONDS = 0.05

log = logging.getLogger(__name__)
_measuring = threading.Lock()
_measured: dict[tuple[Runner, ...], "Timing"] = {}  # by what there was to choose from


def candidates(backend: str, precision: str, device: str, quantisation: Quantisation | None = None) -> list[Backend]:
    """Return all that was asked for on a device, in torch's notation, the safest first. Imports no torch.

    quantisation: what int8 takes to know; None: it is not offered.

    Raises InvalidInput where there is no such back-end, or it cannot run on the device or in the precision.
    """
    if why := why_refused(Runner(backend, precision)):
        raise InvalidInput(why)
    if not is_cpu(device):
        where = f"runs on CPUs, not on the device {device!r}"
        if backend not in (AUTO, TORCH):
            raise InvalidInput(f"the back-end {backend} {where}; use torch or auto")
        if precision == INT8:
            raise InvalidInput(f"{INT8} {where}; use another precision, or auto")
        return [TorchBackend(device, each) for each in _precisions(precision)]
    if precision == INT8:
        return [OpenVinoBackend(INT8, quantisation)]
    # On a CPU torch in 16 bits gives a text other outputs in other batches, so it runs only if it is asked for.
    by_torch = [TorchBackend(device, FLOAT32 if precision == AUTO else precision)]
    if backend == TORCH:
        return [*by_torch]
    precisions = _precisions(precision) + [INT8] * (precision == AUTO and quantisation is not None)
    prepared = partial(OpenVinoBackend, quantisation=quantisation)
    if backend == OPENVINO:
        first, *others = precisions
        return [prepared(first), *map(prepared, _offered(others))]
    offered = _offered(precisions)
    if precision not in (AUTO, *offered):
        why = "OpenVINO does not compute in it here, and torch may be slower than in float32"
        log.warning("a slow precision was asked for", extra={"fields": {"precision": precision, "why": why}})
    return [*by_torch, *map(prepared, offered)]


def _precisions(precision: str) -> list[str]:
    return [FLOAT32, BFLOAT16, FLOAT16] if precision == AUTO else [precision]


def _offered(precisions: Sequence[str]) -> list[str]:
    """Return those that OpenVINO computes in here; a broken package offers nothing."""
    try:
        with openvino_backend.translated():
            return [each for each in precisions if openvino_backend.is_supported(each)]
    except InvalidInput as error:
        log.warning("OpenVINO is left out", extra={"fields": {"why": str(error)}})
        return []


class Timing(NamedTuple):
    """What a usual batch takes by each back-end, in seconds, and until when that holds.

    `until`: in seconds since the epoch; None: it was measured undisturbed, and holds.
    """

    seconds: Mapping[Runner, float]
    until: float | None = None


class Findings(NamedTuple):
    """What was found out about back-ends: their times, and verdicts on a part of a model.

    A verdict says why a back-end must not run the part; empty: it may. Those that were not tried have none.
    """

    timing: Timing
    verdicts: Mapping[Runner, str]


class Chooser:
    """Chooses for each part of a model the fastest of several back-ends that may run it.

    Each part is tried for itself, so another back-end may run each. The first back-end runs what all others must not.
    `backends`: what is chosen from, by name, the safest first.
    """

    def __init__(self, candidates: Sequence[Backend], device: str, assembler: Assembler, is_asked_for: bool) -> None:
        """`candidates` are the safest first, `device` is where the model is.

        The assembler is the model's, for trials on sentences. These are left out where the precision was asked for.
        """
        self.backends = {each.runner: each for each in candidates}
        self._first = candidates[0].runner
        self._device, self._assembler, self._is_asked_for = device, assembler, is_asked_for
        self._timing = Timing({})
        self._verdicts: dict[str, dict[Runner, str]] = {}  # by part

    @property
    def choice(self) -> Choice:
        """What has been found out so far."""
        milliseconds = {" ".join(runner): round(each * 1e3, 2) for runner, each in self._timing.seconds.items()}
        refused = {
            f"{' '.join(runner)}, {part}": why
            for part, verdicts in self._verdicts.items()
            for runner, why in verdicts.items()
            if why
        }
        return Choice(milliseconds, refused)

    def findings(self, part: str) -> Findings:
        """Return what there is to know about a part, for `learn`."""
        return Findings(self._timing, self._verdicts[part])

    def learn(self, part: str, findings: Findings) -> None:
        """Take over what was found out before about a part; what is known here stays."""
        if not self._timing.seconds and findings.timing.seconds:
            with _measuring:
                self._timing = _measured.setdefault(tuple(self.backends), findings.timing)
        if not self._verdicts.get(part):
            self._verdicts[part] = dict(findings.verdicts)
            for runner, why in findings.verdicts.items():
                if why:
                    self._warn("back-end refused before", runner, part)

    def runner_of(self, part: str) -> Runner | None:
        """Return what is to run a part; None: that has to be measured or tried first."""
        best = self._best(part) if self._timing.seconds else None
        return best if best == self._first or best in self._verdicts[part] else None

    def choose(self, name: str, part: "NetworkPart") -> tuple[Runner, Forward]:
        """Measure and try what is not known yet; returns what is to run the part of that name, and the part compiled.

        Raises InvalidInput where not even the first back-end can run it.
        """
        verdicts = self._verdicts.setdefault(name, {})
        forwards: dict[Runner, Forward] = {}
        with _measuring:
            if not self._timing.seconds:
                self._timing = _measured.get(tuple(self.backends)) or self._measure(name, part, forwards)
        while (best := self._best(name)) != self._first:
            verdicts[best] = self._why_not(best, part, forwards)
            if not verdicts[best]:
                break
            self._warn("back-end refused", best, name)
        return best, forwards.get(best) or _compiled(self.backends[best], part)

    def _best(self, part: str) -> Runner:
        verdicts = self._verdicts[part]
        return fastest({runner: each for runner, each in self._timing.seconds.items() if not verdicts.get(runner)})

    def _measure(self, name: str, part: "NetworkPart", forwards: dict[Runner, Forward]) -> Timing:
        """Return what each back-end takes for a usual batch; fills `forwards`."""
        for runner, backend in self.backends.items():
            try:
                forwards[runner] = _compiled(backend, part)
            except InvalidInput as error:
                if runner == self._first:
                    raise
                self._verdicts[name][runner] = str(error)
                self._warn("back-end refused", runner, name)
        before = share_of_processors()
        with stage(f"timing the encoder of {name} by {len(forwards)} back-ends, to choose one"):
            seconds = measured(forwards, trials.usual(part, not is_cpu(self._device)))
        until, share = None, min(before, share_of_processors())
        if share < CALM:
            until = time.time() + DISTURBED_HOLDS_SECONDS
            fields = {"share_of_processors": round(share, 2), "holds_seconds": DISTURBED_HOLDS_SECONDS}
            log.warning("back-ends were timed beside other work", extra={"fields": fields})
        timing = _measured[tuple(self.backends)] = Timing(seconds, until)
        return timing

    def _why_not(self, runner: Runner, part: "NetworkPart", forwards: dict[Runner, Forward]) -> str:
        """Return why a back-end must not run a part, empty if it may; compiles it if need be."""
        try:
            forward = forwards[runner] = forwards.get(runner) or _compiled(self.backends[runner], part)
        except InvalidInput as error:
            return str(error)
        if runner.precision == FLOAT32 or self._is_asked_for:
            return ""
        # Of int8 the checkpoint says how many rankings it changes, which a few sentences cannot.
        reference, proved = TorchBackend(self._device).compile(part), runner.precision == INT8
        with stage(f"comparing what {' '.join(runner)} computes with {TORCH} {FLOAT32}"):
            return trials.why_refused(forward, reference, sequences(part, self._assembler), part, proved)

    def _warn(self, message: str, runner: Runner, part: str) -> None:
        fields = {**runner._asdict(), "part": part, "why": self._verdicts[part][runner]}
        log.warning(message, extra={"fields": fields})


def _compiled(backend: Backend, part: "NetworkPart") -> Forward:
    with stage(f"compiling the encoder of {part.reads} for {' '.join(backend.runner)}"):
        return backend.compile(part)


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


def measured(forwards: Mapping[Runner, Forward], batches: list[Batch]) -> dict[Runner, float]:
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


def share_of_processors() -> float:
    """Return which share of the processors that torch's threads could use a product of matrices gets for a moment."""
    import torch

    matrix = torch.ones(512, 512)
    _ = matrix @ matrix  # threads may have to be made first
    began, spent = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - began) < _PROBED_SECONDS:
        _ = matrix @ matrix
    return (time.process_time() - spent) / (seconds * torch.get_num_threads())
