"""Files of dialogues: complete or absent, and equal where the examples are."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogue_files import new_dialogues
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid, read_dialogues

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ["d.jsonl", "d.jsonl.gz", "d.jsonl.zst"]

FULL = Dialogue(Conversation.of(["hi", "hello"], ["I sell lamps."]), "yes", ("no", "yes"), 1, ("never", "no"), "17")
BARE = Dialogue(Conversation.of("hi"), "yes", dialogue="hi")


def written(path: Path, dialogues: list[Dialogue]) -> bytes:
    with new_dialogues(path) as write:
        for dialogue in dialogues:
            write(dialogue)
    return path.read_bytes()


def interrupted(path: Path, error: BaseException) -> None:
    with new_dialogues(path) as write:
        write(FULL)
        raise error


@pytest.fixture(params=[*NAMES, "D.JSONL.GZ"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file to be written; nothing else is left beside it."""
    yield tmp_path / request.param
    assert {each.name for each in tmp_path.iterdir()} <= {request.param}


def test_what_is_written_is_read_back(path: Path) -> None:
    first = written(path, [FULL, BARE] * 2000)
    assert list(read_dialogues(path)) == [FULL, BARE] * 2000
    assert written(path, [FULL, BARE] * 2000) == first, "equal examples give equal bytes"
    assert written(path, []) != first
    assert list(read_dialogues(path)) == []


def test_compressed_files_are_compressed(tmp_path: Path) -> None:
    plain, *compressed = (written(tmp_path / name, [FULL] * 1000) for name in NAMES)
    assert all(len(each) < len(plain) / 20 for each in compressed)
    assert [each[:2] for each in compressed] == [b"\x1f\x8b", b"\x28\xb5"]


def test_a_line_holds_what_the_example_has(tmp_path: Path) -> None:
    full, bare = map(json.loads, written(tmp_path / "d.jsonl", [FULL, BARE]).splitlines())
    assert full == {
        "context": ["hi", "hello"],
        "persona": ["I sell lamps."],
        "response": "yes",
        "candidates": ["no", "yes"],
        "label": 1,
        "negatives": ["never", "no"],
        "dialogue": "17",
    }
    assert bare == {"context": ["hi"], "response": "yes", "negatives": [], "dialogue": "hi"}


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_what_was_there(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        interrupted(path, error)
    assert not path.exists()
    before = written(path, [BARE])
    with pytest.raises(type(error)):
        interrupted(path, error)
    assert path.read_bytes() == before


def test_the_file_appears_when_it_is_complete(path: Path) -> None:
    with new_dialogues(path) as write:
        for _ in range(2000):
            write(FULL)
        assert not path.exists()
    assert path.exists()


KILLED = """
import sys
from pathlib import Path
from polyrank.model.text.dialogue_files import new_dialogues
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.assembly import Conversation

with new_dialogues(Path(sys.argv[1])) as write:
    for n in range(5000):
        write(Dialogue(Conversation.of(f"hello {n}"), "yes"))
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_process_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    before = written(path, [BARE])
    for expected in (before, None):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            process.kill()
        assert (path.read_bytes() if path.exists() else None) == expected
        assert len(list(tmp_path.glob(".*.tmp"))) == 1, "the next to write it removes what was left"
        path.unlink(missing_ok=True)
    written(path, [BARE])
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["data.json", "data.csv", "data.jsonl.bz2", "data"])
def test_an_unknown_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DialoguesInvalid, match=r"unknown kind of file; use one of \.jsonl, "):
        written(tmp_path / name, [])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        written(tmp_path / "none" / "d.jsonl", [BARE])
