"""What no module does: run a model's code, read what is typed, open a file that somebody names in a way of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
OURS = ("model", "index_builder", "service")
ALL = (*OURS, "benchmarks", "checkpoints", "docker", "docs", "examples")
OF_TRANSFORMERS = {"from_pretrained", "from_config", "SentenceTransformer", "CrossEncoder"}
# Processes that another process starts, and speaks to by a pipe.
SPOKEN_TO = {
    "service/process/worker_process.py",
    "service/process/supervisor.py",
    "benchmarks/peers/worker.py",
    "benchmarks/regression/timed.py",
    "service/cli/commands/store.py",  # `store restore --from -`, where no terminal is there
}
# Files of the kernel, or of this package itself.
OWN_FILES = {
    "index_builder/store/locks.py", "model/durable.py", "model/inference/compiler.py",
    "model/inputs.py", "model/processor.py", "model/threads.py",
    "service/http/operations.py", "service/http/playground/page.py", "service/machine.py",
}  # fmt: skip


def trees(folders: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            yield file.relative_to(REPOSITORY).as_posix(), ast.parse(file.read_text())


def trusting(tree: ast.AST) -> list[int]:
    """The lines that give a name of transformers' away, or call it without `trust_remote_code=False`."""
    harmless: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            refused = any(
                each.arg == "trust_remote_code" and isinstance(each.value, ast.Constant) and each.value.value is False
                for each in node.keywords
            )
            harmless |= {id(each) for part in (node.func, *node.args) for each in ast.walk(part)} if refused else set()
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    own |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyrank")
        for alias in node.names
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if (name := getattr(node, "attr", None) or (node.id if isinstance(node, ast.Name) else None)) in OF_TRANSFORMERS
        and name not in own
        and isinstance(node, ast.Attribute | ast.Name)
        and id(node) not in harmless
    ]


@pytest.mark.parametrize(("source", "lines"), [
    ("AutoModel.from_config(config)", [1]),
    ("AutoModel.from_pretrained(path, trust_remote_code=True)", [1]),
    ("AutoModel.from_config(config, trust_remote_code=trusted)", [1]),
    ("AutoModel.from_config(config, trust_remote_code=False)", []),
    ("build = AutoModel.from_config", [1]),
    ("SentenceTransformer(path)", [1]),
    ("partial(SentenceTransformer, trust_remote_code=False)", []),
    ("from polyrank.model.architectures.cross import CrossEncoder\nCrossEncoder(path)", []),
])  # fmt: skip
def test_a_call_that_trusts_is_seen(source: str, lines: list[int]) -> None:
    assert trusting(ast.parse(source)) == lines


def test_every_call_into_transformers_refuses_a_models_code() -> None:
    assert {name: lines for name, tree in trees(ALL) if (lines := trusting(tree))} == {}
    asked = [name for name, tree in trees(OURS) if "from_config" in ast.dump(tree)]
    assert asked == ["model/architectures/backbone.py"], "else the test looks at nothing"


def test_nobody_reads_standard_input() -> None:
    asking = {"stdin", "input", "getpass", "fileinput", "breakpoint"}
    found = {
        name
        for name, tree in trees(ALL)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "stdin" and name not in SPOKEN_TO and _reads(node))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in asking)
    }
    assert found == set()


def _reads(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "sys"


def test_files_that_somebody_names_are_opened_in_one_place() -> None:
    """`model.inputs` opens regular files alone, and reads within a bound."""
    found = {
        f"{name}:{node.lineno}"
        for name, tree in trees(OURS)
        for node in ast.walk(tree)
        if name not in OWN_FILES and isinstance(node, ast.Call) and _opens_to_read(node)
    }
    assert found == set()


def _opens_to_read(call: ast.Call) -> bool:
    named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if named in ("read_text", "read_bytes"):
        return not (isinstance(call.func, ast.Attribute) and call.args)  # `read_text` of a package's own resources
    if named != "open":
        return False
    is_path = isinstance(call.func, ast.Attribute)
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return modes in (["rb"], ["r"]) if is_path else not any("w" in str(mode) or "a" in str(mode) for mode in modes)
