"""What the loop does with models in processes of their own, here in the test's."""

from pathlib import Path
from typing import cast

import pytest
from command_line import write_rows
from tiny import write_checkpoint

from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.service.loop.state import Run
from polyrank.service.loop.work import _calibrate


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "prior"), [(60, 0.5), (40, None)])
def test_enough_labels_calibrate_and_nothing_else_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: int, prior: float | None
) -> None:
    model = write_checkpoint(tmp_path, "model", seed=0, architecture="bi")
    (tmp_path / "data").mkdir()
    (tmp_path / "model-fitted").mkdir()
    write_rows(tmp_path / "model-fitted" / "left by a kill.jsonl", [{}])
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
    assert not (tmp_path / "model-fitted").exists()
