"""A Hugging Face hub on this machine that takes repositories and commits, as its client sends them."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_abcdef"


@dataclass
class FakeHub:
    """What it holds.

    repositories: what the client asked for when it made each. files: the bytes of each repository's files by name.
    refuses: the status that commits are answered with; 0: they are taken.
    """

    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refuses: int = 0

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/whoami-v2":
            return 200, {"name": "ann", "type": "user", "orgs": [{"name": "shop"}], "auth": {}}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":  # of a model card
            return 200, {"errors": [], "warnings": []}
        parts = path.split("/")
        assert parts[:3] == ["", "api", "models"], path
        name, kind = "/".join(parts[3:5]), parts[5]
        if kind == "preupload":
            listed = json.loads(body)["files"]
            answers = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in listed]
            return 200, {"files": answers}
        if kind == "commit":
            return self._commit(name, body)
        return 200, {"id": name, "sha": "0" * 40, "siblings": []}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked.get('organization', 'ann')}/{asked['name']}"
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
        self.repositories[name] = asked
        return 200, {"url": f"{self.address}/{name}"}

    def _commit(self, name: str, body: bytes) -> tuple[int, Any]:
        if self.refuses:
            return self.refuses, {"error": "over the quota"}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files.setdefault(name, {})[line["value"]["path"]] = content
        return 200, {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1" * 40, "hookOutput": ""}


@contextmanager
def running() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self._body()
            status, content = hub.answer(self.command, self.path, self.headers.get("Authorization"), body)
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
