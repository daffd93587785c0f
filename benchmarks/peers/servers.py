"""The servers that are compared: processes on the same core, of which only one runs while the others are stopped."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

from benchmarks.load.drive import REPOSITORY, Running, cores, serving
from benchmarks.peers.contest import limits, pinned
from benchmarks.peers.environments import python_of

START_SECONDS = 180.0
SERVED = "minilm"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was started.

    Attributes:
        name: name of the side.
        running: its process and URL.
        path: path of a request.
        body: makes the body of a request from its context.
        about: fields for a row of results, where there is something to say.
        tells_stages: whether answers tell the time of each stage.
    """

    name: str
    running: Running
    path: str
    body: Callable[[str], dict[str, Any]]
    about: Mapping[str, Any] = field(default_factory=dict)
    tells_stages: bool = False

    @contextmanager
    def alone(self, others: list["Server"]) -> Iterator[None]:
        """Stop all other servers for the `with` block: even idle ones poll for work."""
        stopped = [each.running.pid for each in others if each is not self]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


@contextmanager
def polyrank(store: Path) -> Iterator[Server]:
    """Run `polyrank serve`, which returns the ten best of the pool."""
    with serving(store) as running:
        with urllib.request.urlopen(f"{running.url}/info") as answer:
            model = json.load(answer)["model"]
        about = {"about": {name: model[name] for name in ("backend", "precision")}}

        def body(text: str) -> dict[str, Any]:
            return {"context": text, "top_k": 10, "timeout_ms": 10_000}

        yield Server("polyrank", running, "/rank", body, about, tells_stages=True)


@contextmanager
def infinity(engine: str, models: Path, cache: Path) -> Iterator[Server]:
    """Run infinity, which embeds each context, in the encoding that OpenAI's client asks for.

    Args:
        engine: "torch", or "optimum" for ONNX Runtime.
        models: folder with the base model; its ONNX form, made by sentence-transformers, is kept there too.
        cache: folder of the environments.
    """
    folder = models / "encoder" if engine == "torch" else _onnx_for_infinity(models, cache)
    variables = {"HF_HOME": str(models / "hub"), "INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1"}
    options = ["--model-id", ".", "--served-model-name", SERVED, "--pooling-method", "mean", "--log-level", "error"]
    command = ["-m", "benchmarks.peers.infinity_server", "v2", "--engine", engine, "--device", "cpu", *options]
    with _started([python_of("infinity", cache), *command], variables, folder) as running:
        body = {"model": SERVED, "encoding_format": "base64"}
        yield Server(f"infinity, {engine}", running, "/embeddings", lambda text: {**body, "input": [text]})


@contextmanager
def fastapi_app(pool: Path, vectors: Path, models: Path, cache: Path) -> Iterator[Server]:
    """Run fastapi_app.py, which returns the ten nearest of the pool."""
    variables = {"POOL": str(pool), "VECTORS": str(vectors), "MODELS": str(models)}
    command = ["-m", "uvicorn", "benchmarks.peers.fastapi_app:app", "--log-level", "error"]
    with _started([python_of("openvino", cache), *command], variables, models) as running:
        yield Server("FastAPI app", running, "/rank", lambda text: {"context": text, "top_k": 10})


@contextmanager
def _started(command: list[object], variables: Mapping[str, str], folder: Path) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", port]
    environment = {**limits(1), **variables}
    with subprocess.Popen(
        pinned(command, [cores()[0]]), env=environment, cwd=folder, text=True, stdout=subprocess.DEVNULL
    ) as process:
        try:
            running = Running(f"http://127.0.0.1:{port}", process.pid)
            _wait(running.url, process)
            yield running
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"{url} did not start")


def _onnx_for_infinity(models: Path, cache: Path) -> Path:
    """Make the folder that infinity expects: the ONNX file next to the tokenizer."""
    folder, converted = models / "infinity-onnx", models / "encoder-onnx" / "onnx" / "model.onnx"
    if not converted.is_file():
        worker: list[str | Path] = [
            python_of("onnx", cache),
            "-m",
            "benchmarks.peers.st_worker",
            "encode",
            "--variant",
            "onnx",
        ]
        command = [*worker, "--models", models, "--threads", "1"]
        subprocess.run(command, check=True, cwd=REPOSITORY, env=limits(1), stdin=subprocess.DEVNULL)
    if not folder.is_dir():
        folder.mkdir()
        for file in [*(models / "encoder").glob("*.json"), models / "encoder" / "vocab.txt", converted]:
            (folder / file.name).symlink_to(file.resolve())
    return folder
