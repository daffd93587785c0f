"""A run of the loop, stage by stage: from what feedback teaches to a new model that is live, or to a verdict.

Each stage leaves its result on the disk before it is recorded (state.py), and finds a result that is there already. So
the same command goes on after a kill at any moment. What needs models runs in a process of its own, which outlives a
kill of this one: its end is waited for then, and nothing is done twice.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from polyrank.index_builder.errors import GenerationNotFound, SwitchOvertaken
from polyrank.index_builder.generation.generation import sha256_of
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import take_lock
from polyrank.index_builder.vectors.encoder import Encode, encode_texts
from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE
from polyrank.model.checkpoint.lookup import require_network
from polyrank.model.checkpoint.quantised import QUANTISED_FILE
from polyrank.model.durable import replacing
from polyrank.model.inputs import read_input
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.text.conversations import context_key
from polyrank.model.text.dialogues import Dialogue, new_dialogues, read_dialogues
from polyrank.model.text.folding import hash64, text_key
from polyrank.model.training.config import STATE_FILE as TRAINING_STATE
from polyrank.service.errors import LoopBusy, LoopFailed
from polyrank.service.feedback.export import LABELS, LATER, TRAIN, export
from polyrank.service.loop.config import LoopConfig
from polyrank.service.loop.judging import golden_sets
from polyrank.service.loop.state import (
    BUILD_FILE,
    DATA,
    EXAMPLES_FILE,
    GATE_FILE,
    HARD_FILE,
    MINED_FILE,
    MODEL,
    POOL_FILE,
    STAGES,
    SWITCHED,
    Run,
    Runs,
    StageDone,
)
from polyrank.service.loop.statistics import Effect
from polyrank.service.loop.trial import Steps, TrialLease, look

_MAY_LOSE: Final = 0.03  # by the lower end of the canary's interval
_TICK_SECONDS = 0.2
_LOOK_SHARE = 9  # a look at a long log is followed by a pause so many times as long
_HOUR = 3600.0

Say = Callable[[str], object]


class _Ended(Exception):
    """The run has ended."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(verdict)
        self.verdict, self.why = verdict, why


class _Anew(Exception):
    """The run must collect again."""


def run_loop(config: LoopConfig, say: Say) -> Run:
    """Go on with the run that has not ended, or begin one; returns it when it has ended.

    Raises LoopBusy where another process runs the loop of this store. Any other error is of a stage: LoopFailed,
    RankingError or OSError; the next call tries it again.
    """
    runs, store = Runs(config.store), GenerationStore(config.store)
    with runs.alone():
        run = runs.latest()
        if run is None or run.verdict is not None:
            live = store.active()
            require_network(store.model_directory(live.id))
            run = runs.begin(live.id, live.model.fingerprint)
        else:
            say(f"going on with run {run.id}")
        _Stages(config, runs, store, run, say).to_the_end()
    return run


def abort(root: Path, within_seconds: float) -> Run | None:
    """End the run that has not ended, and its trial; returns it, or None: there is none.

    The process that runs it is asked to end and waited for; raises LoopBusy if it does not in time.
    """
    runs = Runs(root)
    run = runs.latest()
    if run is None or run.verdict is not None:
        return None
    runs.abort_file(run.id).touch()
    try:
        with runs.alone(within_seconds):
            run = runs.read(run.id)
            if run.verdict is None:  # nobody was at work
                _end(runs, GenerationStore(root), run, _aborted(run))
    except LoopBusy as error:
        raise LoopBusy(f"{error}; it is asked to end, and will as soon as it can") from error
    return run


def _aborted(run: Run) -> _Ended:
    return _Ended("aborted", f"somebody has asked for it, in stage {run.stage}")


def _end(runs: Runs, store: GenerationStore, run: Run, ended: _Ended) -> None:
    """Record how a run has ended; its trial ends, what a killed command has left of it, too, and its texts go."""
    runs.end_stage()
    for generation in filter(None, (run.live, run.new)):
        TrialLease(store, generation).end()
    if run.stage == "switch" and store.current_or_none() == run.new:  # a kill came before the switch was recorded
        run.stages["switch"] = StageDone({"generation": str(run.new)}, {}, f"{run.new} is active")
    run.verdict, run.why, run.waits = ended.verdict, ended.why, ""
    runs.write(run)
    runs.forget_texts(run.id)  # not sooner: without its verdict, after a kill, the run would need them


