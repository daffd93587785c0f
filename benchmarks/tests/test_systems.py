"""The benchmark of all architectures, over tiny models and made-up conversations."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from benchmarks import systems
from benchmarks.random_models import TINY, write_base

from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.service.cli.commands.evaluate import measure


def test_figures_are_those_of_evaluate_and_finished_runs_stay(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, output = write_base(tmp_path / "base", TINY), tmp_path / "out"
    given = [
        "--data",
        str(data),
        "--output",
        str(output),
        "--base",
        str(base),
        "--systems",
        "bi",
        "mix, alone",
        "cross",
    ]
    given += ["--steps", "2", "--slow-lists", "5", "--json"]
    monkeypatch.setattr(systems, "SLOW", ("cross",))
    systems.main(given)
    table = orjson.loads(capsys.readouterr().out)
    assert [told["lists"] for told in table["ConvAI2"].values()] == [12, 12, 5]
    for name, path in systems.YARDSTICKS.items():
        told = measure(str(output / "mix-alone-0"), data / path).as_object()
        assert table[name]["mix, alone"]["R@1"][0] == pytest.approx(told["recall@1"])
        assert table[name]["mix, alone"]["MRR"][0] == pytest.approx(told["mrr"])
    written = (output / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns
    systems.main(given)
    assert orjson.loads(capsys.readouterr().out) == table
    assert (output / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns == written


def test_differences_are_over_the_lists_that_both_have(capsys: pytest.CaptureFixture[str]) -> None:
    own = [np.array([[1.0, 0.0], [1.0, 0.5]])]
    other = [np.array([[0.0, 0.0, 1.0], [0.5, 0.5, 1.0]]), np.array([[1.0, 0.0, 1.0], [1.0, 0.5, 1.0]])]
    told = systems.row(own, other, np.arange(3))
    assert told["R@1"][0] == 0.5
    assert told["MRR"][0] == 0.75
    assert told["more"][0] == 0.25
    systems.print_table({"set": {"cross": {"lists": 2, "seeds": [0.5], **told}}})
    assert (
        "| set | cross | 2 | 0.500 [0.000, 1.000] | 0.750 | +0.250 [+0.000, +0.500] | +0.125 [+0.000, +0.250] | 0.500 |"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("system", systems.SYSTEMS)
def test_every_system_has_a_recipe(system: str) -> None:
    assert systems.config_of(system, "base", 2, 0).seed == 0


def test_the_light_recipe_reads_less() -> None:
    recipe = systems.light_config_of("cross", "base", 30, 1)
    assert (recipe.batch_size, recipe.max_turns) == (8, 2)
