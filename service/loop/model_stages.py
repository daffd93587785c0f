"""`python -m polyrank.service.loop.model_stages STAGE STORE RUN [GOLDEN ...]`: a stage that needs models.

It has a process of its own, whose memory goes when it ends, before the days of a canary. `pool` writes pool.jsonl,
`calibrate` the calibration of the new model, `gate` gate.json; `build` makes a generation, and writes build.json.
Errors are said in one line. Exit status: 0 done, 1 failed.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import orjson

from polyrank.index_builder.building.compaction import chosen_again, updated_pool
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.building.stages import EncodedContext
from polyrank.index_builder.errors import BuildBusy, BuildError
from polyrank.index_builder.index.measuring import MOST_PROBES
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.durable import replacing
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.inference import disk_cache
from polyrank.model.inference.runners import AUTO
from polyrank.model.rankers.load import load_retriever
from polyrank.model.text.dialogues import drawn, read_dialogues
from polyrank.model.training.config import Data
from polyrank.model.training.run import train_calibration
from polyrank.service import BACKEND, PRECISION, PREFIX
from polyrank.service.feedback.export import LABELS, LATER, TRAIN
from polyrank.service.loop.judging import Examples, golden_sets, judge
from polyrank.service.loop.state import BUILD_FILE, DATA, FITTED, GATE_FILE, MODEL, POOL_FILE, Run, Runs, write_facts
from polyrank.service.loop.statistics import LATELY

_BUSY_SECONDS = 2.0  # until it is tried again


def main() -> int:
    """Do the stage that the command line names."""
    stage, store, run_id, *golden = sys.argv[1:]
    stages: dict[str, Callable[[Path, Path, Run, Sequence[Path]], None]]
    stages = {"pool": _pool, "calibrate": _calibrate, "gate": _gate, "build": _build}
    runs = Runs(Path(store))
    try:
        stages[stage](Path(store), runs.path(run_id), runs.read(run_id), [Path(each) for each in golden])
    except RankingError as error:
        sys.stderr.write(f"polyrank: {error}\n")
        return 1
    return 0


def _pool(store: Path, folder: Path, run: Run, _golden: Sequence[Path]) -> None:
    rows = orjson.OPT_APPEND_NEWLINE
    with updated_pool(GenerationStore(store), run.live) as (_, candidates), replacing(folder / POOL_FILE) as path:
        path.write_bytes(b"".join(orjson.dumps({"id": each.id, "text": each.text}, option=rows) for each in candidates))


def _calibrate(_store: Path, folder: Path, _run: Run, _golden: Sequence[Path]) -> None:
    """Fit what the new model's scores say by labels; where these are too few, what training has fitted stays."""
    model, fitted, data = folder / MODEL, folder / FITTED, folder / DATA
    shutil.rmtree(fitted, ignore_errors=True)  # a kill has left it
    files = Data((data / LABELS, data / TRAIN))
    try:
        train_calibration(str(model), files, fitted, seen=False, on_survey=lambda *_: None)
    except InvalidInput as lack:
        sys.stderr.write(f"the scores are not calibrated by labels: {lack}\n")
    else:
        # Nothing else has changed, and this is done in one step.
        write_config(model / CONFIG_FILE, read_config(fitted / CONFIG_FILE))
        shutil.rmtree(fitted)


def _gate(store: Path, folder: Path, run: Run, golden: Sequence[Path]) -> None:
    live = GenerationStore(store).model_directory(run.live)
    sets = golden_sets(golden)
    if (later := Examples.read(folder / DATA / LATER)) is not None:
        sets[LATELY] = later
    # Both run as the reference does: of two models `auto` might choose a slower back-end for one by chance.
    models = load_retriever(folder / MODEL), load_retriever(live)
    write_facts(folder / GATE_FILE, judge(*models, sets, folder / DATA / TRAIN))


def _build(store: Path, folder: Path, run: Run, golden: Sequence[Path]) -> None:
    """Build from what the live generation holds now, so that nobody needs the pool's files again; the index stays."""
    generations = GenerationStore(store)
    backend, precision = os.environ.get(BACKEND) or AUTO, os.environ.get(PRECISION) or AUTO  # as servers do
    model = load_retriever(folder / MODEL, backend, precision, disk_cache.configured(os.environ))
    active = generations.manifest(run.live)
    model.name = f"loop-{run.id}"
    for generation in generations.ids():  # a build whose process died before it said so
        maker = generations.manifest(generation).model
        if generation > run.id and (maker.name, maker.fingerprint) == (model.name, model.fingerprint):
            write_facts(folder / BUILD_FILE, {"generation": generation})
            return
    count, _ = generations.updated(run.live)
    examples = chain.from_iterable(map(read_dialogues, [*golden, folder / DATA / LATER]))
    probes = [each.conversation for each in drawn(examples, MOST_PROBES, Random(0))]
    options = BuildOptions(
        activate=False,
        index=chosen_again(active, count).asked,
        min_recall=active.min_recall,
        dtype=active.dtype,
        probes=EncodedContext.of(model, probes),
        redis_url=os.environ.get(f"{PREFIX}REDIS_URL") or None,
        copies_vectors=not os.environ.get(f"{PREFIX}CLUSTER"),
    )
    waits = False
    while True:
        try:
            with updated_pool(generations, run.live) as (revision, candidates):
                built = build(model, candidates, store, replace(options, revision=revision), parts=len(active.parts))
            break
        except BuildBusy as error:  # by a compaction, for instance
            if not waits:
                sys.stderr.write(f"waiting: {error}\n")
            waits = True
            time.sleep(_BUSY_SECONDS)
        except BuildError as error:
            if type(error) is not BuildError:  # overtaken, a full disk: another time it may go
                raise
            write_facts(folder / BUILD_FILE, {"refused": str(error)})
            return
    sys.stderr.writelines(f"{note}\n" for note in built.notes)
    write_facts(folder / BUILD_FILE, {"generation": built.generation})


if __name__ == "__main__":
    sys.exit(main())
