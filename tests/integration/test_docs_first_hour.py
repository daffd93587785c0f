"""The blocks of README, tutorial and "Learn from use", pasted one after the other into shells of a fresh clone.

Ports, paths and files are those of the pages. A line that serves goes on in a shell of its own until its page ends.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import write_rows
from pasted import REPOSITORY, fenced

from polyrank.service.loop.config import LoopConfig

PORTS = (8000, 8001, 8002)
SERVES = re.compile(r"^(?:make demo|polyrank serve)\b.*$", re.MULTILINE)
READY_S = 300.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


class Reader:
    """Someone who pastes blocks: each into a new shell of the same folder, servers into shells of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[subprocess.Popen[bytes]] = []
        self.printed = ""
        names = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
        for name in filter(None, names.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)
        (folder / ".venv").symlink_to(sys.prefix)
        for name in ("pyproject.toml", "constraints.txt"):
            os.utime(folder / name, (0, 0))  # or make would install the clone into the environment of the tests

    def paste(self, block: str) -> None:
        """Run a block; what follows a line that serves is run when that server is ready."""
        end = 0
        for line in SERVES.finditer(block):
            self.run(block[end : line.start()])
            self.serve(line[0])
            end = line.end()
        self.run(block[end:])

    def run(self, block: str) -> None:
        if not block.strip():
            return
        done = subprocess.run(self._shell(block), cwd=self.folder, capture_output=True, text=True, env=_environment())
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        if "curl" in block:  # a problem has a status, an answer has none
            assert not re.search(r'"status": ?[45]\d\d\b', done.stdout), f"{block}\n{done.stdout}"
        self.printed += done.stdout

    def serve(self, line: str) -> None:
        port = int(found[1]) if (found := re.search(r"(?:PORT=|--port )(\d+)", line)) else PORTS[0]
        self.stop(port)
        log = (self.folder / f"server-{port}.log").open("wb")
        command = self._shell(f"exec {line.partition('#')[0]}")
        with log:
            server = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=_environment(), start_new_session=True
            )
        self.servers.append(server)
        until = time.monotonic() + READY_S
        while not _ready(port):
            assert server.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < until, Path(log.name).read_text()
            time.sleep(0.2)

    def stop(self, port: int | None = None) -> None:
        """Press Ctrl-C in the shell of every server, or of those that stand in the way of one on this port."""
        if port is not None and not _taken(port):
            return
        while self.servers:
            server = self.servers.pop()
            os.killpg(server.pid, signal.SIGINT)
            server.wait(60)

    def _shell(self, block: str) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", f". .venv/bin/activate\n{block}"]


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("POLYRANK_", "PYTHON", "PYTEST_"))
    }


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    taken = [port for port in PORTS if _taken(port)]
    assert not taken, f"other programs listen on {taken}, which the pages use"
    own = Reader(tmp_path)
    yield own
    own.stop()


def test_the_readme(reader: Reader) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    sample = (REPOSITORY / "examples/support/conversations.jsonl").read_text(encoding="utf-8").splitlines()
    logs = [{name: json.loads(row)[name] for name in ("context", "response")} for row in sample]
    write_rows(reader.folder / "logs.jsonl", logs[:150])
    write_rows(reader.folder / "later.jsonl", logs[150:])
    write_rows(reader.folder / "replies.jsonl", [{"text": "Sorry, where is it now?"}, {"text": "We sell lamps."}])
    start, *blocks = fenced(text)
    reader.paste(start.partition("\n")[0])  # its other lines are other ways to start
    reader.run("sh examples/quickstart.sh")
    assert '"rank":1,"id":"stock-01"' in reader.printed  # no answer to the question; the reranker puts another first
    assert '"rank":1,"id":"privacy-10"' in reader.printed
    for block in blocks:
        reader.paste(block)
    [python] = fenced(text, "python")
    (reader.folder / "pasted.py").write_text(python, encoding="utf-8")
    reader.run("python pasted.py")
    assert '"rank":1,"id":"late-03"' in reader.printed
    assert "answer: no" in reader.printed


def test_the_tutorial(reader: Reader) -> None:
    newest = "$(ls store/generations | tail -n 1)"
    for block in fenced((REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")):
        reader.paste(re.sub(r"\bID\b", newest, block))
    assert "parking" in reader.printed
    assert "I'm sorry that your parcel is late." in reader.printed


def test_learning_from_use(reader: Reader) -> None:
    text = (REPOSITORY / "docs/how-to/learn-from-use.md").read_text(encoding="utf-8")
    for block in fenced(text, "sh|python"):
        if block.startswith("import"):
            (reader.folder / "pasted.py").write_text(block, encoding="utf-8")
            block = "python pasted.py"
        reader.paste(block)
    before, after = re.findall(r"first reply was right in (\d+) of", reader.printed)
    assert int(before) < 80
    assert int(after) > 150
    assert "switched: " in reader.printed
    assert (reader.folder / "report.html").is_file()
    [config] = fenced(text, "toml")
    assert set(tomllib.loads(config)) <= set(LoopConfig.model_fields)
