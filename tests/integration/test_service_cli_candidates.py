"""`polyrank candidates`: what a service has is read and changed from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call, pool_rows, write_rows
from served import Served, serve
from service_fakes import build_store, pool, words_app

from polyrank.service.cli.commands import candidates

Capture = pytest.CaptureFixture[str]
COUNT = 60


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    build_store(tmp_path / "store", pool(COUNT))
    with serve(words_app(tmp_path / "store", max_candidates=7)) as server:
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


def test_a_list_is_a_pool_file(capsys: Capture, service: Served, tmp_path: Path, monkeypatch) -> None:
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


def test_sync_makes_the_candidates_those_of_the_files(capsys, service: Served, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(candidates, "PAGE", 9)
    at = ("--url", service.url)
    values = {
        "price": 1e22, "share": 0.1, "whole": 5.0, "big": 2**62, "name": "Zoë \u0000", "of": [{"b": 1, "a": None}],
    }  # fmt: skip
    rows = [*lines(capsys, "candidates", "list", *at), {"id": "odd", "text": "w1  \U0001f600", "metadata": values}]
    file, other = write_rows(tmp_path / "a.jsonl", rows[:40]), write_rows(tmp_path / "b.jsonl", rows[40:])
    done = call(capsys, "candidates", "sync", *at, file, other)
    assert done.out == "1 added, 0 changed, 0 deleted, 60 unchanged; revision 1\n"

    kept = rows[20:]
    kept[3] = {**kept[3], "text": "w7 w8"}
    kept[4] = {**kept[4], "metadata": {**kept[4]["metadata"], "n": -1}}
    kept[7:7] = [{"text": f"a new one {number}"} for number in range(9)]
    write_rows(file, kept)
    counted = {"added": 9, "changed": 2, "deleted": 20, "unchanged": 39}
    told = call(capsys, "candidates", "sync", *at, file, "--dry-run").out.splitlines()
    assert [line.split()[0] for line in told[:-1]] == ["add"] * 9 + ["change"] * 2 + ["delete"] * 20
    assert told[9:12] == [f"change {kept[3]['id']}", f"change {kept[4]['id']}", f"delete {rows[0]['id']}"]
    assert told[-1] == "a dry run, nothing was changed; it would be: 9 added, 2 changed, 20 deleted, 39 unchanged"
    assert call(capsys, "candidates", "sync", *at, file, "--dry-run", "--json").result == counted
    synced = call(capsys, "candidates", "sync", *at, file, "--json").result
    assert synced == {**counted, "revision": 1 + 2 + 3}  # 11 candidates and 20 ids, of which a call takes 7
    stored = lines(capsys, "candidates", "list", *at)
    assert sorted(each["text"] for each in stored) == sorted(each["text"] for each in kept)
    assert all(each in stored for each in kept if each.get("id", "odd") != "odd")
    again = call(capsys, "candidates", "sync", *at, file)
    assert again.out == "0 added, 0 changed, 0 deleted, 50 unchanged\n"


def test_files_with_columns_of_other_names_are_put_and_synced(capsys: Capture, service: Served, tmp_path: Path) -> None:
    file = tmp_path / "antworten.csv"
    file.write_text("Nummer;Antwort\n7;w1 w2\n8;w3\n")
    given = (str(file), "--columns", "text=Antwort,id=Nummer", "--url", service.url)
    assert call(capsys, "candidates", "put", *given).out.startswith("2 candidates put")
    done = call(capsys, "candidates", "sync", *given)
    assert done.out.startswith("0 added, 0 changed, ")
    assert ", 2 unchanged" in done.out
    assert {each["id"]: each["text"] for each in lines(capsys, "candidates", "list", *given[3:])} == {
        "7": "w1 w2",
        "8": "w3",
    }


def test_sync_of_files_with_a_bad_row_or_none_changes_nothing(capsys: Capture, service: Served, tmp_path: Path) -> None:
    at = ("--url", service.url)
    file = write_rows(tmp_path / "pool.jsonl", [{"id": "new", "text": "w1"}, {"id": "c1", "text": ""}])
    refused = call(capsys, "candidates", "sync", *at, file).failure()
    assert refused.startswith(f"{file}: line 2: 'text' is empty; mend or remove it")
    assert "there is no candidate" in call(capsys, "candidates", "sync", *at, write_rows(file, [])).failure()
    assert [each["id"] for each in lines(capsys, "candidates", "list", *at)] == [each.id for each in pool(COUNT)]
