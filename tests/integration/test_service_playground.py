"""The page's files, as a server sends them; what the page does is tested in a browser (tests/browser)."""

import json
import re
from collections.abc import Iterator
from hashlib import sha512
from pathlib import Path

import pytest
from in_process import TestClient
from service_fakes import build_store, words_app
from unprivileged import bound_by_permissions

from polyrank.service.http.playground.page import policy, read_all

STATIC = Path(__file__).resolve().parents[2] / "service" / "http" / "playground" / "static"
MOST_BYTES = 108 * 1024  # of what a browser loads
FILES = read_all()
LOADED = sorted(name for name in FILES if not name.endswith("LICENSE.txt"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    build_store(root)
    return root


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[TestClient]:
    with TestClient(words_app(store)) as client:
        yield client


def test_the_root_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.url.path) == (200, "/playground")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_index_says_what_the_page_can_offer(tmp_path: Path) -> None:
    def offered(**roots: Path) -> list[object]:
        with TestClient(words_app(tmp_path / "store", **roots)) as client:
            told = client.get("/index").json()
        return [told[name] for name in ("previous", "writable", "takes_pools", "takes_models")]

    first = build_store(tmp_path / "store")
    assert offered() == [None, True, False, False]
    build_store(tmp_path / "store")
    assert offered(pool_root=tmp_path, model_root=tmp_path) == [first, True, True, True]
    (tmp_path / "store").chmod(0o555)
    try:
        with bound_by_permissions():
            assert offered()[:2] == [first, False]
    finally:
        (tmp_path / "store").chmod(0o755)


def test_it_can_be_switched_off(store: Path) -> None:
    with TestClient(words_app(store, playground=False)) as client:
        assert client.get("/", follow_redirects=False).headers["location"] == "/docs"
        assert client.get("/playground").status_code == 404
        assert client.get("/playground/app.js").status_code == 404


def test_browsers_enforce_the_policy(client: TestClient) -> None:
    headers = client.get("/playground").headers
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert rules.pop("script-src").startswith("'self' 'sha256-")
    assert rules == {
        "default-src": "'none'", "style-src": "'self'", "img-src": "'self'", "connect-src": "'self'",
        "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'", "trusted-types": "'none'",
    }  # fmt: skip
    assert headers["referrer-policy"] == "no-referrer"


def test_only_one_import_map_is_allowed() -> None:
    page = FILES["index.html"].content
    assert policy(page) != policy(page.replace(b'"htm":', b'"other":'))
    with pytest.raises(ValueError, match="too many values to unpack"):
        policy(page + page)


@pytest.mark.parametrize("name", ["", *(f"/{name}" for name in FILES)])
def test_each_file_is_sent_once(client: TestClient, name: str) -> None:
    first = client.get(f"/playground{name}")
    assert first.status_code == 200
    assert first.content == FILES[name[1:] or "index.html"].content
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(f"/playground{name}", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get(f"/playground{name}", headers={"If-None-Match": '"other"'}).status_code == 200
    head = client.head(f"/playground{name}", headers={"Accept-Encoding": "identity"})
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(first.content)))


@pytest.mark.parametrize(
    "name", ["nothing.js", "../files.py", "%2e%2e/files.py", "vendor", "vendor/", "vendor/VENDOR.json", "//app.js"]
)
def test_nothing_else_is_sent(client: TestClient, name: str) -> None:
    assert client.get(f"/playground/{name}").status_code == 404


def test_the_tags_differ() -> None:
    assert len({file.etag for file in FILES.values()}) == len(FILES)


def test_it_is_small() -> None:
    assert sum(len(FILES[name].content) for name in LOADED) <= MOST_BYTES


def test_all_that_is_named_is_there_and_all_that_is_there_is_named() -> None:
    page = FILES["index.html"].content.decode()
    named = set(re.findall(r'"(?:\./)?playground/([\w./-]+)"', page)) | {"index.html"}
    for name in LOADED:
        text = FILES[name].content.decode()
        if "/" not in name:
            named |= set(re.findall(r'from "\./([\w.-]+)"', text))
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|eval\(", text), name
    assert named == set(LOADED)


def test_what_is_vendored_is_unchanged() -> None:
    vendor = STATIC / "vendor"
    packages = json.loads((vendor / "VENDOR.json").read_text())["packages"]
    listed = {name: file["sha512"] for package in packages for name, file in package["files"].items()}
    there = {
        file.name: sha512(file.read_bytes()).hexdigest() for file in vendor.iterdir() if file.name != "VENDOR.json"
    }
    assert there == listed
    assert {package["name"]: package["license"] for package in packages} == {"preact": "MIT", "htm": "Apache-2.0"}
    for package in packages:
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"])
        assert f"{package['name']}-LICENSE.txt" in package["files"]
