"""`polyrank rank`: from a store, from a service, and from what only looks like one."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from fakes import flip
from served import Served, serve
from service_fakes import build_store, load, pool
from strangers import Answering, stranger, whole
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.model.config import LexicalConfig
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

Capture = pytest.CaptureFixture[str]

ROWS = 200
TURNS = ["w1 w2 w3", "w4", "w5 w6"]


@pytest.fixture(scope="module")
def service(store: Path, checkpoints: Path) -> Iterator[Served]:
    with serve(
        create_app(Settings(store=store, reranker=str(checkpoints / "cross"), backend="torch", precision="float32"))
    ) as server:
        yield server


def test_a_store_and_its_service_answer_alike(capsys: Capture, store: Path, service: Served) -> None:
    for top_k in ("1", "7", "1000"):
        options = (*TURNS, "--top-k", top_k, "--json")
        mine = call(capsys, "rank", *options, "--store", store).result
        theirs = call(capsys, "rank", *options, "--url", service.url).result
        assert len(mine["results"]) == min(int(top_k), 200)
        assert mine == {name: theirs[name] for name in mine}


@pytest.mark.parametrize("of", ["store", "url"])
def test_a_filter(capsys: Capture, store: Path, service: Served, of: str) -> None:
    source = ["--store", store] if of == "store" else ["--url", service.url]
    told = call(capsys, "rank", "w1 w2", *source, "--filter", '{"even": true}', "--json")
    assert {each["metadata"]["even"] for each in told.result["results"]} == {True}
    told = call(capsys, "rank", "w1 w2", *source, "--filter", '{"m": 1}')
    assert (told.status, told.out) == (0, "")
    assert told.err.splitlines()[-1].startswith("filter: no candidate has the field m")
    told = call(capsys, "rank", "w1 w2", *source, "--filter", '{"$nor": []}')
    assert told.status != 0
    assert "filter" in told.err
    assert "--filter is no JSON" in call(capsys, "rank", "w1 w2", *source, "--filter", "{").failure(2)
    assert "--filter is no JSON" in call(capsys, "rank", "w1 w2", *source, "--filter", "[" * 100_000).failure(2)


def test_words_are_rank_score_and_text(capsys: Capture, store: Path, service: Served) -> None:
    results = call(capsys, "rank", *TURNS, "--top-k", "3", "--json", "--store", store).result["results"]
    expected = "".join(f"{r['rank']:3}  {r['score']:8.3f}  {r['text']}\n" for r in results)
    assert [each["rank"] for each in results] == [1, 2, 3]
    assert call(capsys, "rank", *TURNS, "--top-k", "3", "--store", store) == (0, expected, "")
    assert call(capsys, "rank", *TURNS, "--top-k", "3", "--url", f"{service.url}/") == (0, expected, "")


def test_ten_are_shown_unless_told(capsys: Capture, store: Path) -> None:
    assert len(call(capsys, "rank", "w1", "--store", store).out.splitlines()) == 10


def test_an_explanation_of_a_store_and_of_its_service(capsys: Capture, store: Path, service: Served) -> None:
    options = ("rank", *TURNS, "--top-k", "3", "--explain")
    mine = call(capsys, *options, "--store", store, "--json").result
    theirs = call(capsys, *options, "--url", service.url, "--json").result
    own, other = mine["explanation"], theirs["explanation"]
    assert {name: other[name] for name in own if name != "candidates"} == {n: own[n] for n in own if n != "candidates"}
    for one, same, result in zip(own["candidates"], other["candidates"], mine["results"], strict=True):
        assert (one["id"], one["score"]) == (result["id"], pytest.approx(result["score"]))
        assert one["relative"] == pytest.approx(same["relative"])
        assert sum(one["tokens"]) == pytest.approx(one["score"], abs=1e-4)
    told = call(capsys, *options, "--store", store).out.splitlines()
    assert call(capsys, *options, "--url", service.url).out.splitlines() == told
    assert (
        told[0] == "not explained: reply tokens (a reply's vector is the first output alone, which has read all tokens)"
    )
    for at, result in enumerate(mine["results"]):
        line, relative, codes = told[1 + 3 * at : 4 + 3 * at]
        assert line == f"{result['rank']:3}  {result['score']:8.3f}  {result['text']}"
        numbers = [float(word) for word in relative.split() if word[0] in "+-"]
        assert relative.split()[0] == "relative"
        assert sum(numbers) == pytest.approx(sum(own["candidates"][at]["relative"]), abs=0.06)
        assert codes.split()[0] == "codes"


def test_an_explanation_of_one_reply_is_its_score(capsys: Capture, service: Served) -> None:
    options = ("rank", *TURNS, "--top-k", "1", "--explain", "--rerank", "--url", service.url)
    _, head, score, _, reranker = call(capsys, *options).out.splitlines()
    numbers = [float(word) for word in score.split()[1:] if word[0] in "+-"]
    late = call(capsys, *options, "--json").result["results"][0]["scores"]["vector"]
    assert sum(numbers) == pytest.approx(late, abs=0.06)
    assert reranker.split()[:3] == ["reranker", "turn", "1"]
    assert head.startswith("  1  ")


def test_a_second_look_by_the_service(capsys: Capture, store: Path, service: Served) -> None:
    results = call(capsys, "rank", *TURNS, "--rerank", "--json", "--url", service.url).result["results"]
    crossed = [each["scores"]["cross"] for each in results]
    assert crossed == sorted(crossed, reverse=True)
    lines = call(capsys, "rank", *TURNS, "--rerank", "--url", service.url).out.splitlines()
    assert lines[0].split() == ["cross", "vector"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [str(each["rank"]), f"{each['scores']['cross']:.3f}", f"{each['scores']['vector']:.3f}"] for each in results
    ]


def test_a_second_look_without_a_service(capsys: Capture, store: Path, service: Served, checkpoints: Path) -> None:
    by_service = call(capsys, "rank", *TURNS, "--rerank", "--json", "--url", service.url).result["results"]
    flags = ["--rerank", "--reranker", checkpoints / "cross", "--store", store]
    assert call(capsys, "rank", *TURNS, "--json", *flags).result["results"] == by_service


def test_a_reranker_whose_words_do_not_count_is_told(capsys: Capture, store: Path, tmp_path: Path) -> None:
    cross = write_checkpoint(tmp_path, "cross", 0, architecture="cross", evidence=LexicalConfig())
    outcome = call(capsys, "rank", *TURNS, "--store", store, "--reranker", cross, "--json")
    assert all("cross" in each["scores"] for each in outcome.result["results"])
    assert f"{cross} ranks by its pairs alone: " in outcome.err


def test_what_the_service_refuses_is_told_in_its_words(capsys: Capture, tmp_path: Path) -> None:
    build_store(tmp_path)
    with serve(create_app(Settings(store=tmp_path), load)) as server:
        message = call(capsys, "rank", "w1", "--rerank", "--url", server.url).failure()
        assert message.startswith(f"{server.url}: ")
        assert "--reranker MODEL" in message
        assert "context" in call(capsys, "rank", " ", "--url", server.url).failure()


def test_a_service_with_keys(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.json"
    key = call(capsys, "keys", "add", "--file", file, "--name", "me").out.strip()
    build_store(tmp_path / "store")
    with serve(create_app(Settings(store=tmp_path / "store", keys_file=file), load)) as server:
        ask = ("rank", "w1", "--json", "--url", server.url)
        assert call(capsys, *ask).failure() == f"{server.url}: send an API key (the variable POLYRANK_API_KEY)"
        assert "not one of this server's" in call(capsys, *ask, "--api-key", f"{key}x").failure()
        assert call(capsys, *ask, "--api-key", key).result["results"]
        monkeypatch.setenv("POLYRANK_API_KEY", f"{key}\n")
        assert call(capsys, *ask).result["results"]


def test_a_service_without_generation(capsys: Capture, tmp_path: Path) -> None:
    with serve(create_app(Settings(store=tmp_path / "new"), load)) as server:
        message = call(capsys, "rank", "w1", "--url", server.url).failure()
        assert message == f"{server.url}: the store holds no generation; run polyrank build, or POST /index"


def answering(status: str, body: bytes) -> Answering:
    return whole(body, b"HTTP/1.1 %s\r\n" % status.encode())


def no_http(connection: socket.socket, *_: object) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def cut_off(connection: socket.socket, *_: object) -> None:
    connection.sendall(b'HTTP/1.1 502 Bad Gateway\r\nContent-Length: 12\r\n\r\n{"detai')


@pytest.mark.parametrize(("answer", "says"), [
    (no_http, ": no answer ("),
    (answering("200 OK", b"<html>"), ": something answers, but not as polyrank serve does"),
    (answering("404 Not Found", b"<html>"), ": status 404"),
    (answering("500 Oops", b'{"detail": "on fire"}'), ": on fire"),
    (cut_off, ": no answer ("),
])  # fmt: skip
def test_something_else_that_listens_there(capsys: Capture, answer: Answering, says: str) -> None:
    with stranger(answer) as other:
        assert call(capsys, "rank", "w1", "--url", other.url).failure().startswith(other.url + says)


def test_a_proxy_of_a_kind_that_needs_a_package(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "socksio", None)
    message = call(capsys, "rank", "w1", "--url", "http://host.invalid").failure(2)
    assert message.startswith("--url http://host.invalid: Using SOCKS proxy, but ")


def test_what_a_later_server_adds_is_printed(capsys: Capture, service: Served) -> None:
    answer = call(capsys, "rank", "w1", "--top-k", "1", "--json", "--url", service.url).result
    answer |= {"later": {"field": 1}, "degraded": ["later_reason"]}
    with stranger(whole(json.dumps(answer).encode())) as later:
        assert call(capsys, "rank", "w1", "--json", "--url", later.url).result == answer


def test_a_generation_that_is_passed_over_is_told(capsys: Capture, checkpoints: Path, tmp_path: Path) -> None:
    ranker = polyrank.load(checkpoints / "other")
    good, bad = (build(ranker, pool(20, prefix), tmp_path).generation for prefix in "ab")
    flip(tmp_path, bad)
    outcome = call(capsys, "rank", "w1", "--store", tmp_path, "--json")
    assert outcome.result["generation"] == good
    [note] = outcome.err.splitlines()
    assert note.startswith(f"{bad} was passed over: ")
    assert "embeddings.bin" in note
    flip(tmp_path, good)
    message = call(capsys, "rank", "w1", "--store", tmp_path).failure()
    assert message.startswith(f"no good generation in {tmp_path}: ")


def test_stores_that_cannot_be_ranked_over(capsys: Capture, store: Path, tmp_path: Path) -> None:
    assert "at least one turn must have text" in call(capsys, "rank", " ", "--store", store).failure()
    assert "not of the locale's encoding" in call(capsys, "rank", "\udcff", "--store", store).failure(2)
    assert json.dumps(list(tmp_path.iterdir())) == "[]"
