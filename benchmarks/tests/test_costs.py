"""The benchmark of what scoring costs, over tiny models."""

import orjson
import pytest
from benchmarks import costs
from benchmarks.random_models import Shape

from polyrank.model.registry import MixConfig

SHAPE = Shape(32, 2, 2, 4 * 32, vocabulary=100)


def test_every_system_multiplies_as_its_formula_says(capsys: pytest.CaptureFixture[str]) -> None:
    systems = [name for name, fields in costs.SYSTEMS.items() if not isinstance(fields.get("own"), MixConfig)]
    given = ["--systems", *systems, "--counts", "20", "60", "--encoded", "100", "--context", "24", "--json"]
    costs.main(given, SHAPE)
    found = orjson.loads(capsys.readouterr().out)
    assert list(found) == systems
    assert found["bi"]["bytes"] == 2 * SHAPE.dim
    assert found["mix-a"]["bytes"] == 4 * SHAPE.dim
    for name, told in found.items():
        assert next(row["candidates"] for row in told["growth"]) == 20
        assert all(row["ms"] > 0 for row in told["growth"])
        if name not in ("bi", "poly"):  # which have no second stage
            assert told["of_formula"] == pytest.approx(1, abs=0.05), name
    costs.print_table(found, [20, 60])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + len(systems)
    assert all(row.count("|") == rows[0].count("|") for row in rows)


def test_what_would_take_too_long_is_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "processor_seconds", lambda call: call())
    seen: list[int] = []

    def score(count: int) -> float:
        seen.append(count)
        return count / 100

    rows = costs.growth(score, [50, 1000, 4000, 100_000], 30.0)
    assert [row["ms"] for row in rows] == [500.0, 10_000.0, 40_000.0, 1_000_000.0]
    assert [row.get("inferred", False) for row in rows] == [False, False, True, True]
    assert max(seen) == 1000
    assert costs.slope(rows) == 1.0
    assert costs.slope(rows[2:]) is None
