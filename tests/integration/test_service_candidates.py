"""Stored candidates over HTTP: one by its id, and all of them page after page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from in_process import TestClient
from service_fakes import build_store, pool, words_app

from polyrank.service.api.generations import CandidatesOut, StoredOut
from polyrank.service.http.plumbing.problems import Problem

COUNT = 60
PATH = "/index/candidates"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    build_store(tmp_path, pool(COUNT))
    with TestClient(words_app(tmp_path)) as client:
        yield client


def pages(client: TestClient, **parameters: Any) -> Iterator[dict[str, Any]]:
    while True:
        answer = client.get(PATH, params=parameters)
        assert answer.status_code == 200, answer.text
        CandidatesOut.model_validate_json(answer.content, strict=True)
        yield answer.json()
        if answer.json()["next"] is None:
            return
        parameters["after"] = answer.json()["next"]


def refused(client: TestClient, status: int, path: str = PATH, **parameters: Any) -> str:
    answer = client.get(path, params=parameters)
    assert answer.status_code == status, answer.text
    return Problem.model_validate_json(answer.content).detail


def test_all_candidates_in_pages(client: TestClient) -> None:
    found = list(pages(client, limit=25))
    assert [len(page["candidates"]) for page in found] == [25, 25, 10]
    listed = [each for page in found for each in page["candidates"]]
    assert listed == [{"id": c.id, "text": c.text, "metadata": c.metadata} for c in pool(COUNT)]


def test_a_filter_is_that_of_rankings(client: TestClient) -> None:
    wanted = {"lang": ["en", "de"], "n": {"gte": 3}}
    [page] = pages(client, filter=json.dumps(wanted))
    expected = [c.id for c in pool(COUNT) if c.metadata["lang"] in ("en", "de") and c.metadata["n"] >= 3]
    assert [each["id"] for each in page["candidates"]] == expected


def test_a_list_with_nothing_in_it_says_why(client: TestClient) -> None:
    [page] = pages(client, filter='{"lng": "en"}')
    assert (page["candidates"], page["notes"]) == ([], ["filter: no candidate has the field lng; did you mean lang?"])
    client.put(PATH, json=[{"id": "oslo", "text": "w1", "metadata": {"address": {"city": "Oslo"}}}])
    [page] = pages(client, filter='{"city": "Oslo"}')
    assert page["notes"] == ["filter: no candidate has the field city; did you mean address.city?"]
    [page] = pages(client, filter='{"address.city": "Oslo"}')
    assert [each["id"] for each in page["candidates"]] == ["oslo"]
    assert "notes" not in page


def test_a_last_page_that_is_empty_is_no_empty_list(client: TestClient) -> None:
    wanted = '{"n": 0}'
    first = next(pages(client, filter=wanted))
    after = f"{first['generation']}.0.{COUNT - 1}"
    last = client.get(PATH, params={"filter": wanted, "after": after}).json()
    assert (last["candidates"], last["next"]) == ([], None)
    assert "notes" not in last


@pytest.mark.parametrize("candidate_id", ["plain", "a/b", "50% off?", "ü#1", "delete"])
def test_one_candidate_by_its_id(client: TestClient, candidate_id: str) -> None:
    row = {"id": candidate_id, "text": "w1", "metadata": {"n": [1]}}
    revision = client.put(PATH, json=[row]).json()["revision"]
    answer = client.get(f"{PATH}/{quote(candidate_id, safe='')}")
    assert answer.status_code == 200, answer.text
    StoredOut.model_validate_json(answer.content, strict=True)
    assert {name: answer.json()[name] for name in row} == row
    assert answer.json()["revision"] == revision


def test_updates_are_listed_at_the_end_and_deletions_are_gone(client: TestClient) -> None:
    first = next(pages(client, limit=10))
    client.put(PATH, json=[{"id": "c2", "text": "w2"}, {"id": "new", "text": "w3"}])
    client.post(f"{PATH}/delete", json={"ids": ["c0", "c20"]})
    rest = [each["id"] for page in pages(client, limit=10, after=first["next"]) for each in page["candidates"]]
    assert rest == [f"c{n}" for n in range(10, COUNT) if n != 20] + ["c2", "new"]
    assert "'c0'" in refused(client, 404, f"{PATH}/c0")


def test_a_list_ends_with_its_generation(client: TestClient, tmp_path: Path) -> None:
    first = next(pages(client, limit=10))
    generation = build_store(tmp_path, pool(COUNT), activate=False)
    assert client.post("/index/activate", json={"generation": generation}).status_code == 200
    assert "begin it anew" in refused(client, 409, after=first["next"])
    assert len(next(pages(client))["candidates"]) == COUNT


@pytest.mark.parametrize(("parameters", "says"), [
    ({"limit": 0}, "query.limit: must be 1 or more"),
    ({"lmit": 5}, "query.lmit: unknown field; did you mean limit?"),
    ({"after": "x.-1"}, "query.after: take it from `next` of the page before"),
    ({"filter": "[]"}, "query.filter: must be a JSON object, such as"),
    (
        {"filter": '{"n": {"like": 1}}'},
        "query.filter: n.like: is not one of gt, gte, lt, lte, exists; for the field like inside it write n.like",
    ),
    ({"min_revision": -1}, "query.min_revision: must be 0 or more"),
])  # fmt: skip
def test_what_is_wrong_with_a_list_is_said(client: TestClient, parameters: dict[str, Any], says: str) -> None:
    assert refused(client, 422, **parameters).startswith(says)


def test_an_update_that_does_not_come_is_409(client: TestClient) -> None:
    assert "revision 9" in refused(client, 409, f"{PATH}/c1", min_revision=9)
