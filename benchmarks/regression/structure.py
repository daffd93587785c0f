"""Compare how the code of several checkouts is cut: one Markdown table, a column for each checkout.

    python benchmarks/regression/structure.py CHECKOUT [CHECKOUT ...] [--json] [--suite-seconds N[,N...]]

The facts come from the syntax trees of service/, index_builder/ and model/; three come from running each checkout
(`passed.py`). README.md beside this file says how each fact is counted.
"""

import argparse
import ast
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from checkouts import PACKAGES, Checkout, table

LONG = 40  # lines of a function
CARRIED = ("timings", "deadline")  # parameters that go from hand to hand
# Classes of a pool's states and parts, however it is held.
POOLS = re.compile(
    r"(Set|Part|Local|Remote|Updated|Generation)*(Store|Live|Serving|Facts|Generation|Snapshot|Pool|Part)"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One file: where it is, what it is imported as (without `polyrank.`), its lines and syntax tree."""

    path: str
    module: str
    lines: int
    tree: ast.Module


def sources(root: Path, folders: Sequence[str] = PACKAGES) -> list[Source]:
    """The Python files in these folders."""
    found = []
    for package in folders:
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root)
            parts = relative.with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found.append(Source(relative.as_posix(), module, len(text.splitlines()), ast.parse(text)))
    return found


def sizes(files: Sequence[Source]) -> dict[str, Any]:
    largest = max(files, key=lambda each: each.lines)
    folders = Counter(each.path.rpartition("/")[0] for each in files)
    fullest, most = folders.most_common(1)[0]
    return {
        "files": len(files),
        "lines": sum(each.lines for each in files),
        "median lines of a file": median(each.lines for each in files),
        "largest file": [largest.lines, largest.path],
        "most files in one folder": [most, fullest],
    }


def functions(files: Sequence[Source]) -> dict[str, Any]:
    """Lengths and parameters of all functions, methods and functions within functions."""
    all_ = [(each, node) for each in files for node in ast.walk(each.tree) if isinstance(node, Function)]
    lengths = [_length(node) for _, node in all_]
    taken = [_parameters(node) for _, node in all_]
    longest = max(range(len(all_)), key=lengths.__getitem__)
    widest = max(range(len(all_)), key=taken.__getitem__)
    return {
        "functions": len(all_),
        "median lines of a function": median(lengths),
        "largest function": [lengths[longest], _place(*all_[longest])],
        f"functions over {LONG} lines": sum(length > LONG for length in lengths),
        f"share of functions over {LONG} lines": round(sum(length > LONG for length in lengths) / len(all_), 4),
        "median parameters of a function": median(taken),
        "most parameters": [taken[widest], _place(*all_[widest])],
    }


def _length(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _parameters(node: Function) -> int:
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    own = names[:1] in (["self"], ["cls"])
    return len(names) - own + len(given.kwonlyargs) + (given.vararg is not None) + (given.kwarg is not None)


def _place(source: Source, node: Function) -> str:
    return f"{source.path}:{node.lineno} {node.name}"


def imports(files: Sequence[Source]) -> set[tuple[str, str]]:
    """Pairs (module, module it imports), wherever the import stands: in a function and for types alone, too."""
    modules = {each.module for each in files}
    edges = set()
    for each in files:
        for name in _imported(each):
            target = name.removeprefix("polyrank.")
            if target not in modules:
                target = target.rpartition(".")[0]  # a name in a module
            if target in modules and target != each.module:
                edges.add((each.module, target))
    return edges


def _imported(source: Source) -> Iterator[str]:
    """Full names: of the modules, or of the names imported from them."""
    is_package = source.path.endswith("__init__.py")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = source.module.split(".")
            up = base[: len(base) - node.level + is_package] if node.level else []
            yield from (".".join([*up, *filter(None, [node.module]), alias.name]) for alias in node.names)


def room(module: str) -> str:
    """A package's folder of the first level, or a module that lies beside these."""
    return ".".join(module.split(".")[:2])


def two_way(edges: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{a} and {b}" for a, b in edges if a < b and (b, a) in edges)


def dependencies(files: Sequence[Source]) -> dict[str, Any]:
    edges = imports(files)
    between = {(room(a), room(b)) for a, b in edges if room(a) != room(b)}
    return {
        "modules that import each other": two_way(edges),
        "rooms that import each other": two_way(between),
    }


def classes(files: Sequence[Source]) -> dict[str, Any]:
    named = defaultdict(list)
    for each in files:
        for node in each.tree.body:
            if isinstance(node, ast.ClassDef):
                named[node.name].append(node)
    twice = {name: len(nodes) for name, nodes in named.items() if len(nodes) > 1 and not name.startswith("_")}
    return {
        "public class names that stand more than once": [f"{name} x{count}" for name, count in sorted(twice.items())],
        "settings": len(_fields("Settings", named)),
    }


def _fields(name: str, named: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Annotated fields of a class and of the product's classes that it is made from."""
    fields: set[str] = set()
    for node in named.get(name, []):
        targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
        fields |= {target.id for target in targets if isinstance(target, ast.Name)}
        for base in node.bases:
            if isinstance(base, ast.Name):
                fields |= _fields(base.id, named)
    return {field for field in fields if not field.startswith("_") and field != "model_config"}


def glue(files: Sequence[Source]) -> dict[str, Any]:
    """What makes a change wide: what is handed on from function to function, and questions of which kind a pool is."""
    nodes = [(each, node) for each in files for node in ast.walk(each.tree)]
    named = Counter(node.arg for _, node in nodes if isinstance(node, ast.arg))
    return {
        **{f"parameters named {name}": named[name] for name in CARRIED},
        "isinstance over pools": [
            f"{each.path}:{node.lineno}"
            for each, node in nodes
            if isinstance(node, ast.Call) and _asks_for_a_pool(node)
        ],
    }


def _asks_for_a_pool(node: ast.Call) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(isinstance(each, ast.Name) and POOLS.fullmatch(each.id) for each in ast.walk(kinds))
    return False


def words(root: Path) -> dict[str, Any]:
    """Words of README and of docs/ by white space, as `wc -w` counts them; generated pages and tables count, too."""
    docs = {path: len(path.read_text(encoding="utf-8").split()) for path in (root / "docs").rglob("*.md")}
    return {
        "words of README and docs": sum(docs.values()) + len((root / "README.md").read_text(encoding="utf-8").split()),
        "words of architecture.md": docs[root / "docs" / "architecture.md"],
    }


def passed(checkout: Checkout) -> dict[str, Any]:
    """Files that a request, a row of the pool and an update pass, found by running the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        files = checkout.run_script(Path(__file__).with_name("passed.py"), checkout.path, folder)
    return {
        "files that a /rank request passes": files["request"],
        "files that a pool row passes": files["build"],
        "files of index_builder that a pool row passes": [
            name for name in files["build"] if name.startswith("index_builder/")
        ],
        "files that an update passes": files["update"],
    }


def facts(checkout: Checkout) -> dict[str, Any]:
    files = sources(checkout.path)
    tests = {f"{name} (tests)": value for name, value in sizes(sources(checkout.path, ["tests"])).items()}
    found = (sizes, functions, dependencies, classes, glue)
    counted = {name: value for each in found for name, value in each(files).items()}
    return counted | tests | words(checkout.path) | passed(checkout)


def shown(name: str, value: Any) -> str:
    """A fact as a cell: names are code, shares percentages, and of the files passed only the number is shown."""
    if name.startswith("share"):
        return f"{value:.1%}"
    if name.startswith("files ") and isinstance(value, list):
        return str(len(value))
    match value:
        case [int() as number, str() as where]:
            return f"{number} (`{where}`)"
        case [*names]:
            return f"{len(names)}" + (": " + ", ".join(f"`{each}`" for each in names) if names else "")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="CHECKOUT", type=Checkout)
    parser.add_argument("--json", action="store_true", help="print all facts as one JSON object instead")
    parser.add_argument("--suite-seconds", metavar="N[,N...]", help="add how long each checkout's test suite takes")
    given = parser.parse_args()
    columns = {f"{each.path.name} ({each.revision})": facts(each) for each in given.checkouts}
    if given.suite_seconds:
        seconds = [float(each) for each in given.suite_seconds.split(",")]
        if len(seconds) != len(columns):
            parser.error(f"--suite-seconds: give {len(columns)} numbers, one for each checkout")
        for column, took in zip(columns.values(), seconds, strict=True):
            column["seconds of the test suite"] = took
    if given.json:
        print(json.dumps(columns))
        return
    first = next(iter(columns.values()))
    rows = [[name, *(shown(name, column[name]) for column in columns.values())] for name in first]
    print(table(["", *columns], rows))


if __name__ == "__main__":
    main()
