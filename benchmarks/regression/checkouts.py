"""Run the product of another checkout, with that checkout's own Python. Nothing here imports the product."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

PACKAGES = ("service", "index_builder", "model")
READY = "polyrank is ready on "
COMMAND = "polyrank.service.cli"
PROBE = f"import importlib.util; print(importlib.util.find_spec({COMMAND!r}).origin)"


class Checkout:
    """A working tree, run by the Python of its `.venv`, or by this one where it has none.

    Raises:
        SystemExit: there is no such tree, or its Python finds the product of another one.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        if not (self.path / "src" / "polyrank").is_dir():
            sys.exit(f"{self.path} is no checkout: it has no src/polyrank")
        own = self.path / ".venv" / "bin" / "python"
        self.python = own if own.is_file() else Path(sys.executable)
        self.pool = self.path / "examples" / "support" / "pool.jsonl"
        self.conversations = self.path / "examples" / "support" / "conversations.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def environment(self, **variables: str) -> dict[str, str]:
        """The variables of a subprocess that imports the product of this tree."""
        return environment(PYTHONPATH=str(self.path / "src"), **variables)

    @cached_property
    def command(self) -> list[str]:
        """What runs `polyrank` here: the module, because the script in a `.venv` may be of another tree."""
        asked = [str(self.python), "-c", PROBE]
        answer = subprocess.run(asked, env=self.environment(), cwd=self.path, capture_output=True, text=True)
        origin = answer.stdout.strip()
        if not origin or not Path(origin).resolve().is_relative_to(self.path):
            sys.exit(f"{self.python} imports the product from {origin or 'nowhere'}, which is not in {self.path}")
        return [str(self.python), "-m", COMMAND]

    @property
    def revision(self) -> str:
        """The commit, with `+` where the product differs from it."""
        commit = _git(self.path, "rev-parse", "--short", "HEAD")
        if commit is None:
            return "no commit"
        return commit + ("+" if _git(self.path, "status", "--porcelain", "--", *PACKAGES) else "")

    def polyrank(self, *arguments: object, **variables: str) -> str:
        """Run one command to its end; returns what it printed. Exits where the command fails."""
        return self._run([*self.command, *map(str, arguments)], **variables)

    def _run(self, line: Sequence[str], **variables: str) -> str:
        done = subprocess.run(line, env=self.environment(**variables), cwd=self.path, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(line)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    def result(self, *arguments: object, **variables: str) -> dict[str, Any]:
        """Run one command with `--json`; returns the object it printed."""
        result: dict[str, Any] = json.loads(self.polyrank(*arguments, "--json", **variables).splitlines()[-1])
        return result

    def run_script(self, script: Path, *arguments: object) -> dict[str, Any]:
        """Run a script with this checkout's Python; returns the JSON object that it printed last."""
        printed = self._run([str(self.python), str(script), *map(str, arguments)])
        result: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return result

    @contextmanager
    def served(self, store: Path, *flags: object, **settings: str) -> Iterator["Server"]:
        """Run `polyrank serve` over a store for the block; settings are given as variables of the environment."""
        line = [*self.command, "serve", "--store", str(store), "--port", "0", "--backend", "torch", *map(str, flags)]
        # No delay before it stops, and no deadline that a busy machine would miss.
        told = self.environment(POLYRANK_DRAIN_DELAY_S="0", POLYRANK_MAX_TIMEOUT_MS="60000", **settings)
        with running(line, self.path, told) as (process, log):
            try:
                assert process.stdout is not None, "piped"
                ready = next((each for each in process.stdout if each.startswith(READY)), None)
                if ready is None:
                    sys.exit(f"{' '.join(line)} did not start\n{end_of(log)}")
                url = ready.removeprefix(READY).strip()
                _wait_until_ready(url)
                yield Server(url, process.pid)
            finally:
                process.terminate()


class Server(NamedTuple):
    """A server that is ready: where, and its process id."""

    url: str
    pid: int


@contextmanager
def running(
    line: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a command for the block, standard input and output piped; yields it, and the file of its standard error."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            env=variables,
            cwd=folder,
        ) as process,
    ):
        yield process, log


def end_of(log: IO[str]) -> str:
    """The last words of a process."""
    log.seek(0)
    return log.read()[-2000:]


def environment(**variables: str) -> dict[str, str]:
    """The variables of a subprocess: this process's, without settings of polyrank, and those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYRANK_")}
    fixed = {
        "PYTHONSAFEPATH": "1",  # else `-m` would look in the current directory first
        "HF_HUB_OFFLINE": "1",  # the base model is installed or cached; no call to a hub
        "TOKENIZERS_PARALLELISM": "false",
    }
    return kept | fixed | variables


def call(url: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a JSON body, if any; returns the status and the answer's body."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, content, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def machine(checkouts: Mapping[str, Checkout]) -> dict[str, Any]:
    """What the figures were taken on, and of which commits."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "python": platform.python_version(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "checkouts": {name: {"path": str(each.path), "revision": each.revision} for name, each in checkouts.items()},
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _wait_until_ready(url: str) -> None:
    until = time.monotonic() + 60
    while call(url, "GET", "/readyz")[0] != 200:
        if time.monotonic() > until:
            sys.exit(f"{url}/readyz is not ready after 60 s")
        time.sleep(0.05)


def _git(path: Path, *arguments: str) -> str | None:
    """What git says; None: this is no working tree of it."""
    done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
