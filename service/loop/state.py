"""What a run of the loop has done so far, on disk, so that the same command goes on after a kill.

STORE/loop/run.lock           held by the one process that runs the loop
STORE/loop/stage.lock         held by that process's stage, and names it: it may outlive a process that was killed
STORE/loop/<time id>/         a run
    state.json                what was done: a `Run`, replaced atomically
    abort, anew               ask the process that runs it to end, and to collect again
    data/                     what feedback teaches: feedback/export.py; removed when nothing needs it any more
    pool.jsonl                texts of the live generation; likewise, and so the next two
    hard.jsonl, mined.jsonl   the examples with negatives that were mined, and with those of people before them
    fitted/                   the new model while it is calibrated; likewise
    model/                    the new checkpoint; removed by the next run
    gate.json, build.json     figures of both models; the id of the new generation
    examples.npy              hashes of all examples that were trained on, to tell new ones by
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGTERM
from socket import gethostname
from typing import Any, Final

import orjson
from pydantic import TypeAdapter

from polyrank.index_builder.layout import is_time_id, new_time_id
from polyrank.index_builder.store.locks import holder_of, is_locked, locked, try_locked
from polyrank.model.durable import make_directory, remove_leftovers, write_atomically
from polyrank.model.errors import shortage_in
from polyrank.model.inputs import open_input, read_input
from polyrank.service.errors import LoopBusy, LoopFailed

STATE_FILE, GATE_FILE, BUILD_FILE = "state.json", "gate.json", "build.json"
_ANEW_FILE = "anew"
DATA, MODEL, FITTED, EXAMPLES_FILE = "data", "model", "fitted", "examples.npy"
POOL_FILE, HARD_FILE, MINED_FILE = "pool.jsonl", "hard.jsonl", "mined.jsonl"
STAGES: Final = ("collect", "train", "gate", "build", "canary", "switch", "watch")
SWITCHED: Final = "switched"
# Verdicts on a model: its examples were learnt from. After the others the same ones are worth another run.
_JUDGED: Final = frozenset({SWITCHED, "refused", "not enough evidence", "withdrawn", "undecided", "rolled back"})
_KEPT = 100
_TEXTS = (DATA, POOL_FILE, HARD_FILE, MINED_FILE, FITTED)


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage that was done."""

    # sha256 of files by their names, fingerprints of models, ids of generations. What an earlier stage has left is no
    # input: it must be as it was left.
    inputs: dict[str, str]
    outputs: dict[str, str]
    said: str  # what came of it, in words


@dataclass(slots=True)
class Run:
    """A run."""

    id: str  # of the form of generations' ids, which says when it began
    live: str  # the generation that was active then, or what a compaction has made of it; it is to be replaced
    fingerprint: str  # of its model
    stages: dict[str, StageDone] = field(default_factory=dict)  # those that were done, by name, in their order
    # Of the canary and of the watch, by name: since when (seconds since the epoch) the trial has which share.
    steps: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    waits: str = ""  # what the canary or the watch has seen so far
    verdict: str | None = None  # how the run has ended; None: it has not
    why: str = ""  # in a clause

    @property
    def new(self) -> str | None:
        """The generation that is to replace the live one; None: it is not built."""
        return self.stages["build"].outputs["generation"] if "build" in self.stages else None

    @property
    def stage(self) -> str | None:
        """The stage that is to be done now; None: the run has ended."""
        return next((each for each in STAGES if each not in self.stages), None) if self.verdict is None else None

    @property
    def learns(self) -> bool:
        """Whether it needs texts still: its model is not built, and it has not ended."""
        return self.verdict is None and self.new is None


_RUN = TypeAdapter(Run)


