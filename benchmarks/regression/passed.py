"""Print what a build, a `/rank` request and an update pass of the product's files and functions, as JSON.

    python passed.py CHECKOUT FOLDER

`structure.py` starts this with the Python and the import path of the checkout that it measures. FOLDER is empty;
stores are made in it. Build and server run in this process, as `polyrank build` and `polyrank serve` run them. A
profile function in every thread notes the file of each Python function that is called. The module bodies that an import
runs do not count.
"""

import inspect
import json
import os
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

from polyrank.service.cli import main as polyrank

PACKAGES = ("service", "index_builder", "model")
ROWS = 8
WARM, COUNTED = 10, 5
IDLE_SECONDS = 2.5
AFTER_SECONDS = 0.1  # what the server does once it has answered, as its log line, belongs to the request


Call = tuple[CodeType | None, CodeType]  # the next caller in the product, and what it called


class Way(NamedTuple):
    """Files that are passed, how often the way leads to another file, there and back, and how many functions it has."""

    files: set[str]
    moves: int
    functions: int


class Recorder:
    """A profile function that notes what functions of the product are called while it is on, each time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._on = False
        self._calls: list[Call] = []
        self._files: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        # Bodies of modules and classes are code, too, but without this flag.
        if self._on and event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED and self.file(frame.f_code):
            back = frame.f_back
            while back is not None and self.file(back.f_code) is None:
                back = back.f_back
            self._calls.append((back and back.f_code, frame.f_code))

    @contextmanager
    def on(self) -> Iterator[list[Call]]:
        """Note calls for the block; yields a list that holds them afterwards."""
        found: list[Call] = []
        self._calls.clear()
        self._on = True
        yield found
        self._on = False
        found += self._calls

    def file(self, code: CodeType | None) -> str | None:
        """The product file of a function, relative to the checkout; None: it is not of the product."""
        if code is None:
            return None
        if code.co_filename not in self._files:
            name = os.path.relpath(os.path.realpath(code.co_filename), self._root)  # `polyrank` may hold links
            self._files[code.co_filename] = name if name.split("/")[0] in PACKAGES else None
        return self._files[code.co_filename]

    def way(self, calls: list[Call]) -> Way:
        """What these calls pass."""
        files = {name for _, called in calls if (name := self.file(called))}
        moves = 2 * sum(self.file(caller) != self.file(called) for caller, called in calls)
        return Way(files, moves, len({called for _, called in calls}))


def build(checkout: Path, pool: Path, store: Path) -> None:
    model = str(checkout / "checkpoints" / "chat-poly")
    flags = ["--model", model, "--pool", str(pool), "--store", str(store), "--backend", "torch", "--json"]
    if polyrank(["build", *flags]) != 0:
        sys.exit("the build failed")


def call(url: str, method: str, body: object) -> Any:
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def rank(url: str, context: list[str]) -> None:
    assert len(call(f"{url}/rank", "POST", {"context": context, "top_k": 5})["results"]) == 5


def update(url: str, context: list[str]) -> None:
    """Add a reply whose text is new."""
    assert call(f"{url}/index/candidates", "PUT", [{"text": " ".join(context)}])["revision"]


def wait_until_ready(url: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)


def way_of_each(
    recorder: Recorder, url: str, ask: Callable[[str, list[str]], None], contexts: list[list[str]]
) -> dict[str, Any]:
    """What several warm calls pass, without the calls that timers make anyway: files of all, else the median."""
    for context in contexts[:WARM]:
        ask(url, context)
    with recorder.on() as idle:
        time.sleep(IDLE_SECONDS)
    by_timers, ways = set(idle), []
    for context in contexts[WARM : WARM + COUNTED]:
        with recorder.on() as calls:
            ask(url, context)
            time.sleep(AFTER_SECONDS)
        ways.append(recorder.way([each for each in calls if each not in by_timers]))
    return {
        "files": sorted(set.intersection(*(each.files for each in ways))),
        "moves": median(each.moves for each in ways),
        "functions": median(each.functions for each in ways),
    }


def contexts_of(samples: Path) -> list[list[str]]:
    lines = (samples / "conversations.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["context"] for line in lines]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def files_of_a_build(recorder: Recorder, root: Path, folder: Path) -> list[str]:
    """Files that the second build passes: the first one imports what a build imports late."""
    lines = (root / "examples" / "support" / "pool.jsonl").read_text("utf-8").splitlines(keepends=True)
    pool = folder / "pool.jsonl"
    pool.write_text("".join(lines[:ROWS]), "utf-8")
    build(root, pool, folder / "first")
    with recorder.on() as calls:
        build(root, pool, folder / "second")
    return sorted(recorder.way(calls).files)


def main() -> None:
    root, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    recorder = Recorder(root)
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    out, sys.stdout = sys.stdout, sys.stderr  # standard output is for the result alone
    built = files_of_a_build(recorder, root, folder)
    contexts, port = contexts_of(root / "examples" / "support"), free_port()
    url = f"http://127.0.0.1:{port}"

    def ask() -> None:
        try:
            wait_until_ready(url)
            asked, updated = (way_of_each(recorder, url, each, contexts) for each in (rank, update))
            out.write(json.dumps({"request": asked, "build": built, "update": updated}) + "\n")
            out.flush()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)  # nothing of this server is worth an orderly end

    threading.Thread(target=ask, daemon=True).start()
    flags = ["--store", str(folder / "second"), "--port", str(port), "--backend", "torch"]
    sys.exit(polyrank(["serve", *flags]) or 1)  # it ends only where it fails


if __name__ == "__main__":
    main()
