"""Say how much there is to read in each of several checkouts: one Markdown table, a column for each.

    python benchmarks/regression/structure.py CHECKOUT [CHECKOUT ...] [--json]

Lines and functions come from the files, what is passed from running the checkout (`passed.py`). README.md beside this
file says how each fact is counted.
"""

import argparse
import ast
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from checkouts import PACKAGES, Checkout, table


def lines_of(root: Path, *folders: str) -> dict[str, int]:
    """The lines of each Python file in these folders."""
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): len(path.read_text("utf-8").splitlines()) for path in files}


def size(root: Path) -> dict[str, Any]:
    """How much code there is."""
    ours, tests = lines_of(root, *PACKAGES), lines_of(root, "tests")
    bodies = [
        node.body
        for name in ours
        for node in ast.walk(ast.parse((root / name).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        "lines of the three packages": sum(ours.values()),
        "lines of tests": sum(tests.values()),
        "lines of benchmarks": sum(lines_of(root, "benchmarks").values()),
        "files of the three packages": len(ours),
        "files of tests": len(tests),
        "median lines of a file": median(ours.values()),
        "largest file": max((lines, name) for name, lines in ours.items()),
        "functions": len(bodies),
        "functions of one statement": sum(len(_without_docstring(body)) == 1 for body in bodies),
    }


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if is_docstring else body


def words(root: Path) -> dict[str, Any]:
    """Words of README and of docs/ by white space, as `wc -w` counts them; generated pages and tables count, too."""
    docs = {path: len(path.read_text(encoding="utf-8").split()) for path in (root / "docs").rglob("*.md")}
    return {
        "words of README and docs": sum(docs.values()) + len((root / "README.md").read_text(encoding="utf-8").split()),
        "words of architecture.md": docs[root / "docs" / "architecture.md"],
    }


def passed(checkout: Checkout) -> dict[str, Any]:
    """Files and functions that a request, an update and a row of the pool pass, found by running the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        found = checkout.run_script(Path(__file__).with_name("passed.py"), checkout.path, folder)
    ways = {"a /rank request": found["request"], "an update": found["update"]}
    return {
        **{f"{fact} of {name}": way[fact] for name, way in ways.items() for fact in ("files", "moves", "functions")},
        "files of a pool row": found["build"],
    }


def shown(value: Any) -> str:
    """A fact as a cell; of files only the number is shown."""
    match value:
        case [int() as number, str() as where]:
            return f"{number} (`{where}`)"
        case [*names]:
            return str(len(names))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="CHECKOUT", type=Checkout)
    parser.add_argument("--json", action="store_true", help="print all facts as one JSON object, files by their names")
    given = parser.parse_args()
    columns = {
        f"{each.path.name} ({each.revision})": size(each.path) | words(each.path) | passed(each)
        for each in given.checkouts
    }
    if given.json:
        print(json.dumps(columns))
        return
    first = next(iter(columns.values()))
    print(table(["", *columns], [[name, *(shown(column[name]) for column in columns.values())] for name in first]))


if __name__ == "__main__":
    main()