class Runs:
    """The runs of a store."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "loop"
        self.stage_lock = self._folder / "stage.lock"

    def ids(self) -> list[str]:
        """All runs, oldest first."""
        return sorted(path.name for path in self._folder.glob("*") if is_time_id(path.name) and path.is_dir())

    def path(self, run: str) -> Path:
        return self._folder / run

    def latest(self) -> Run | None:
        """Read the latest run; None: there was none. Errors as `read`."""
        for run in reversed(self.ids()):
            if (self.path(run) / STATE_FILE).exists():  # else a process died before it wrote it
                return self.read(run)
        return None

    def judged(self) -> Iterator[Run]:
        """Yield the runs that have ended with a verdict on a model, the latest first. Errors as `read`.

        A model that was switched to counts, too, where somebody has ended the watch.
        """
        for run_id in reversed(self.ids()):
            if (self.path(run_id) / EXAMPLES_FILE).exists():
                run = self.read(run_id)
                if run.verdict in _JUDGED or (run.verdict is not None and "switch" in run.stages):
                    yield run

    def read(self, run: str) -> Run:
        """Read a run; raises LoopFailed where its state is damaged or missing, Shortage where it cannot be read now."""
        path = self.path(run) / STATE_FILE
        try:
            return _RUN.validate_json(read_input(path))
        except (OSError, ValueError) as error:
            raise shortage_in(error) or LoopFailed(f"{path} is damaged; remove {path.parent}") from error

    def begin(self, live: str, fingerprint: str) -> Run:
        """Begin a run; models of earlier ones are removed, texts that a kill has left there, and all of the oldest."""
        for earlier in self.ids():
            shutil.rmtree(self.path(earlier) / MODEL, ignore_errors=True)
            self.forget_texts(earlier)
        for oldest in self.ids()[:-_KEPT]:
            shutil.rmtree(self.path(oldest))
        run = Run(new_time_id(self.ids(), secrets.token_hex(4)), live, fingerprint)
        make_directory(self._folder)
        self.path(run.id).mkdir(mode=0o700)  # it will hold what people said
        self.write(run)
        return run

    def write(self, run: Run) -> None:
        write_facts(self.path(run.id) / STATE_FILE, asdict(run))

    def forget_texts(self, run: str) -> None:
        """Remove what conversations said from a run, and what writers have left of it that were killed."""
        remove_leftovers(self.path(run))
        for name in _TEXTS:
            path = self.path(run) / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @contextmanager
    def alone(self, within_seconds: float = 0.0) -> Iterator[None]:
        """Be the only process that runs the loop of this store for the block; raises LoopBusy."""
        make_directory(self._folder)
        lock = self._folder / "run.lock"
        with try_locked(lock, within_seconds=within_seconds) as is_alone:
            if not is_alone:
                raise LoopBusy(f"another process runs the loop of this store: {holder_of(lock)}")
            yield

    def is_at_work(self) -> bool:
        """Whether a process runs the loop of this store, or a stage that such a process has left."""
        return is_locked(self._folder / "run.lock") or is_locked(self.stage_lock)

    def name_stage(self, lock: int, process: int | None) -> None:
        """Write into the open file of `stage_lock` which process holds it, as far as the disk lets; None: none does."""
        with suppress(OSError):
            os.ftruncate(lock, 0)
            if process is not None:
                os.pwrite(lock, f"{process} {gethostname()}\n".encode(), 0)

    def end_stage(self) -> None:
        """End a stage that a killed command has left; raises StoreBusy where it goes on."""
        if not is_locked(self.stage_lock):
            return
        process, _, host = holder_of(self.stage_lock).partition(" ")
        if process.isdecimal() and host == gethostname():
            with suppress(ProcessLookupError):
                os.kill(int(process), SIGTERM)
        with locked(self.stage_lock):
            pass  # it has ended

    def abort_file(self, run: str) -> Path:
        """Return the file whose presence asks the process that runs it to end."""
        return self.path(run) / "abort"

    def leave_out(self, erased: Set[str]) -> bool:
        """Have the run that may learn from conversations of these names collect again; returns whether there is one.

        A process that runs it sees it soon. If none does, what was collected is removed here; a run that has not
        collected yet will not find them. Raises as `read` and `end_stage`.
        """
        run = self.latest()
        if run is None:
            return False
        if run.learns:
            if not self._may_hold(run, erased):
                return False
            (self.path(run.id) / _ANEW_FILE).touch()
        with suppress(LoopBusy), self.alone():
            run = self.read(run.id)
            if not run.learns:
                self.forget_texts(run.id)  # which a kill has left
            has_collected = run.learns and "collect" in run.stages
            if self.is_to_collect_anew(run):
                self.collect_anew(run)
            return has_collected
        return run.learns

    def _may_hold(self, run: Run, names: Set[str]) -> bool:
        """Whether a run has collected examples of conversations with these names, or is about to."""
        if "collect" not in run.stages:
            return True
        encoded_names = [name.encode() for name in names]
        for path in (self.path(run.id) / DATA).glob("*"):
            # Once its generation is built, a run has no texts any more.
            with suppress(FileNotFoundError), open_input(path) as lines:
                if any(name in line for line in lines for name in encoded_names):
                    return True
        return False

    def is_to_collect_anew(self, run: Run) -> bool:
        """Whether somebody has erased what a run, whose model is not built yet, may learn from."""
        return run.learns and (self.path(run.id) / _ANEW_FILE).exists()

    def collect_anew(self, run: Run) -> None:
        """Let a run begin again, and remove what it has collected and learnt. Errors as `end_stage`."""
        self.end_stage()
        run.stages.clear()
        self.write(run)
        self.forget_texts(run.id)
        shutil.rmtree(self.path(run.id) / MODEL, ignore_errors=True)
        (self.path(run.id) / _ANEW_FILE).unlink(missing_ok=True)  # last: after a kill all of this is done again


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Replace a JSON file in one step."""
    write_atomically(path, orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
