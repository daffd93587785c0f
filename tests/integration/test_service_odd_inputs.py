"""Normalised: odd inputs that are no reason to refuse have one documented meaning."""

from collections.abc import Iterator

import pytest
from bad_inputs import ASK, HEAD, is_problem, post, serve_words
from served import Served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_words(tmp_path_factory.mktemp("store")) as served:
        yield served


def test_nul_is_text_and_the_last_of_equal_keys_counts(server: Served) -> None:
    assert post(server, b'{"context": "a\\u0000b"}').status_code == 200
    assert post(server, b'{"top_k": 0, "context": "a", "top_k": 3}').status_code == 200
    is_problem(post(server, b'{"top_k": 3, "context": "a", "top_k": 0}'), 422)


def test_a_huge_timeout_is_clamped(server: Served) -> None:
    assert server.rank(context="a", timeout_ms=10**18).status_code == 200


def test_duplicate_ids_are_each_ranked(server: Served) -> None:
    answer = server.rank(context="w1", candidates=[{"id": "c1"}] * 3).json()
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "value", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_the_right_media_type(server: Served, value: str) -> None:
    assert post(server, ASK, content_type=value).status_code == 200


@pytest.mark.parametrize("given", ["abc-123_X.y", "a", "x" * 128])
def test_a_request_id_is_echoed(server: Served, given: str) -> None:
    response = server.client.get("/livez", headers={"X-Request-ID": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "<script>", "a,b"])
def test_a_bad_request_id_is_replaced(server: Served, given: str) -> None:
    response = server.client.get("/livez", headers={"X-Request-ID": given})
    assert response.status_code == 200
    assert response.headers["x-request-id"] not in (given, "")


def test_a_line_break_in_a_request_id_makes_no_header(server: Served) -> None:
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\r\nEvil: yes\r\n\r\n")
    assert b"evil" not in answer.lower()
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\nSet-Cookie: x=1\r\n\r\n")
    assert b"set-cookie" not in answer.lower()


@pytest.mark.parametrize(
    "given",
    ["00-xyz", "", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "ff-" + "a" * 32 + "-" + "b" * 16 + "-01", "x" * 5000],
)
def test_a_bad_traceparent_is_nobodys_business(server: Served, given: str) -> None:
    assert post(server, ASK, traceparent=given).status_code == 200


@pytest.mark.parametrize(
    "line",
    [
        b"X-Odd: \xff\xfe",
        b"X-Odd:",
        b"X-Odd: \t tabs \t",
        b"Accept: nothing/at-all",
        b"Cookie: " + b"a=b; " * 1000,
        b"Accept-Encoding: gzip;q=never",
        b"X-Forwarded-For: not, an, address",
    ],
)
def test_an_odd_header_is_nobodys_business(server: Served, line: bytes) -> None:
    assert server.raw(HEAD + line + b"\r\nContent-Length: 16\r\n\r\n" + ASK).startswith(b"HTTP/1.1 200 ")


def test_of_two_request_ids_the_first_counts(server: Served) -> None:
    answer = server.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: one\r\nX-Request-ID: two\r\n\r\n")
    assert b"x-request-id: one\r\n" in answer.lower()


def test_parameters_that_nobody_knows_are_not_read(server: Served) -> None:
    assert server.client.post("/rank?top_k=0&" + "x=y&" * 254, json={"context": "a"}).status_code == 200


def test_a_caller_who_asks_leave_to_send_gets_it(server: Served) -> None:
    answer = server.raw(HEAD + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n" + ASK)
    assert answer.startswith(b"HTTP/1.1 100 ")