class _Stages:
    def __init__(self, config: LoopConfig, runs: Runs, store: GenerationStore, run: Run, say: Say) -> None:
        self._config, self._runs, self._store, self._run, self._say = config, runs, store, run, say
        self._folder = runs.path(run.id).resolve()
        self._look_seconds = 0.0

    def to_the_end(self) -> None:
        """Do all stages that are left."""
        ended = None
        while ended is None:
            try:
                self._go_on()
                ended = _Ended(SWITCHED, f"{self._run.new} is active")
            except _Ended as early:
                ended = early
            except _Anew:
                self._runs.collect_anew(self._run)
                self._say("a conversation was erased: collecting again")
        _end(self._runs, self._store, self._run, ended)

    def _go_on(self) -> None:
        prepare = (self._collect, self._train, self._gate, self._build)
        stages = dict(zip(STAGES, (*prepare, self._canary, self._switch, self._watch), strict=True))
        with self._stage_lock():
            pass  # what a kill has left has ended
        while (name := self._run.stage) is not None:
            if self._run.new is not None:  # not sooner: until then a kill leads back to a stage that needs them
                self._runs.forget_texts(self._run.id)
            self._check()
            self._require_as_recorded(name)
            live = self._run.live
            try:
                record = stages[name]()
            except LoopFailed:
                if self._run.live == live:
                    raise
                self._say(f"{name}: once more, a compaction has made {self._run.live} of {live}")
                continue
            self._say(f"{name}: {record.said}")
            self._run.stages[name] = record
            self._run.waits = ""
            self._runs.write(self._run)

    def _check(self) -> None:
        """End the run where somebody has asked for it, or has made another generation the active one.

        Raises _Anew where what it learns from was erased.
        """
        if self._runs.abort_file(self._run.id).exists():
            raise _aborted(self._run)
        if self._runs.is_to_collect_anew(self._run):
            raise _Anew
        active, run = self._follow_compactions(), self._run
        if run.stage == "watch" and active != run.new:
            if active == run.live:
                raise _Ended("rolled back", f"{active} is active again")
            raise _Ended(SWITCHED, f"{run.new} was active, and then somebody has activated {active}")
        # A kill may come between a switch and its record.
        if active not in ((run.live, run.new) if run.stage in ("switch", "watch") else (run.live,)):
            raise _Ended("overtaken", f"{active} is active, and no more {run.live}: somebody else has switched")

    def _follow_compactions(self) -> str | None:
        """Return what is active; where a compaction has made it of one of the run's, it takes that one's place."""
        active, run = self._store.current(), self._run
        if active is None or active in (run.live, run.new):
            return active
        built = run.stages["build"].outputs if run.stage == "watch" else None
        was, fingerprint = (built["generation"], built["fingerprint"]) if built else (run.live, run.fingerprint)
        if not self._store.was_left(was) and self._store.manifest(active).model.fingerprint == fingerprint:
            if built:
                built["generation"] = active
            else:
                run.live = active
            self._runs.write(run)
        return active

    def _require_as_recorded(self, name: str) -> None:
        """Refuse to go on from files that are not those that an earlier stage has left."""
        for stage in {"train": ["collect"], "gate": ["collect", "train"], "build": ["collect", "train"]}.get(name, []):
            outputs = self._run.stages[stage].outputs
            if changed := [file for file, digest in self._digests(*outputs).items() if digest != outputs[file]]:
                path = self._folder / changed[0]
                raise LoopFailed(f"{path} is not what stage {stage} has left; end the run with polyrank loop abort")

    def _digests(self, *files: str) -> dict[str, str]:
        paths = {file: self._folder / file for file in files}
        return {file: sha256_of(path) if path.is_file() else "missing" for file, path in paths.items()}

    # Collect.

    def _collect(self) -> StageDone:
        golden_sets(self._config.golden)  # what is wrong with one is said before days of work
        data = self._folder / DATA
        shutil.rmtree(data, ignore_errors=True)
        export(self._config.store, data, golden=self._config.golden)
        examples = np.array([_key(each) for each in read_dialogues(data / TRAIN)], np.uint64)
        judged = next(self._runs.judged(), None)
        earlier = [] if judged is None else np.load(self._runs.path(judged.id) / EXAMPLES_FILE)
        new = len(np.setdiff1d(examples, earlier))
        tally = f"{len(examples)} examples, {new} of them new"
        if new < self._config.least_examples:
            raise _Ended("nothing new", f"{tally}; {self._config.least_examples} new ones make a run")
        with replacing(self._folder / EXAMPLES_FILE) as temporary, temporary.open("wb") as file:
            np.save(file, examples)
        return StageDone(self._golden(), self._digests(*(f"{DATA}/{each}" for each in (TRAIN, LATER, LABELS))), tally)

    def _golden(self) -> dict[str, str]:
        return {str(path): sha256_of(path) for path in self._config.golden}

    # Train.

    def _train(self) -> StageDone:
        """Mine hard negatives in what the live generation holds, go on training its model, and calibrate by labels."""
        mined, model = self._folder / MINED_FILE, self._folder / MODEL
        live = self._store.model_directory(self._run.live).resolve()
        if (live / QUANTISED_FILE).exists() and "--quantise" not in self._config.train:
            self._say("the live model may run in int8 and the new one may not, more slowly: add --quantise to train")
        if not mined.exists():
            pool, hard = self._folder / POOL_FILE, self._folder / HARD_FILE
            self._model_stage("pool")
            files = ("--data", self._folder / DATA / TRAIN, "--pool", pool, "--output", hard)
            self._command("mine", *self._config.mine, "--model", live, *files)
            with new_dialogues(mined) as write:  # wrong replies that people passed over come before those mined
                own = read_dialogues(self._folder / DATA / TRAIN)
                for example, twin in zip(own, read_dialogues(hard), strict=True):
                    write(replace(twin, negatives=tuple(dict.fromkeys((*example.negatives, *twin.negatives)))))
        if not (model / CONFIG_FILE).exists() or (model / TRAINING_STATE).exists():
            architecture = self._store.manifest(self._run.live).model.architecture
            flags = ("--architecture", architecture, *self._config.train)
            self._command("train", *flags, "--base", live, "--train", mined, "--output", model)
        if (self._folder / DATA / LABELS).stat().st_size:
            self._model_stage("calibrate")
        options = " ".join(("mine", *self._config.mine, "train", *self._config.train))
        digests = self._digests(MINED_FILE, f"{MODEL}/{WEIGHTS_FILE}")
        return StageDone({"live": self._run.live, "options": options}, digests, f"from the model of {self._run.live}")

    # Gate and build.

    def _gate(self) -> StageDone:
        self._model_stage("gate", *self._config.golden)
        facts = orjson.loads(read_input(self._folder / GATE_FILE))
        if facts["verdict"] != "passed":
            raise _Ended(facts["verdict"], facts["why"])
        return StageDone(self._golden(), self._digests(GATE_FILE), facts["why"])

    def _build(self) -> StageDone:
        self._model_stage("build", *self._config.golden)
        built = orjson.loads(read_input(self._folder / BUILD_FILE))
        if "refused" in built:
            raise _Ended("refused", built["refused"])
        fingerprint = self._store.manifest(built["generation"]).model.fingerprint
        outputs = {"generation": built["generation"], "fingerprint": fingerprint}
        return StageDone({"live": self._run.live}, outputs, f"generation {built['generation']}")

    # Canary, switch, watch.

    def _canary(self) -> StageDone:
        if self._config.canary == "off":
            return StageDone({}, {}, "off, the gate alone decides")
        shares, hours = self._config.canary_shares, self._config.canary_hours
        lease, steps = TrialLease(self._store, str(self._run.new)), self._run.steps.setdefault("canary", [])
        with self._on_trial(lease, steps, shares[0]):
            while True:
                effect, now = self._effect(str(self._run.new), steps), time.time()
                since, share = steps[-1]
                larger = [each for each in shares if each > share]
                if effect.high < 0:
                    raise _Ended("withdrawn", f"conversations end worse: {effect}")
                if not larger and effect.low > -_MAY_LOSE:
                    lease.end()
                    return StageDone({}, {}, str(effect))
                if now >= steps[0][0] + hours * _HOUR:
                    raise _Ended("undecided", f"after {hours:g} h: {effect}")
                if larger and isfinite(effect.low) and now >= since + self._config.step_hours * _HOUR:
                    self._step(lease, steps, larger[0])
                if why := self._wait(lease, steps, f"{steps[-1][1]:.0%} of the conversations; {effect}"):
                    raise _Ended("withdrawn", why)

    def _switch(self) -> StageDone:
        new = str(self._run.new)
        while self._store.current() != new:
            try:
                self._store.activate(new, self._encodes(new), after=self._run.live)
            except SwitchOvertaken:
                self._check()  # by what else than a compaction?
        return StageDone({"generation": new}, {}, f"{new} is active")

    def _encodes(self, generation: str) -> Encode:
        """What encodes updates that the generation lacks; its model is loaded for the first one."""
        ranker = cache(lambda: load_vector_ranker(self._store.model_directory(generation)))
        return lambda texts: encode_texts(ranker(), texts)

    def _watch(self) -> StageDone:
        """Let the old generation answer a few conversations still, and go back to it if they end better."""
        old, hours = self._run.live, self._config.watch_hours
        if self._config.canary == "off" or not hours:
            return StageDone({}, {}, "nothing to watch by")
        lease, steps = TrialLease(self._store, old), self._run.steps.setdefault("watch", [])
        try:
            with self._on_trial(lease, steps, self._config.watch_share):
                while True:
                    effect = self._effect(old, steps, trial_is_new=False)
                    if effect.high < 0:
                        if self._store.go_back(self._store.verify(old), self._encodes(old)):
                            raise _Ended("rolled back", f"conversations end worse: {effect}")
                        self._check()
                    if time.time() >= steps[0][0] + hours * _HOUR:
                        return StageDone({}, {}, str(effect))
                    if why := self._wait(lease, steps, f"{steps[-1][1]:.0%} of the conversations stay; {effect}"):
                        return StageDone({}, {}, f"ended early, {why}: {effect}")
        except GenerationNotFound as gone:  # collected while no process held it on trial
            return StageDone({}, {}, f"ended early, {gone}")

    @contextmanager
    def _on_trial(self, lease: TrialLease, steps: list[tuple[float, float]], share: float) -> Iterator[None]:
        """Keep a generation on trial for the block, with this share at first, or as before a kill."""
        if steps:
            lease.begin(steps[-1][1])
        else:
            self._step(lease, steps, share)
        with lease.renewed():
            yield

    def _step(self, lease: TrialLease, steps: list[tuple[float, float]], share: float) -> None:
        """Give the trial a share; it is recorded first, so that no ranking is of a share that nobody knows."""
        steps.append((time.time(), share))
        self._runs.write(self._run)
        lease.begin(share)
        self._say(f"{self._run.stage}: {share:.0%} of the conversations")

    def _effect(self, trial: str, steps: Steps, *, trial_is_new: bool = True) -> Effect:
        began = time.monotonic()
        settled = time.time() - self._config.settle_minutes * 60
        effect = look(self._config.store, trial, steps, settled, trial_is_new=trial_is_new)
        self._look_seconds = time.monotonic() - began
        return effect

    def _wait(self, lease: TrialLease, steps: Steps, waits: str) -> str | None:
        """Wait until the next look is due; returns why the trial is over, or None: it is not. Ends as `_check`."""
        self._run.waits = waits
        with suppress(OSError):  # a full disk, which the next look may find with room again
            self._runs.write(self._run)
        until = time.monotonic() + max(self._config.look_seconds, _LOOK_SHARE * self._look_seconds)
        while (left := until - time.monotonic()) > 0:
            self._check()
            if why := lease.why_over(steps[0][0]):
                return why
            time.sleep(min(left, _TICK_SECONDS))
        return None

    # Processes.

    def _model_stage(self, stage: str, *arguments: object) -> None:
        self._child(stage, "polyrank.service.loop.model_stages", stage, self._config.store, self._run.id, *arguments)

    def _command(self, *arguments: object) -> None:
        self._child(str(arguments[0]), "polyrank.service.cli", *arguments)

    def _child(self, name: str, module: str, *arguments: object) -> None:
        """Run a module as a process, and wait for its end; raises LoopFailed where it fails. Ends as `_check`."""
        with self._stage_lock() as lock:
            # -P: nothing is imported from the folder that the command was started in. What it prints is no result.
            command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[lock]) as process:
                self._runs.name_stage(lock, process.pid)
                try:
                    while process.poll() is None:
                        self._check()
                        time.sleep(_TICK_SECONDS)
                except (_Ended, _Anew):
                    process.terminate()
                    raise
        self._check()  # what has come since the last look
        if process.returncode:
            raise LoopFailed(
                f"{name} ended with exit status {process.returncode}, and says above why; "
                "the same command tries it again, polyrank loop abort ends the run"
            )

    @contextmanager
    def _stage_lock(self) -> Iterator[int]:
        """Hold the lock that a stage's process inherits; waits for one that a killed command has left."""
        descriptor = os.open(self._runs.stage_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not take_lock(descriptor, 0.0):
                self._say("a stage goes on that a killed command has left; waiting for its end")
                while not take_lock(descriptor, _TICK_SECONDS):
                    self._check()
            self._runs.name_stage(descriptor, None)
            yield descriptor
        finally:
            os.close(descriptor)


def _key(example: Dialogue) -> int:
    keys = context_key(example.conversation), text_key(example.response)
    return hash64(b"".join(key.to_bytes(8, "little") for key in keys))
