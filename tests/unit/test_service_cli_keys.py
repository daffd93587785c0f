"""`polyrank keys`: a key is shown once, and its file never holds it."""

import json
import stat
from pathlib import Path

import pytest
from command_line import call

from polyrank.service.auth import keys

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_round_trip(capsys: Capture, file: Path) -> None:
    outcome = call(capsys, "keys", "add", "--file", file, "--name", "shop", "--rate", "2.5", "--burst", "7")
    [secret] = outcome.out.splitlines()
    assert (outcome.status, outcome.err) == (0, "")
    boss = call(capsys, "keys", "add", "--file", file, "--name", "boss", "--scope", "admin", "--json").result
    assert (boss["name"], boss["scopes"]) == ("boss", ["admin"])
    held = keys.read(file)
    assert [keys.find(held, each.encode()) for each in (secret, boss["key"])] == list(held)
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = call(capsys, "keys", "list", "--file", file)
    assert listed.out == "shop  rank  2.5 a second, 7 at once\nboss  admin\n"
    assert call(capsys, "keys", "list", "--file", file, "--json").result == {
        "keys": [
            {"name": "shop", "scopes": ["rank"], "rate_per_s": 2.5, "burst": 7},
            {"name": "boss", "scopes": ["admin"]},
        ]
    }
    assert call(capsys, "keys", "remove", "--file", file, "--name", "shop") == (0, "shop is removed\n", "")
    assert [key.name for key in keys.read(file)] == ["boss"]
    assert call(capsys, "keys", "remove", "--file", file, "--name", "boss", "--json").result == {"removed": "boss"}
    assert "holds no key" in call(capsys, "keys", "list", "--file", file).out


def test_a_name_is_one_keys(capsys: Capture, file: Path) -> None:
    call(capsys, "keys", "add", "--file", file, "--name", "a")
    before = file.read_bytes()
    assert "a key 'a' already" in call(capsys, "keys", "add", "--file", file, "--name", "a").failure(2)
    assert "no key 'b'" in call(capsys, "keys", "remove", "--file", file, "--name", "b").failure(2)
    assert file.read_bytes() == before


@pytest.mark.parametrize("action", [["add", "--name", "a"], ["list"], ["remove", "--name", "a"]])
def test_a_file_that_is_no_keys_file_is_left_alone(capsys: Capture, file: Path, action: list[str]) -> None:
    file.write_text(json.dumps({"other": 1}))
    assert "is no keys file" in call(capsys, "keys", *action, "--file", file).failure(2)
    assert json.loads(file.read_text()) == {"other": 1}
