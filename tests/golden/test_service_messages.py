"""Wrong requests with the messages they get, in a file that a reader can judge.

If a message changes on purpose, write it anew: `UPDATE_GOLDEN=1 pytest tests/golden/test_service_messages.py`.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from in_process import TestClient
from service_fakes import build_store, load, pool
from wrong_requests import CASES, WrongRequest

from polyrank.service.app import create_app
from polyrank.service.settings import Settings

GOLDEN = Path(__file__).with_name("wrong-requests.txt")
LIST = re.compile(r"(there are|choose from) ((?:[^,;)\n]+, ){1})[^;)\n]*")
SHOWN = 120


def asked(case: WrongRequest) -> str:
    if case.body is None:
        return ""
    body = case.body if isinstance(case.body, str) else json.dumps(case.body)
    return " " + (body if len(body) <= SHOWN else body[:SHOWN] + "…")


def said(client: TestClient, case: WrongRequest) -> str:
    content = case.body if isinstance(case.body, str | None) else json.dumps(case.body)
    headers = {"Content-Type": "application/json", **case.headers} if content is not None else case.headers
    answer = client.request(case.method, case.path, content=content, headers=headers)
    assert 400 <= answer.status_code < 500, f"{case.mistake}: {answer.text}"
    problem = answer.json()
    found = [f"{error['where']}: {error['what']}".removeprefix(": ") for error in problem.get("errors", [])]
    lines = found if len(found) > 1 else [problem["detail"]]
    return f"  {answer.status_code} {problem['title']}\n" + "".join(f"  {line}\n" for line in lines)


def test_wrong_requests(tmp_path: Path) -> None:
    generation = build_store(tmp_path, pool(10))
    settings = Settings(store=tmp_path, max_candidates=20, max_text_chars=2000)

    def blocks() -> Iterator[str]:
        yield "Wrong requests, and what the server answers: status, title, and what is wrong.\n"
        with TestClient(create_app(settings, load)) as client:
            fingerprint = client.get("/info").json()["model"]["fingerprint"]
            for case in CASES:
                headers = "".join(f" [{name}: {value}]" for name, value in case.headers.items())
                block = f"{case.mistake}\n  {case.method} {case.path}{headers}{asked(case)}\n{said(client, case)}"
                yield block.replace(generation, "GENERATION").replace(fingerprint, "FINGERPRINT")

    assert len(CASES) >= 30
    # Lists of all commands, fields or paths are cut: they grow with the product.
    text = LIST.sub(r"\1 \2…", "\n".join(blocks()))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == text, f"write it anew if this is meant: {__doc__}"
