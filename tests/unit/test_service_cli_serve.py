"""`polyrank serve`: flags become settings, and bad ones end it early. `polyrank keys`: a key is shown once."""

import json
import socket
import stat
from pathlib import Path

import pytest
from command_line import call

from polyrank.model.checkpoint.files import CONFIG_FILE, write_config
from polyrank.model.config import ModelConfig
from polyrank.model.registry import UniConfig
from polyrank.service import settings as module
from polyrank.service.auth import keys
from polyrank.service.process import server
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that the server was run with."""
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(server, "run", run)
    return seen


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a store `s` and a cross-encoder `r`, of which only the config is looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYRANK_COMPILED_CACHE_MB")
    for name in ("s", "r"):
        (tmp_path / name).mkdir()
    write_config(tmp_path / "r" / CONFIG_FILE, ModelConfig(architecture="cross", base_name="any"))
    return tmp_path


@pytest.mark.usefixtures("here")
def test_every_flag_is_its_setting(capsys: Capture, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRANK_PORT", "1")
    monkeypatch.setenv("POLYRANK_THREADS", "3")
    flags = "--store s --reranker r --redis redis://h --vectors redis --host :: --port 2 --pool-root p --model-root m"
    flags += " --backend openvino --precision bfloat16"
    assert call(capsys, "serve", "--workers", 2, *flags.split()) == (0, "", "")
    assert served == [
        Settings(
            store=Path("s"),
            reranker="r",
            redis_url="redis://h",
            vectors="redis",
            host="::",
            port=2,
            pool_root=Path("p"),
            model_root=Path("m"),
            threads=3,
            backend="openvino",
            precision="bfloat16",
            workers=2,
        )
    ]


def test_a_reranker_whose_scores_depend_on_each_other_is_refused(capsys, here: Path, served: list[Settings]) -> None:
    for mask in ("one-way", "arrow"):
        config = ModelConfig(architecture="uni", base_name="any", own=UniConfig(mask=mask))
        write_config(here / "r" / CONFIG_FILE, config)
        outcome = call(capsys, "serve", "--store", "s", "--reranker", "r")
        assert (outcome.status, len(served)) == ((2, 1) if mask == "arrow" else (0, 1))
    assert "reranker: r has the mask arrow" in outcome.err
    assert "train it with --mask one-way" in outcome.err


@pytest.mark.usefixtures("here")
def test_a_cluster_holds_any_store(capsys: Capture, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_unusable", lambda _: None)
    flags = "--cluster h:1 --shard-replicas 2 --hedge-ms 30 --min-searched 0.9"
    assert call(capsys, "serve", "--store", "s", *flags.split()) == (0, "", "")
    [settings] = served
    assert (settings.cluster, settings.shard_replicas, settings.hedge_ms, settings.min_searched) == ("h:1", 2, 30, 0.9)


@pytest.mark.usefixtures("here")
def test_each_store_may_have_a_name_and_each_must_be_there(capsys: Capture, served: list[Settings]) -> None:
    assert call(capsys, "serve", "--store", "s", "--store", "shop=r").status == 0
    assert served[0].store == {"": Path("s"), "shop": Path("r")}
    refused = call(capsys, "serve", "--store", "s", "--store", "shop=nowhere")
    assert (refused.status, refused.err) == (2, "polyrank: nowhere is no directory; polyrank build makes a store\n")


@pytest.mark.usefixtures("here")
def test_no_flag_is_needed_where_the_environment_names_the_store(capsys, served: list[Settings], monkeypatch) -> None:
    monkeypatch.setenv("POLYRANK_STORE", "s")
    monkeypatch.delenv("POLYRANK_BACKEND")
    monkeypatch.delenv("POLYRANK_PRECISION")
    assert call(capsys, "serve").status == 0
    assert served == [Settings(store=Path("s"))]


def test_a_port_in_use_is_one_line(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "polyrank.service.process.server.logs.configure", lambda *_, **__: None
    )  # would take the log away from the tests
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = call(capsys, "serve", "--store", tmp_path, "--port", port).failure()
    assert message.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert "in use" in message


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


def test_a_key_may_be_for_some_pools(capsys: Capture, file: Path) -> None:
    call(capsys, "keys", "add", "--file", file, "--name", "shop", "--pools", "shop", "support")
    assert keys.read(file)[0].pools == ("shop", "support")
    assert call(capsys, "keys", "list", "--file", file).out == "shop  rank  for shop, support\n"
    outcome = call(capsys, "keys", "add", "--file", file, "--name", "other", "--pools", "a/b")
    assert (outcome.status, "--pools: 'a/b' names no pool" in outcome.err) == (2, True)


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
