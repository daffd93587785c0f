"""Bad input is refused with one line before torch is imported, let alone a model loaded."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import ended, pool_rows, write_rows
from warm_python import WarmPython

CODE = """
import sys
from polyrank.service.cli import main
status = main(sys.argv[1:])
sys.exit(77 if "torch" in sys.modules else status)
"""


Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(light_python: WarmPython) -> Refused:
    """Runs a command; returns its exit status, and the only line that it says."""

    def run(*arguments: object) -> tuple[int, str]:
        status, out, err = ended(light_python.start("-c", CODE, *arguments))
        assert status != 77, f"torch was imported: {err}"
        assert out == ""
        lines = [line for line in err.splitlines() if " INFO " not in line]  # a server begins with its settings
        [line] = lines
        assert line.startswith("polyrank: ")
        return status, line.removeprefix("polyrank: ")

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a good pool and good dialogues, of files that are none, and an empty store."""
    folder = tmp_path_factory.mktemp("files")
    write_rows(folder / "pool.jsonl", pool_rows(3))
    dialogue = {"context": ["w1"], "response": "w2", "candidates": ["w2", "w3"]}
    write_rows(folder / "data.jsonl", [dialogue])
    write_rows(folder / "empty.jsonl", [])
    (folder / "broken.jsonl.gz").write_bytes(b"w1\n")
    (folder / "pool.txt").write_bytes(b"w1\n")
    (folder / "store").mkdir()
    return folder


POOLS = [
    ("none.jsonl", "{}: no such file"),
    ("empty.jsonl", "{}: the pool holds no candidate"),
    ("broken.jsonl.gz", "{}: cannot be read"),
    ("pool.txt", "{}: unknown kind of pool"),
]


@pytest.mark.parametrize(("name", "says"), POOLS, ids=[name for name, _ in POOLS])
@pytest.mark.parametrize("command", ["build", "evaluate"])
def test_a_pool_that_is_none(
    refused: Refused, command: str, name: str, says: str, files: Path, checkpoints: Path
) -> None:
    pool, model = files / name, checkpoints / "poly"
    arguments = {
        "build": ("--store", files / "new"),
        "evaluate": ("--data", files / "data.jsonl"),
    }[command]
    status, line = refused(command, "--model", model, "--pool", pool, *arguments)
    assert status == 1
    assert line.startswith(says.format(pool))
    assert not (files / "new").exists()


@pytest.mark.parametrize("command", ["serve", "rank", "evaluate"])
def test_a_reranker_that_is_none(refused: Refused, command: str, files: Path, checkpoints: Path) -> None:
    arguments = {
        "serve": ("--store", files / "store"),
        "rank": ("w1", "--store", files / "store"),
        "evaluate": (
            *("--model", checkpoints / "poly", "--data", files / "data.jsonl", "--pool", files / "pool.jsonl"),
        ),
    }[command]
    status, line = refused(command, *arguments, "--reranker", files / "no-model")
    assert (status, line.split(" is ")[0]) == (1, f"model {str(files / 'no-model')!r}")
    status, line = refused(command, *arguments, "--reranker", checkpoints / "poly")
    assert status == 2
    assert line.endswith(f"{checkpoints / 'poly'} is a poly-encoder; give a cross-encoder")


@pytest.mark.parametrize("command", ["build", "evaluate"])
def test_a_model_that_is_none(refused: Refused, command: str, files: Path, checkpoints: Path) -> None:
    rest = {
        "build": ("--store", files / "new", "--pool", files / "pool.jsonl"),
        "evaluate": ("--data", files / "data.jsonl"),
    }[command]
    for name, says in ((files / "no-model", "is neither a local directory"), (files / "store", "is no model")):
        status, line = refused(command, "--model", name, *rest)
        assert status == 1
        assert says in line
    if command == "build":
        status, line = refused("build", "--model", checkpoints / "cross", *rest)
        assert (status, "which has no candidate embeddings" in line) == (2, True)


