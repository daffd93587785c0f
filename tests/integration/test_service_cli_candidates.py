"""`polyrank candidates`: what a service has is read and changed from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call, pool_rows, write_rows
from served import Served, serve
from service_fakes import build_store, load, pool

from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.cli.commands import candidates
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]
COUNT = 60


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    build_store(tmp_path / "store", pool(COUNT))
    with serve(create_app(Settings(store=tmp_path / "store", max_candidates=7), load)) as server:
        yield server


def lines(capsys: Capture, *arguments: object) -> list[dict]:
    return [json.loads(line) for line in call(capsys, *arguments).out.splitlines()]


def test_a_candidate_is_put_read_and_deleted(capsys: Capture, service: Served) -> None:
    at = ("--url", service.url)
    put = ("put", *at, "--id", "a/b", "--text", "w1 w2", "--metadata", '{"lang": "en"}', "--json")
    assert call(capsys, "candidates", *put).result == {"upserted": 1, "revision": 1}
    stored = {"id": "a/b", "text": "w1 w2", "metadata": {"lang": "en"}}
    assert lines(capsys, "candidates", "get", *at, "a/b") == [stored]
    gone = call(capsys, "candidates", "delete", *at, "a/b", "nobody")
    assert gone.out == "1 candidates deleted; revision 2\n"
    assert gone.err == "not there: nobody\n"
    assert "'a/b'" in call(capsys, "candidates", "get", *at, "a/b").failure()


def test_files_are_put_in_calls_that_the_service_takes(capsys: Capture, service: Served, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "more.jsonl", pool_rows(20, "new"))
    done = call(capsys, "candidates", "put", "--url", service.url, file, "--json").result
    assert done == {"upserted": 20, "revision": 3}
    listed = lines(capsys, "candidates", "list", "--url", service.url)
    assert [each["id"] for each in listed[COUNT:]] == [each["id"] for each in pool_rows(20, "new")]


def test_a_list_is_a_pool_file(
    capsys: Capture, service: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "PAGE", 9)
    listed = lines(capsys, "candidates", "list", "--url", service.url)
    assert [each["id"] for each in listed] == [each.id for each in pool(COUNT)]
    file = write_rows(tmp_path / "pool.jsonl", listed)
    assert call(capsys, "candidates", "put", "--url", service.url, file, "--json").result["upserted"] == COUNT
    few = call(capsys, "candidates", "list", "--url", service.url, "--limit", "10", "--json").result["candidates"]
    assert few == listed[:10]
    wanted = ("--filter", '{"n": [1, 2]}')
    assert {each["metadata"]["n"] for each in lines(capsys, "candidates", "list", "--url", service.url, *wanted)} == {
        1,
        2,
    }
    nothing = call(capsys, "candidates", "list", "--url", service.url, "--filter", '{"lng": "en"}')
    assert (nothing.status, nothing.out) == (0, "")
    assert "filter: no candidate has the field lng; did you mean lang?" in nothing.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("put",), "give either pool files or --text"),
        (("put", "pool.jsonl", "--text", "a"), "give either pool files or --text"),
        (("put", "pool.jsonl", "--id", "a"), "--id and --metadata go with --text"),
        (("put", "--text", "a", "--metadata", "[]"), "--metadata must be a JSON object"),
        (("list", "--filter", "lang=en"), "--filter is no JSON"),
        (("list", "--filter", '{"price": NaN}'), "--filter is no JSON (NaN, infinite numbers"),
        (("put", "--text", "w1", "--metadata", '{"price": 1e999}'), "--metadata is no JSON (NaN, infinite numbers"),
        (("list", "--api-key", "pr-\nx"), "characters that no key has"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_sent(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    assert says in call(capsys, "candidates", *arguments).failure(2)


def test_the_key_comes_from_the_environment(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path / "store", pool(3))
    made = call(capsys, "keys", "add", "--file", tmp_path / "keys.json", "--name", "me", "--scope", "admin").out.strip()
    assert keys.read(tmp_path / "keys.json")
    with serve(create_app(Settings(store=tmp_path / "store", keys_file=tmp_path / "keys.json"), load)) as server:
        refused = call(capsys, "candidates", "get", "--url", server.url, "c1").failure()
        assert "send an API key (the variable POLYRANK_API_KEY)" in refused
        monkeypatch.setenv("POLYRANK_API_KEY", made)
        assert lines(capsys, "candidates", "get", "--url", server.url, "c1")[0]["id"] == "c1"
