"""The state of an unfinished run: old or new, never half; damage is told, not trained on."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import FULL, fill_disk

from polyrank.model.errors import OutputInUse
from polyrank.model.training.config import LOGS, STATE_FILE
from polyrank.model.training.state import begun_in, read_state, require_unused, write_state

STATE: dict[str, Any] = {"parameters": {"w": torch.arange(5000.0)}, "progress": {"step": 3, "best": (0.5, 0.4)}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    found = read_state(tmp_path)
    assert torch.equal(found["parameters"]["w"], STATE["parameters"]["w"])
    assert found["progress"] == STATE["progress"]
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_the_former_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path, STATE)
    fill_disk(monkeypatch, tmp_path / STATE_FILE)
    with pytest.raises(OSError, match="No space left") as told:
        write_state(tmp_path, {"progress": {}, "parameters": {"w": torch.zeros(500_000)}})
    assert told.value.errno == errno.ENOSPC
    assert read_state(tmp_path)["progress"] == STATE["progress"]
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_a_kill_while_writing_leaves_the_former_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path, STATE)

    def killed(_state: object, file: Any) -> None:
        file.write(b"half a state")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            write_state(tmp_path, {})
    assert read_state(tmp_path)["progress"] == STATE["progress"]
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
    (tmp_path / f".{STATE_FILE}.0123456789abcdef.tmp").write_bytes(b"as SIGKILL leaves it")
    write_state(tmp_path, {"progress": {"step": 4}})
    assert read_state(tmp_path) == {"progress": {"step": 4}}
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


@pytest.mark.parametrize("at", [0.01, 0.3, 0.5, 0.7, 0.99])
def test_flipped_bytes_anywhere_are_noticed(tmp_path: Path, at: float) -> None:
    write_state(tmp_path, STATE)
    path = tmp_path / STATE_FILE
    content = bytearray(path.read_bytes())
    for place in range(int(at * len(content)), int(at * len(content)) + 8):
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(OutputInUse, match=r"training-state\.pt is damaged; remove .* and start again"):
        read_state(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no archive", "half"])
def test_what_is_no_state_is_told(tmp_path: Path, content: bytes | str) -> None:
    write_state(tmp_path, STATE)
    path = tmp_path / STATE_FILE
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    with pytest.raises(OutputInUse, match="is damaged"):
        read_state(tmp_path)


class Evil:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_state_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write_state(tmp_path, {"progress": Evil(tmp_path / "evil")})
    with pytest.raises(OutputInUse, match="is damaged"):
        read_state(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputInUse, match="holds no unfinished run to resume; start one without --resume"):
        read_state(tmp_path / "missing")


def test_an_output_in_use_is_refused(tmp_path: Path) -> None:
    require_unused(tmp_path)
    require_unused(tmp_path / "new")
    (tmp_path / "file").write_text("mine")
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(OutputInUse, match="is not empty; give --output a new directory"):
            require_unused(used)
    write_state(tmp_path, STATE)
    with pytest.raises(OutputInUse, match="holds an unfinished run; give the command that began it, or remove it"):
        require_unused(tmp_path)


def test_what_a_run_leaves_that_is_killed_before_its_first_state_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "events.out.tfevents.1.host.2.0").touch()
    (tmp_path / f".{STATE_FILE}.0123456789abcdef.tmp").write_bytes(b"half")
    with begun_in(tmp_path):
        write_state(tmp_path, STATE)
    assert read_state(tmp_path)["progress"] == STATE["progress"]


def test_logs_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "server.log").touch()
    with pytest.raises(OutputInUse, match="is not empty"), begun_in(tmp_path):
        raise KeyboardInterrupt
    assert (tmp_path / LOGS / "server.log").exists()


@pytest.mark.parametrize("existed", [True, False])
def test_what_a_run_has_begun_goes_where_it_fails_without_a_state(tmp_path: Path, existed: bool) -> None:
    output = tmp_path / "out"
    if existed:
        output.mkdir()

    def fail(writes_state: bool) -> None:
        with begun_in(output):
            (output / "logs").mkdir(parents=True)
            (output / "logs" / "events").touch()
            (output / "polyrank.json").touch()
            if writes_state:
                write_state(output, STATE)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fail(writes_state=False)
        assert output.exists() == existed
        assert not existed or not list(output.iterdir())
    with pytest.raises(KeyboardInterrupt):
        fail(writes_state=True)
    assert {path.name for path in output.iterdir()} == {"logs", "polyrank.json", STATE_FILE}
    with pytest.raises(OutputInUse), begun_in(output):
        pass
    assert len(list(output.iterdir())) == 3, "what was there before stays"


def test_what_cannot_be_made_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), begun_in(tmp_path / "file" / "out"):
        raise AssertionError("work began")
