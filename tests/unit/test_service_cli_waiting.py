"""`--wait`: the end of a command that has switched, once a server answers by what is active."""

import time
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from served import serve
from service_fakes import build_store, load

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.app import create_app
from polyrank.service.cli import waiting
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_a_switch_ends_once_the_server_answers_by_the_generation(capsys: Capture, tmp_path: Path) -> None:
    first, second = (build_store(tmp_path) for _ in range(2))
    loads: list[str] = []

    def slow(name: str) -> Any:
        loads.append(name)
        if len(loads) > 1:
            time.sleep(1.5)
        return load(name)

    store = GenerationStore(tmp_path)
    with serve(create_app(Settings(store=tmp_path), slow)) as server:
        before = server.client.get("/readyz").json()["generation"]
        other = first if before == second else second
        said = call(capsys, "store", "activate", "--store", tmp_path, other, "--wait", server.url)
        assert server.client.get("/readyz").json()["generation"] == other
        assert said.out.startswith(f"{other} is active; {server.url} answers by it ")
        assert call(capsys, "store", "rollback", "--store", tmp_path, "--wait", f"{server.url}/").status == 0
        assert server.client.get("/readyz").json()["generation"] == before == store.current()


def test_a_server_that_does_not_load_it_is_named(capsys: Capture, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(waiting, "MOST_SECONDS", 0.5)
    mine, of_another = tmp_path / "mine", tmp_path / "another"
    generation, served = build_store(mine), build_store(of_another)
    with serve(create_app(Settings(store=of_another), load)) as server:
        told = call(capsys, "store", "activate", "--store", mine, generation, "--wait", server.url).failure()
    assert f"{generation} is active, but {server.url} still answers by {served} after 0.5 s" in told


@pytest.mark.parametrize(("url", "why"), [
    ("localhost", "give the URL of a polyrank server"),
    ("http://a:b", "give the URL of a polyrank server"),
    ("http://127.0.0.1:9", "--wait http://127.0.0.1:9: "),
])  # fmt: skip
def test_nothing_is_switched_for_a_server_that_is_none(capsys: Capture, tmp_path: Path, url: str, why: str) -> None:
    first, second = (build_store(tmp_path) for _ in range(2))
    store = GenerationStore(tmp_path)
    current = store.current()
    other = first if current == second else second
    outcome = call(capsys, "store", "activate", "--store", tmp_path, other, "--wait", url)
    assert outcome.status != 0
    assert why in outcome.err
    assert store.current() == current


def test_what_is_only_published_is_not_waited_for(capsys: Capture, tmp_path: Path) -> None:
    asked = ("build", "--model", "lexical", "--pool", tmp_path / "none.jsonl", "--store", tmp_path / "store")
    told = call(capsys, *asked, "--no-activate", "--wait", "http://127.0.0.1:9").failure(2)
    assert "--wait goes with --activate" in told
