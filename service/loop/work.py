"""`python -m polyrank.service.loop.work STAGE STORE RUN [GOLDEN ...]`: a stage that needs models, in its own process.

Its memory goes when it ends, before the days of a canary. `gate` writes gate.json, `build` makes a generation and writes
build.json; errors are said in one line. Exit status: 0 done, 1 failed.
"""

import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.building.compaction import updated_pool
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.building.stages import EncodedContext
from polyrank.index_builder.errors import BuildBusy, BuildError, LeaseLost, SwitchOvertaken
from polyrank.index_builder.index.measuring import MOST_PROBES
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.durable import write_atomically
from polyrank.model.errors import RankingError
from polyrank.model.inference import disk_cache
from polyrank.model.inference.runners import AUTO
from polyrank.model.rankers.load import load_retriever
from polyrank.model.rankers.networks import Retriever
from polyrank.model.text.dialogues import read_dialogues
from polyrank.service import BACKEND, PRECISION, PREFIX
from polyrank.service.feedback.export import LATER, TRAIN
from polyrank.service.loop.judging import Examples, judge
from polyrank.service.loop.state import BUILD_FILE, DATA, GATE_FILE, MODEL, Run, Runs

_SEED = 0


def main() -> int:
    """Do the stage that the command line names."""
    stage, store, run_id, *golden = sys.argv[1:]
    stages: dict[str, Callable[[Path, Path, Run, Sequence[Path]], None]] = {"gate": _gate, "build": _build}
    runs = Runs(Path(store))
    try:
        run = runs.latest()
        assert run is not None and run.id == run_id, "who starts this process has written it"
        stages[stage](Path(store), runs.path(run_id), run, [Path(each) for each in golden])
    except RankingError as error:
        print(f"polyrank: {error}", file=sys.stderr)
        return 1
    return 0


def _gate(store: Path, folder: Path, run: Run, golden: Sequence[Path]) -> None:
    live = _load(GenerationStore(store).model_directory(run.live))
    files = {**{str(path): path for path in golden}, "what came later": folder / DATA / LATER}
    sets = {name: examples for name, path in files.items() if (examples := Examples.read(path)) is not None}
    _write(folder / GATE_FILE, judge(_load(folder / MODEL), live, sets, folder / DATA / TRAIN))


def _build(store: Path, folder: Path, run: Run, golden: Sequence[Path]) -> None:
    """Build from what the live generation holds now, so that nobody needs the pool's files again."""
    generations = GenerationStore(store)
    active = generations.active()
    if active.id != run.live:
        raise SwitchOvertaken(run.live, active.id)
    model = _load(folder / MODEL)
    model.name = f"loop-{run.id}"
    options = BuildOptions(
        activate=False,
        dtype=active.dtype,
        probes=_probes(model, [*golden, folder / DATA / LATER]),
        redis_url=os.environ.get(f"{PREFIX}REDIS_URL") or None,
        copies_vectors=not os.environ.get(f"{PREFIX}CLUSTER"),
    )
    with updated_pool(generations) as (revision, candidates):
        ...
