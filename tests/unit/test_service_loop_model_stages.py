"""What the loop does with models in processes of their own, here in the test's."""

import shutil
from pathlib import Path
from typing import cast

import orjson
import pytest
from command_line import write_rows
from loop_store import write_store
from tiny import write_checkpoint

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.service.loop.model_stages import _build, _calibrate
from polyrank.service.loop.state import Run, Runs


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "prior"), [(60, 0.5), (40, None)])
def test_enough_labels_calibrate_and_nothing_else_changes(tmp_path, capsys, labels: int, prior: float | None) -> None:
    model = write_checkpoint(tmp_path, "model", seed=0, architecture="bi")
    (tmp_path / "data").mkdir()
    (tmp_path / "fitted").mkdir()
    write_rows(tmp_path / "fitted" / "left by a kill.jsonl", [{}])
    rows = [{"context": [f"w{number}"], "response": f"w{number + 1}", "dialogue": f"{number}"} for number in range(80)]
    write_rows(tmp_path / "data" / "train.jsonl", rows[60:])
    told = [{**row, "label": ("right", "wrong")[number // 2 % 2]} for number, row in enumerate(rows[:labels])]
    write_rows(tmp_path / "data" / "labels.jsonl", told)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    for _ in range(2):  # a kill may come before the stage is recorded
        _calibrate(tmp_path, tmp_path, cast(Run, None), ())
        calibration = read_config(model / CONFIG_FILE).calibration
        assert (calibration and calibration.prior) == prior
    changed = {path.name for path in model.iterdir() if path.read_bytes() != before.get(path.name)}
    assert changed == (set() if prior is None else {CONFIG_FILE})
    assert ("40 labels are too few, 50 are needed" in capsys.readouterr().err) == (prior is None)
    assert not (tmp_path / "fitted").exists()


@pytest.mark.slow
def test_a_build_that_a_kill_left_is_taken_only_for_the_same_model(tmp_path: Path) -> None:
    """A run that collects anew has another one."""
    write_store(tmp_path, [])
    store, runs = GenerationStore(tmp_path / "store"), Runs(tmp_path / "store")
    live = store.active()
    run = runs.begin(live.id, live.model.fingerprint)
    folder = runs.path(run.id)
    (folder / "data").mkdir()
    write_rows(folder / "data" / "later.jsonl", [])
    models = [write_checkpoint(tmp_path, f"model {seed}", seed=seed, architecture="bi") for seed in (1, 2)]
    for model, built in ((models[0], 1), (models[0], 1), (models[1], 2)):
        shutil.copytree(model, folder / "model", dirs_exist_ok=True)
        _build(store.root, folder, run, ())
        _, *found = store.ids()
        assert len(found) == built
        assert orjson.loads((folder / "build.json").read_bytes()) == {"generation": found[-1]}
