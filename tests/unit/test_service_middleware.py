"""HEAD and the methods of a path."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import TestClient
from service_fakes import build_store, load

from polyrank.service.app import create_app
from polyrank.service.settings import Settings


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
