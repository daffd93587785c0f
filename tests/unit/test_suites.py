"""Every test is in one suite, `.ci/run` runs all suites but one, and no mark hides a promise from it."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression  # what -m is read by
from suites import SLOW_FOLDERS, is_slow

REPOSITORY = Path(__file__).resolve().parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
RULES = dict(re.findall(r"^(test[\w-]*):[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, re.MULTILINE))
SOAK = {f"tests/{each}" for each in re.findall(r"[\w/]+\.py", re.findall(r"^SOAK := (.*)$", MAKEFILE, re.MULTILINE)[0])}
PAGE = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
QUICK_FOLDERS = {"unit", "golden", "contract"}
APART = {"test-image"}  # it downloads what an image is made of, and takes gigabytes of disk
FILES = sorted(
    each.relative_to(REPOSITORY).as_posix()
    for folder in ("tests", "benchmarks/tests")
    for each in (REPOSITORY / folder).rglob("test_*.py")
)


def named(section: str) -> list[tuple[str, str]]:
    """The files that a section of docs/testing.md names, and the test, if it names one."""
    found = sorted(set(re.findall(r"`(tests/[\w/*.]+)(?:::(\w+))?`", SECTIONS[section])))
    return [
        (each.relative_to(REPOSITORY).as_posix(), test)
        for path, test in found
        for each in REPOSITORY.glob(path)
        if each.is_file()
    ]


def marks(node: ast.AST) -> set[str]:
    return set(re.findall(r"mark\.(\w+)", ast.unparse(node)))


def marks_by_test(path: str, test: str = "") -> list[list[set[str]]]:
    """The marks of each test of a file, or of a single one: those of the file, then of each decorator."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    assigned = [each for each in tree.body if isinstance(each, ast.Assign)]
    of_file = [marks(each.value) for each in assigned if ast.unparse(each.targets[0]) == "pytestmark"]
    tests = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    asked = [each for each in tests if each.name.startswith("test_") and test in ("", each.name)]
    return [[*of_file, *map(marks, each.decorator_list)] for each in asked]


def is_in_ci(path: str, test: str = "") -> bool:
    """Whether CI runs a file or a test; of a test with many cases, `soak` may mark one."""
    of_all = [[each for each in found if "parametrize" not in each] for found in marks_by_test(path, test)]
    return path in SOAK or any("soak" not in set().union(*each) for each in of_all)


@pytest.mark.parametrize(("slow", "soak"), [*product([False, True], repeat=2)])
def test_what_the_quick_suite_leaves_out_the_slow_one_runs(slow: bool, soak: bool) -> None:
    given = {"slow": slow, "soak": soak}
    chosen = [Expression.compile(re.findall(r"-m '([^']+)'", RULES[target])[0]) for target in ("test", "test-slow")]
    assert sum(each.evaluate(lambda name, **_: given[name]) for each in chosen) == (0 if soak else 1)


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_in_a_suite(path: str) -> None:
    folder = path.rpartition("/")[0]
    if folder.removeprefix("tests/") in {*QUICK_FOLDERS, *SLOW_FOLDERS}:
        assert is_in_ci(path) or Path(path).name in SECTIONS["Longer runs"]
    else:  # one with an environment of its own
        assert [target for target, recipe in RULES.items() if re.search(rf" {folder}(?=[/\s])", recipe)], path


def test_ci_runs_every_suite() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert {"lint", "test", "test-all"} <= set(" ".join(re.findall(r"^make ([^#\n]*)", script, re.MULTILINE)).split())
    assert re.search(r"^test-all: test$", MAKEFILE, re.MULTILINE)
    assert set(re.findall(r"\btest-[a-z]+", RULES["test-all"])) == RULES.keys() - {"test", "test-all", *APART}


@pytest.mark.parametrize(("path", "test"), [*named("Which test stands behind which promise"), *named("Faults")])
def test_no_mark_hides_a_promise_from_ci(path: str, test: str) -> None:
    assert is_in_ci(path, test)


@pytest.mark.parametrize(("path", "test"), named("Two suites"))
def test_one_of_each_kind_is_quick(path: str, test: str) -> None:
    assert not is_slow(Path(path).parent.name, set().union(*marks_by_test(path, test)[0]))
