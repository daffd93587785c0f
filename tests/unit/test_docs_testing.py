"""The tests that docs/testing.md names are there, and each fault of its list has one."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/*.]+)(?:::(\w+))?`", TEXT)))
FAULTS = {number: row for number, row in re.findall(r"^\| F(\d+) \|(.*)$", TEXT, re.MULTILINE)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}::{name}" for path, name in NAMED])
def test_what_is_named_is_there(path: str, name: str) -> None:
    files = list(REPOSITORY.glob(path))
    assert files, f"no {path}"
    if name:
        assert re.search(rf"^(async )?def {name}\(", files[0].read_text(), re.MULTILINE), f"no {name} in {path}"


def test_each_fault_has_a_test_of_its_own() -> None:
    assert sorted(map(int, FAULTS)) == list(range(1, 16))
    for number, row in FAULTS.items():
        assert re.search(r"`tests/\S+\.py::test_\w+`", row), f"F{number}"
