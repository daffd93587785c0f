"""What the app says of paths and devices that there are not. HEAD and the methods of a path."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import TestClient
from service_fakes import build_store, load

from polyrank.model import progress
from polyrank.model.inference import openvino_backend
from polyrank.service import app
from polyrank.service.app import create_app
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings


def test_a_back_end_that_cannot_run_here_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32"])
    with pytest.raises(
        SettingsError, match=r"^backend: this processor does not compute in float16; use another precision, or auto$"
    ):
        create_app(Settings(store=Path("nowhere"), backend="openvino", precision="float16"))


def test_the_stages_of_a_start_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=progress.log.name)
    generation = build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)):
        said = [record.getMessage() for record in caplog.records if record.name == progress.log.name]
    assert said == [f"opening generation {generation}", "warming up the model", "preparing the search"]


def test_the_paths_that_there_are_are_listed_once_for_all_calls(tmp_path: Path, monkeypatch) -> None:
    listed: list[object] = []
    walk = app.iter_route_contexts
    monkeypatch.setattr(app, "iter_route_contexts", lambda routes: listed.append(routes) or walk(routes))
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        told = [client.get(path).json()["detail"] for path in ("/rnak", "/index/candidate", "/nothing", "/rnak")]
    assert told[0] == told[3] == "there is no /rnak; did you mean POST /rank?"
    assert "did you mean GET|PUT /index/candidates" in told[1]
    assert told[2].startswith("there is no /nothing; there are POST|GET /, POST /classify, ")
    assert len(listed) == 1


def test_a_path_without_end_is_compared_by_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(app, "get_close_matches", lambda asked, *_, **__: compared.append(asked) or [])
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        assert client.get("/" + "x" * 30_000).status_code == 404
    assert list(map(len, compared)) == [app.MAX_PATH_CHARS]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root: Path = tmp_path_factory.mktemp("store")
    build_store(root)
    with TestClient(create_app(Settings(store=root), load)) as made:
        yield made


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/index", "/info", "/index/jobs/nobody"])
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize("path", ["/rank/", "/index/", "/livez/"])
def test_a_path_with_a_slash_too_many_leads_nowhere(client: TestClient, path: str) -> None:
    for method in ("GET", "POST"):
        answer = client.request(method, path, follow_redirects=False)
        assert (answer.status_code, "location" in answer.headers) == (404, False)


def test_head_is_counted_as_itself(client: TestClient) -> None:
    client.head("/livez")
    metrics = client.get("/metrics").text
    assert 'polyrank_http_requests_total{code="200",method="HEAD",route="/livez"}' in metrics


@pytest.mark.parametrize(("method", "path", "has"), [
    ("DELETE", "/index", "GET, HEAD, POST"), ("OPTIONS", "/index", "GET, HEAD, POST"), ("GET", "/rank", "POST"),
    ("HEAD", "/rank", "POST"), ("POST", "/index/jobs/some", "GET, HEAD"), ("PUT", "/docs", "GET, HEAD"),
])  # fmt: skip
def test_a_method_that_a_path_has_not(client: TestClient, method: str, path: str, has: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert sorted(answer.headers["allow"].split(", ")) == has.split(", ")
