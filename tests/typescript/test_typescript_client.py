"""The TypeScript client: packed, compiled into a strict program, and run against a server in a process of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import REPOSITORY, ServerProcess
from service_fakes import pool
from strangers import HEAD, Answering, circle, dripping, folded, stranger, whole
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.service.auth import keys

CLIENT = REPOSITORY / "clients" / "typescript"
ENVIRONMENT = REPOSITORY / ".venv-typescript"
BIN = (ENVIRONMENT / "node_modules" / ".bin", ENVIRONMENT / "bin")
KEYS = {"boss": {"scopes": ("admin",)}, "slow": {"scopes": ("rank",), "rate_per_s": 1, "burst": 1}}
COMPILED = {"target": "ES2022", "module": "NodeNext", "lib": ["ES2022", "DOM"], "strict": True, "types": []}


def run(*words: object, cwd: Path) -> str:
    """What a command of the environment prints."""
    path = os.pathsep.join([*map(str, BIN), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    told = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, text=True, capture_output=True)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled beside the package, as npm installs it; so is what the README shows."""
    folder = tmp_path_factory.mktemp("typescript")
    source = shutil.copytree(CLIENT, folder / "source", ignore=shutil.ignore_patterns("node_modules", "dist"))
    (source / "node_modules").symlink_to(ENVIRONMENT / "node_modules")
    run("npm", "pack", "--silent", cwd=source)
    [packed] = source.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "program" / "node_modules", filter="data")
    (folder / "program" / "node_modules" / "package").rename(folder / "program" / "node_modules" / "polyrank")
    shutil.copy(Path(__file__).parent / "program.ts", folder / "program")
    shown = re.findall(r"^```ts\n(.*?)^```$", (CLIENT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (folder / "program" / "readme.ts").write_text("".join(shown))
    (folder / "program" / "package.json").write_text('{"type": "module"}')
    (folder / "program" / "tsconfig.json").write_text(json.dumps({"compilerOptions": COMPILED}))
    run("tsc", cwd=folder / "program")
    return folder / "program" / "program.js"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL; the callers' keys are their names."""
    folder = tmp_path_factory.mktemp("served")
    model = write_checkpoint(folder, "poly", 0, architecture="poly", n_codes=3, normalize=True)
    build(polyrank.load(model), pool(60), folder / "store")
    with keys.changing(folder / "keys.json") as held:
        held += [keys.Key(name=name, sha256=keys.hashed(name.encode()), **more) for name, more in KEYS.items()]
    (folder / "damaged.jsonl").write_text("{\n")
    roots = {"pool_root": folder, "model_root": folder}
    process = ServerProcess(store=folder / "store", keys_file=folder / "keys.json", feedback="ids", **roots)
    try:
        yield f"http://127.0.0.1:{process.ready()}"
    finally:
        process.process.terminate()
        process.end()


@pytest.fixture
def does(program: Path, server: str) -> Callable[..., Any]:
    """Runs the program: what to do, whose key, and what else it needs."""

    def do(deed: str, key: str = "boss", *more: str) -> Any:
        return json.loads(run("node", program, deed, server, key, *more, cwd=program.parent))

    return do


def test_the_types_are_those_of_the_api(tmp_path: Path) -> None:
    """`make docs` writes them."""
    shutil.copytree(CLIENT, tmp_path / "clients" / "typescript", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "docs").mkdir()
    shutil.copy(REPOSITORY / "docs" / "openapi.json", tmp_path / "docs")
    run("npm", "run", "generate", cwd=tmp_path / "clients" / "typescript")
    written = (tmp_path / "clients" / "typescript" / "src" / "schema.ts").read_text()
    assert written == (CLIENT / "src" / "schema.ts").read_text(), "clients/typescript/src/schema.ts is stale: make docs"


def test_the_package_needs_no_other_and_has_the_projects_version() -> None:
    package, lock = (json.loads((CLIENT / name).read_text()) for name in ("package.json", "package-lock.json"))
    assert "dependencies" not in package
    assert package["version"] == lock["version"] == polyrank.__version__


def test_what_reads(does: Callable[..., Any], server: str) -> None:
    told = does("asks")
    with polyrank.Client(server, "boss") as client:
        ids = [each.id for each in client.rank(["w1 w2", {"role": "user", "text": "w3"}], top_k=3).results]
    assert told["ids"] == ids
    assert told["vector"] == "number"
    assert told["batch"] == [ids, ["unknown-candidates"]]
    assert len(told["rerank"]) == 1
    assert told["lengths"] == pytest.approx([1, 1], abs=1e-5)
    assert (told["explained"], told["even"], told["stored"]) == (1, 30, pool(60)[1].text)
    assert told["pools"] == [["", 60]]
    assert told["unheard"]


def test_feedback_that_is_repeated_counts_once(does: Callable[..., Any]) -> None:
    told = does("feedback")
    assert (told["told"]["accepted"], told["told"]["repeated"]) == (0, 2)
    assert told["sent"][0] == told["sent"][1]
    assert [len(event["event_id"]) for event in told["sent"][0]["events"]] == [32, 4]
    assert (told["madeUp"]["status"], told["madeUp"]["kind"]) == (404, "unknown-ranking")
    assert told["unrecorded"] == "none"


def test_refusals(does: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = does("refusals", "boss", f"http://127.0.0.1:{port}")
    wrong = told["wrong"]
    assert (wrong["name"], wrong["status"], wrong["kind"], wrong["named"]) == ("Refused", 422, "invalid-input", True)
    assert wrong["findings"][0]["where"] == "context"
    assert told["unknown"]["status"] == told["job"]["status"] == 404
    assert told["key"]["status"] == 401
    assert told["gone"]["name"] == "NoAnswer"
    assert told["gone"]["maybeDone"] is False
    assert "is polyrank serve running?" in told["gone"]["message"]
    assert told["elsewhere"] == {"name": "NotAnAnswer", "isOurs": True}
    assert told["stopped"] == {"name": "AbortError", "isOurs": False}


def test_a_pool_under_update(does: Callable[..., Any]) -> None:
    told = does("updates")
    assert told["found"] == [True] * 10
    assert told["rankings"] > 3
    assert told["left"] == 0


def test_a_rebuild_is_followed(does: Callable[..., Any]) -> None:
    told = does("rebuild")
    assert told == {"state": "succeeded", "count": 2, "back": 60, "ended": "failed", "jobs": 2}


def test_a_watch_ends_by_its_signal(does: Callable[..., Any]) -> None:
    assert does("unwatched") == {"ended": {"name": "TimeoutError", "isOurs": False}, "soon": True}


def test_answers_of_others_and_what_cannot_be_sent(does: Callable[..., Any]) -> None:
    told = does("strangers")
    assert [(told[each]["name"], told[each]["status"]) for each in ("page", "number", "mixed")] == [
        ("Refused", 502),
        ("Refused", 404),
        ("Refused", 400),
    ]
    assert told["text"] == told["moved"] == {"name": "NotAnAnswer", "isOurs": True}
    assert told["unsent"] == [{"name": "TypeError", "isOurs": False}] * 4
    assert told["asked"] == 0
    assert told["patient"] == 3


def test_a_busy_server_is_asked_again_when_it_says(does: Callable[..., Any]) -> None:
    told = does("patience", "slow")
    assert told["answered"] == 2
    assert told["waited"] > 900
    assert (told["refused"]["status"], told["refused"]["kind"]) == (429, "rate-limited")
    assert told["refused"]["retryAfter"] == 1
    assert told["late"]["status"] == 429
    assert told["within"] < 900, "a wait beyond the deadline is not begun"


def test_paths_and_headers(does: Callable[..., Any]) -> None:
    ranked, stored, listed = does("paths")
    method, url, headers = ranked
    assert (method, url) == ("POST", "https://host/pools/shop/rank")
    assert 0 < int(headers.pop("X-Request-Timeout-Ms")) <= 500
    assert headers == {"Authorization": "Bearer k", "Content-Type": "application/json", "X-Request-ID": "mine"}
    assert stored == ["GET", "https://host/pools/shop/index/candidates/a%2Fb%3Fc", {"Authorization": "Bearer k"}]
    assert listed[1] == "https://host/pools/shop/index/candidates?limit=2&filter=%7B%22a%22%3A+1%7D"


def test_a_hostile_server(does: Callable[..., Any]) -> None:
    """What the Python clients meet, too: tests/integration/test_service_client_strangers.py."""
    ours = {"name": "NotAnAnswer", "isOurs": True}
    with stranger(whole(b"{}")) as thief, stranger(_by_path(thief.url)) as server:
        told = does("hostile", "boss", server.url)
        assert thief.asked == []
        circle = [request for request in server.asked if b" /circle/" in request]
    for each in (told["dripping"], told["continuing"]):
        assert (each["told"]["name"], each["within"]) == ("NoAnswer", True)
    assert told["folded"] == told["circle"] == told["moved"] == ours
    assert len(circle) == 3
    assert told["there"] == 1
    assert told["shapes"] == [ours] * 11


def _by_path(thief: str) -> Answering:
    """What the stranger answers: each path of the program's has its own."""
    moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\n"
    answers = {
        b"/dripping/index": dripping(HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
        b"/continuing/index": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        b"/folded/index": whole(folded(), HEAD + b"Content-Encoding: gzip\r\n"),
        b"/circle/index/candidates": circle,
        b"/moved/index": whole(b"", moved % thief.encode()),
        b"/here/index/jobs": whole(b"", moved % b"/there"),
        b"/there": whole(b'{"jobs": [{}]}'),
        b"/others/v2/rerank": whole(b'{"results": [{"index": 1, "relevance_score": 0.5}]}'),
        b"/others/v1/embeddings": whole(b'{"data": [{"embedding": ["a"]}]}'),
        b"/others/rank/batch": whole(b'{"answers": [{"answer": {}}]}'),
    }

    def answering(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        path = request.split(b" ")[1].partition(b"?")[0]
        answers.get(path, whole(b"{}"))(connection, request, over)

    return answering
