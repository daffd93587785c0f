"""The server as a process of its own, and clients that put load on it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Self

from warm_python import WarmPython

REPOSITORY = Path(__file__).resolve().parents[1]
RUN = "import json, sys; from polyrank.service.process.server import run; "
RUN += "from polyrank.service.settings import Settings; "
RUN += "sys.exit(run(Settings(**json.loads(sys.argv[1]))))"
HEADERS = {"Content-Type": "application/json"}


class ServerProcess:
    """A server process; unless told otherwise on a free port, with one thread, and without a delay at its end.

    Args:
        python: forks it; None: it starts from nothing.
        before: code that it runs first.
        settings: its own.
    """

    def __init__(self, python: WarmPython | None = None, before: str = "", **settings: object) -> None:
        runs = {"threads": 1, "backend": "torch", "precision": "float32", "compiled_cache_mb": 0}
        fields = {"port": 0, "drain_delay_s": 0, **runs, **settings}
        # A file, because lines that nobody reads from a pipe are dropped at last.
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `end`
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # of one that is killed
        self._said: tuple[str, str] | None = None
        begin = _start if python is None else python.start
        self.process = begin(
            *("-c", before + RUN, json.dumps(fields, default=str)), stderr=self.log,
            TMPDIR=self._temporary.name, PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip

    def ready(self) -> int:
        """Wait for the line that tells where it is; returns the port."""
        line = self.process.stdout.readline()
        assert line.startswith("polyrank is ready on http://"), line + self.end()[1]
        return int(line.rsplit(":", 1)[1])

    def logged(self) -> str:
        """What it has said on standard error until now."""
        return os.pread(self.log.fileno(), 1 << 24, 0).decode()

    def end(self) -> tuple[str, str]:
        """Wait for its end; returns what it said on standard output and on standard error."""
        if self._said is None:
            out, _ = self.process.communicate(timeout=60)
            self.log.seek(0)
            self._said = out, self.log.read()
            self.log.close()
            self._temporary.cleanup()
        return self._said


def _start(*arguments: str, stderr: IO[str], **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
    )


def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body, over a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


class Callers:
    """Threads that call until the block ends, each by one of the functions; they look at `stop`."""

    def __init__(self, *calls: Callable[[], None]) -> None:
        self.stop, self.threads = threading.Event(), [threading.Thread(target=each) for each in calls]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        """Wait until none calls any more."""
        for thread in self.threads:
            thread.join()


class Load(Callers):
    """Clients that rank without a pause until they are told to stop, or the server accepts no more.

    Args:
        port: the server's.
        clients: so many threads.
        body: of each request.
        fresh: a new connection for each request; otherwise one is used until the server closes it in an answer.
        heeds_readyz: no new connection once /readyz is 503, as behind a balancer.
        check: returns what is wrong with an answer, if anything.
        base: the path of a pool; empty: of the one without a name.

    Attributes:
        answered: statuses.
        closing: answers that announced the end of their connection.
        lost: requests that were sent and not answered, and answers that were wrong.
        refused: clients that were refused a new connection: not a request lost.
    """

    def __init__(
        self,
        port: int,
        clients: int = 4,
        body: object = None,
        fresh: bool = False,
        heeds_readyz: bool = False,
        check: Callable[[dict[str, object]], str | None] = lambda _: None,
        base: str = "",
    ) -> None:
        self.port, self.fresh, self.heeds_readyz, self.check = port, fresh, heeds_readyz, check
        self.path = f"{base}/rank"
        self.body = json.dumps(body or {"context": "w1 w2", "top_k": 5})
        self.answered: Counter[int] = Counter()
        self.lost: list[str] = []
        self.closing = self.refused = 0
        self.is_ready = True
        super().__init__(*[self._ask] * clients, *[self._probe] * heeds_readyz)

    def wait_for(self, answers: int) -> None:
        """Wait for so many answers more."""
        until, deadline = self.answered.total() + answers, time.monotonic() + 60
        while self.answered.total() < until:
            assert time.monotonic() < deadline, (self.answered, self.lost)
            assert any(thread.is_alive() for thread in self.threads), self.lost
            time.sleep(0.005)

    def _probe(self) -> None:
        while self.is_ready and not self.stop.is_set():
            try:
                self.is_ready = get(self.port, "/readyz")[0] == 200
            except OSError as error:
                self.lost.append(f"probe: {error!r}")
                return
            time.sleep(0.02)

    def _ask(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self.stop.is_set():
            if connection is None:
                if self.heeds_readyz and not self.is_ready:
                    return
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    self.refused += 1
                    return
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._one(connection):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _one(self, connection: http.client.HTTPConnection) -> bool:
        """Send a request; returns whether its connection is not to be used again."""
        try:
            connection.request("POST", self.path, self.body, HEADERS)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.lost.append(repr(error))
            return True
        self.answered[response.status] += 1
        if response.status != 200:
            self.lost.append(content.decode())
        elif fault := self.check(json.loads(content)):
            self.lost.append(fault)
        closes = response.getheader("connection") == "close"
        self.closing += closes
        return closes or self.fresh