@pytest.mark.parametrize("missing", ["--data", "--pool", "--model", "--check"])
def test_what_cannot_be_mined(refused: Refused, missing: str, files: Path, checkpoints: Path) -> None:
    given = {"--data": files / "data.jsonl", "--pool": files / "pool.jsonl", "--model": checkpoints / "poly"}
    given |= {"--output": files / "mined.jsonl", missing: files / "none.jsonl"}
    status, line = refused("mine", *(each for pair in given.items() for each in pair))
    assert (status, str(files / "none.jsonl") in line) == (1, True)
    assert not (files / "mined.jsonl").exists()


@pytest.mark.parametrize("missing", ["--train", "--valid", "--base", "--teacher"])
def test_what_cannot_be_trained(refused: Refused, missing: str, files: Path, checkpoints: Path) -> None:
    given: dict[str, object] = {"--train": files / "data.jsonl", "--base": checkpoints / "poly"}
    given |= {"--architecture": "poly", "--output": files / "trained", missing: files / "none.jsonl"}
    status, line = refused("train", *(each for pair in given.items() for each in pair))
    assert (status, str(files / "none.jsonl") in line) == (2 if missing == "--valid" else 1, True)


@pytest.mark.parametrize("missing", ["--corpus", "--queries", "--qrels"])
def test_a_collection_that_is_none(refused: Refused, missing: str, files: Path, checkpoints: Path) -> None:
    given = {"--corpus": files / "pool.jsonl", "--queries": files / "pool.jsonl", "--qrels": files / "pool.jsonl"}
    given |= {"--model": checkpoints / "poly", missing: files / "none"}
    status, line = refused("evaluate", *(each for pair in given.items() for each in pair))
    assert (status, line) == (1, f"{files / 'none'}: no such file")


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("none.jsonl", 1, "{}: no such file"),
        ("empty.jsonl", 2, "--probes {} holds no dialogue"),
        ("pool.jsonl", 1, "{}:1: "),
    ],
)
def test_probes_that_are_none(
    refused: Refused, name: str, status: int, says: str, files: Path, checkpoints: Path
) -> None:
    built = ("--model", checkpoints / "poly", "--pool", files / "pool.jsonl", "--store", files / "new")
    told, line = refused("build", *built, "--probes", files / name)
    assert (told, line.startswith(says.format(files / name))) == (status, True), line


@pytest.mark.parametrize("place", ["none", "pool.jsonl"])
@pytest.mark.parametrize("command", [("serve",), ("rank", "w1"), ("store", "list")], ids=" ".join)
def test_a_store_that_is_none(refused: Refused, command: tuple[str, ...], place: str, files: Path) -> None:
    store = files / place
    assert refused(*command, "--store", store) == (2, f"{store} is no directory; polyrank build makes a store")


def test_a_store_to_build_into_that_is_a_file(refused: Refused, files: Path, checkpoints: Path) -> None:
    pool = files / "pool.jsonl"
    status, line = refused("build", "--model", checkpoints / "poly", "--pool", pool, "--store", pool)
    assert (status, line) == (1, f"Not a directory: {pool}")


def test_a_store_to_build_into_that_is_a_checkpoint(refused: Refused, files: Path, checkpoints: Path) -> None:
    model = checkpoints / "poly"
    before = sorted(model.iterdir())
    status, line = refused("build", "--model", model, "--pool", files / "pool.jsonl", "--store", model)
    assert (status, line) == (2, f"--store {model} is a checkpoint; give another directory")
    assert sorted(model.iterdir()) == before


def test_a_store_without_a_generation(refused: Refused, files: Path) -> None:
    status, line = refused("rank", "w1", "--store", files / "store")
    assert status == 1
    assert line.startswith(f"no good generation in {files / 'store'}: it is empty")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use(refused: Refused, taken: int, files: Path) -> None:
    status, line = refused("serve", "--store", files / "store", "--port", taken)
    assert status == 1
    assert line == f"cannot listen on 127.0.0.1:{taken}: Address already in use; choose another by --port"
