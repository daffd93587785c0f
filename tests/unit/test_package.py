"""The package as a whole: its public names, what importing it costs, where it is found, and its examples."""

import ast
import doctest
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import polyrank
from polyrank.service.cli.commands.train import _PACKAGES

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("model", "index_builder", "service")
FILES = [file for folder in FOLDERS for file in sorted((REPOSITORY / folder).rglob("*.py"))]
WITH_EXAMPLES = [
    ".".join(("polyrank", *file.relative_to(REPOSITORY).with_suffix("").parts))
    for file in FILES
    if ">>> " in file.read_text()
]


def run(*arguments: object, cwd: Path) -> str:
    """What a Python process in another folder prints."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout.strip()


@pytest.mark.parametrize("imports", ["polyrank", "polyrank.model.config", "polyrank.index_builder.errors"])
def test_importing_it_is_light(imports: str, tmp_path: Path) -> None:
    """Code that needs only error types or the config must not wait seconds for torch."""
    heavy = "{'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'numpy'}"
    code = f"import sys, {imports}; print(sorted({heavy} & set(sys.modules)))"
    assert run("-c", code, cwd=tmp_path) == "[]"


# What is found where only the client is installed.
CLIENT_ALONE = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

CLIENTS = {"httpx2", "httpcore2", "anyio", "h11", "idna", "tenacity", "truststore", "typing_extensions"}
MODELS = {"annotated_types", "pydantic", "pydantic_core", "typing_inspection"}
FOUND = {*sys.stdlib_module_names, *CLIENTS, *MODELS, "polyrank"}


class Found(PathFinder):
    @staticmethod
    def find_spec(name, path=None, target=None):
        is_there = name.partition(".")[0] in FOUND or name.startswith("_")
        return PathFinder.find_spec(name, path, target) if is_there else None


sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Found]
"""


def test_the_clients_need_nothing_of_the_servers(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        f"{CLIENT_ALONE}\n"
        "import asyncio, polyrank\n"
        "from polyrank.service.cli import main\n"
        "async def later():\n"
        "    async with polyrank.AsyncClient('http://127.0.0.1:1', max_retries=0) as client:\n"
        "        await client.rank('hi')\n"
        "with polyrank.Client('http://127.0.0.1:1', max_retries=0) as client:\n"
        "    for call in (lambda: client.rank('hi'), lambda: asyncio.run(later())):\n"
        "        try:\n"
        "            call()\n"
        "        except polyrank.NoAnswer:\n"
        "            print('no answer')\n"
        "    for wanted in (lambda: client.embed(['hi']), lambda: polyrank.load, lambda: polyrank.Turn):\n"
        "        try:\n"
        "            wanted()\n"
        "        except ImportError as error:\n"
        "            print(error)\n"
        "sys.stderr = sys.stdout\n"
        "print(main(['rank', 'hi', '--url', 'http://127.0.0.1:1']))\n"
        "print(main(['serve', '--store', 'store']))\n"
        "print(main(['build', '--model', 'm', '--pool', sys.argv[0], '--store', 'store']))\n"
    )
    server = "which is not installed: pip install 'polyrank[server]'"
    unreached = "polyrank: http://127.0.0.1:1: no answer ([Errno 111] Connection refused); is polyrank serve running?"
    assert run(script, cwd=tmp_path).splitlines() == [
        *["no answer"] * 2, "embed returns a NumPy array: pip install numpy", f"polyrank.load needs orjson, {server}",
        f"polyrank.Turn needs orjson, {server}", *[unreached, "1"],
        *[f"polyrank: this needs pydantic_settings, {server}", "2"], *[f"polyrank: this needs orjson, {server}", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", [["--help"], ["build", "--help"], ["build", "--shards", "x"], ["train", "--help"], ["rank"]], ids=" ".join
)
def test_help_and_wrong_usage_are_answered_at_once(line: list[str], tmp_path: Path) -> None:
    """By the standard library alone: every package that a command needs is imported when it runs.

    `serve` alone has its flags from the settings, which pydantic reads.
    """
    code = (
        "import sys\n"
        "from contextlib import redirect_stderr, redirect_stdout, suppress\n"
        "from io import StringIO\n"
        "from polyrank.service.cli import main\n"
        "with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):\n"
        f"    main({line!r})\n"
        "own = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'polyrank', '__main__'}\n"
        "print(sorted(name for name in own if not name.startswith('_')))\n"
    )
    assert run("-c", code, cwd=tmp_path) == "[]"


def test_the_public_names() -> None:
    assert sorted(polyrank.__all__) == polyrank.__all__
    for name in polyrank.__all__:
        public = getattr(polyrank, name)
        assert public is getattr(import_module(public.__module__), name)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'polyrank' has no attribute 'nonsense'"):
        _ = polyrank.nonsense


def test_a_users_own_modules_do_not_get_in_the_way(tmp_path: Path) -> None:
    """A script beside files named like our folders imports them, and polyrank finds its own."""
    for name in ("model", "service", "index_builder"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import index_builder, model, service\n"
        "from polyrank.service.cli import main\n"
        "from polyrank.index_builder.building.job_records import JobRequest\n"
        "print(model.MINE, service.MINE, index_builder.MINE, main.__module__)\n"
    )
    assert run(script, cwd=tmp_path) == "model service index_builder polyrank.service.cli"
    assert run("-m", "polyrank.service.cli", "--version", cwd=tmp_path) == f"polyrank {polyrank.__version__}"


def test_a_wheel_holds_one_package_with_every_file(tmp_path: Path) -> None:
    """Built as pip builds it, from a copy without the links, as a source archive has none."""
    for name in (*FOLDERS, "checkpoints", "examples"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src" / "polyrank").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/polyrank/__init__.py", "src/polyrank/py.typed"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    run("-m", "hatchling", "build", "--target", "wheel", cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"polyrank", wheel.name.split("-py3")[0] + ".dist-info"}
    files = {f"polyrank/{file.relative_to(tmp_path)}" for each in FOLDERS for file in (tmp_path / each).rglob("*.*")}
    assert files <= set(names)
    assert {f"polyrank/examples/support/{name}.jsonl" for name in ("pool", "conversations")} <= set(names)
    for checkpoint in (REPOSITORY / "checkpoints").glob("chat-*/*"):
        with_its_base = checkpoint.parent.name != "chat-large"  # no package brings the base of chat-large
        assert (f"polyrank/checkpoints/{checkpoint.parent.name}/{checkpoint.name}" in names) == with_its_base


def test_training_asks_for_the_packages_of_its_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    _, *names = (re.match(r"[\w-]+", each) for each in project["optional-dependencies"]["train"])
    assert [name and name[0] for name in names] == [*_PACKAGES]


def test_no_public_class_name_stands_twice() -> None:
    """One noun, one thing."""
    found: Counter[str] = Counter()
    for file in FILES:
        classes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef))
        found.update(node.name for node in classes if not node.name.startswith("_"))
    assert [name for name, count in found.items() if count > 1] == []


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name), report=True)
    assert (failed, tried > 0) == (0, True)


def test_there_are_examples() -> None:
    assert {"polyrank.model.architectures.attention", "polyrank.index_builder.index.choice"} <= set(WITH_EXAMPLES)
