"""The state of an unfinished run on disk: all that a resumed run needs to end with the same weights."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from polyrank.model.checkpoint.files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, backbone_file, file_sha256
from polyrank.model.config import LexicalConfig
from polyrank.model.durable import remove_leftovers, replacing
from polyrank.model.errors import InvalidInput, OutputInUse
from polyrank.model.rankers.networks import NetworkRanker
from polyrank.model.training.config import LOGS, STATE_FILE, PairTrainConfig, TrainConfig
from polyrank.model.training.data import Corpus


@dataclass
class RunProgress:
    """Where a run is.

    best: rescaled loss and loss of the best look, in this order of weight: a large scale makes the first 0 as soon as
    every reply held out comes first. seconds: how long it took so far, the time before it was resumed included.
    """

    step: int = 0
    best: tuple[float, float] = (math.inf, math.inf)
    best_step: int = 0
    looks_without: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run was started with. A resumed run must have the same, or it would not end with the same weights."""

    config: TrainConfig
    data: list[list[Any]]  # for each file its path, sha256, and how it is read
    models: dict[str, Any]  # identities of base, teacher, retriever and first stage, by the setting's name
    processes: int
    words: LexicalConfig | None  # the evidence that counts in its loss; None: words do not

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        corpora: Sequence[Corpus],
        base: Path,
        models: Mapping[str, NetworkRanker],
        processes: int,
        words: LexicalConfig | None,
    ) -> "Origin":
        """Identify the files in the directory `base`, those of the corpora, and the objective's other models."""
        data = [
            [str(each.path), file_sha256(each.path, math.inf), each.weight, each.every_turn, int(each.held_out.sum())]
            for each in corpora
        ]
        identities: dict[str, Any] = {name: model.fingerprint for name, model in models.items()}
        identities["base"] = _files_sha256(base)
        if isinstance(config, PairTrainConfig) and config.first_stage:
            identities["first_stage"] = _files_sha256(Path(config.first_stage))
        return cls(config, data, identities, processes, words)

    def require_same(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidInput where the run of that state was started with something else."""
        was = "the unfinished run was started with"
        # The files of the base count, wherever they lie: a compaction gives the loop's base another place.
        if differing := [each for each in self.config.differences(state["config"]) if each != "base"]:
            what = ", ".join(f"{name.replace('_', '-')} ({_shown(state['config'].get(name))})" for name in differing)
            raise InvalidInput(f"{was} another {what}; give the same, or another --output")
        if state["data"] != self.data:
            what = "training files, --weights, --every-turn or --held-out"
            raise InvalidInput(f"{was} other {what}; give the same, or another --output")
        if changed := [name for name, content in self.models.items() if state["models"].get(name) != content]:
            raise InvalidInput(f"{was} another {', '.join(changed)}: its files are not the same; give the same")
        if state["processes"] != self.processes:
            raise InvalidInput(f"{was} another number of processes, {state['processes']}; give the same")
        was_words, words = state["words"], self.words and asdict(self.words)
        if was_words and words and was_words != words:
            raise InvalidInput(f"{was} other evidence of words; give the same model")
        if was_words != words:
            counted = "no words count" if words else "words count"
            raise InvalidInput(f"in the loss of the unfinished run {counted}: --no-evidence is not as it was")


def _shown(setting: Any) -> Any:
    return "not given" if setting is None else setting


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in one step: a kill leaves either the old one or the new one."""
    with replacing(directory / STATE_FILE) as temporary, temporary.open("wb") as file:
        torch.save(dict(state), file)


def read_state(directory: Path) -> dict[str, Any]:
    """Read the state; accepts only tensors and plain values, nothing that runs code.

    Raises OutputInUse where there is none, or it is damaged.
    """
    path = directory / STATE_FILE
    if not path.is_file():
        raise OutputInUse(f"{directory} holds no unfinished run to resume; start one without --resume")
    try:
        with ZipFile(path) as archive:  # torch.load does not check the checksums that torch.save wrote
            if damaged := archive.testzip():
                raise BadZipFile(damaged)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several types, by kind of damage
        raise OutputInUse(f"{path} is damaged; remove {directory} and start again") from error
    return state


def require_unused(directory: Path) -> None:
    """Raise OutputInUse where the directory holds anything that this run would overwrite.

    Curves alone are those of a run that was killed before it had a state.
    """
    if (directory / STATE_FILE).exists():
        raise OutputInUse(f"{directory} holds an unfinished run; give the command that began it, or remove it")
    if directory.is_dir():
        remove_leftovers(directory)
    if directory.exists() and (not directory.is_dir() or not all(map(_are_curves, directory.iterdir()))):
        raise OutputInUse(f"{directory} is not empty; give --output a new directory")


def _are_curves(path: Path) -> bool:
    """Whether that is what a run has logged, and not somebody's logs."""
    return path.name == LOGS and path.is_dir() and all(each.match("events.out.tfevents.*") for each in path.iterdir())


@contextmanager
def begun_in(directory: Path) -> Iterator[None]:
    """Make an unused directory, and fill it. If the block raises, it is unused again, unless it holds a state.

    Raises OutputInUse as `require_unused`, OSError where it cannot be made.
    """
    require_unused(directory)
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:  # Ctrl-C too
        if not (directory / STATE_FILE).exists():
            for path in directory.iterdir() if directory.exists() else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if directory.exists() and not existed:
                directory.rmdir()
        raise


def _files_sha256(directory: Path) -> dict[str, str]:
    """Identify a base or checkpoint, wherever it lies: the sha256 of its files by name."""
    named = (directory / name for name in (CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE))
    files = (backbone_file(directory), *named)
    return {file.name: file_sha256(file) for file in files if file.is_file()}
