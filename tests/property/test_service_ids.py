"""Every id that can be put is read, ranked and deleted by it, over a socket; every other one is refused in one way."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest
from cases import cases
from hypothesis import example, given, settings
from hypothesis import strategies as st
from served import Served, serve
from service_fakes import build_store, pool, words_app

import polyrank
from polyrank.index_builder.pool.documents import MAX_ID_CHARS, checked_id

PATH = "/index/candidates"
ODD = st.sampled_from([*"\n\r\t\0\x1b\x7f\x85\u2028\u2029\ufeff\u200f./\\%?#;&+ \"'{}", "%2F", "..", "://", "\ud800"])
IDS = st.lists(st.one_of(ODD, st.characters(exclude_categories=["Cs"])), max_size=8).map("".join)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("ids")
    build_store(root, pool(5))
    with serve(words_app(root, compact_after=0)) as served:
        yield served


def call(served: Served, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a path as it is: other clients take `.` and `..` out of it."""
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)) as connection:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def why_refused(candidate_id: str) -> str:
    if not candidate_id:
        return "must not be empty"
    try:
        checked_id(candidate_id)
    except ValueError as error:
        return str(error)
    return ""


@settings(deadline=None, max_examples=cases(300))
@given(IDS)
@example("two\nlines")
@example("end\n")
@example("..")
@example("a/../b")
@example("%2F%2e%2e/")
@example("delete")
@example("\U0001f600" * MAX_ID_CHARS)
def test_an_id_that_can_be_put_can_be_read_and_deleted(served: Served, candidate_id: str) -> None:
    row = {"id": candidate_id, "text": "w1", "metadata": {}}
    status, told = call(served, "PUT", PATH, [row])
    if why := why_refused(candidate_id):
        malformed = "\ud800" in candidate_id  # no JSON text holds half a surrogate pair
        assert (status, malformed or why in told["detail"]) == (400 if malformed else 422, True), told
        return
    assert status == 200, told
    status, read = call(served, "GET", f"{PATH}/{quote(candidate_id, safe='')}")
    assert (status, read.get("id")) == (200, candidate_id)
    with polyrank.Client(served.url) as client:
        assert client.candidate(candidate_id).id == candidate_id
    named = {"context": "w1", "candidates": [{"id": candidate_id}], "exclude_ids": ["c1"]}
    assert call(served, "POST", "/rank", named)[1]["results"][0]["id"] == candidate_id
    assert call(served, "POST", f"{PATH}/delete", {"ids": [candidate_id]})[1]["deleted"] == 1
    assert call(served, "GET", f"{PATH}/{quote(candidate_id, safe='')}")[0] == 404


@pytest.mark.parametrize("behind", ["%0A", "%0D", "%00", "/", "%2F", "%E2%80%A8"])
def test_a_path_names_no_other_id_than_it_holds(served: Served, behind: str) -> None:
    assert call(served, "GET", f"{PATH}/c1")[0] == 200
    assert call(served, "GET", f"{PATH}/c1{behind}")[0] == 404
