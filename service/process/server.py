"""Listens, and serves until a signal stops it: in this process, or in several that this one supervises."""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import TextIO

import uvicorn

from polyrank.model.errors import RankingError
from polyrank.model.telling import telling
from polyrank.service.auth.buckets import SharedBuckets
from polyrank.service.observe import logs
from polyrank.service.process import supervisor
from polyrank.service.process.listening import bind
from polyrank.service.process.supervisor import KINDS
from polyrank.service.settings import Settings

CUT_SHORT = 1  # the exit status after a second signal, which leaves requests unanswered
FILES_BESIDE_CONNECTIONS = 512
SWITCH_SECONDS = 0.001  # each event of the loop waits so long for a thread that reads a large body; by default, 5 ms

log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, then drain; a second signal ends the process at once.

    A line on standard output gives the address as soon as requests are accepted.

    Returns:
        The exit status: 0 after one signal, 1 after two, or where the server could not start.
    """
    logs.configure(settings.log_level, settings.log_format)
    log.info("settings", extra={"fields": settings.model_dump(mode="json")})
    if settings.is_open:
        log.warning("no keys, and not on this machine alone: everybody who reaches the server may do everything")
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        hint = "; choose another by --port" if error.errno == errno.EADDRINUSE else ""
        return _failed(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}{hint}")
    try:
        with listener:
            announce = partial(_announce, listener, sys.stdout)  # the one of now: a cluster's client redirects it
            if settings.workers > 1:
                return supervisor.run(settings, listener, on_ready=announce)
            serve(settings, listener, StopSignals(), on_ready=announce)
    except RankingError as error:
        return _failed(str(error))
    return 0


class StopSignals:
    """Handles SIGTERM and SIGINT: the first one stops the server, or ends the process where nothing is served yet.

    `repeated` handles every further signal.
    """

    def __init__(self, repeated: Callable[[], None] = lambda: os._exit(CUT_SHORT)) -> None:
        self._repeated, self._stopping = repeated, False
        self._stop: Callable[[], object] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def stops(self, stop: Callable[[], object]) -> None:
        """Set what the first signal calls to stop the server in good order."""
        self._stop = stop

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop is None:
            os._exit(0)  # a thread that loads a model cannot be stopped
        if self._stopping:
            self._repeated()
            return
        self._stopping = True
        self._stop()


def serve(
    settings: Settings,
    listener: socket.socket,
    signals: StopSignals,
    on_ready: Callable[[], None],
    on_beat: Callable[[], None] | None = None,
    shared: SharedBuckets | None = None,
) -> None:
    """Serve on a socket that listens until a signal stops the server; the socket is closed then.

    `on_ready` and `on_beat` are called as by `DrainingServer`. `shared` counts the calls of a key if other processes
    serve beside this one.
    """
    gc.disable()  # until all is loaded: it would look at what only grows, for a fifth of the time of the imports
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_files(settings.max_connections + (len(KINDS) * settings.workers if settings.workers > 1 else 0))

    async def lifetime() -> None:
        async with app.router.lifespan_context(app):
            logs.count_dropped_by(app.state.resources.metrics.log_dropped.inc)
            # The objects that exist now stay. Large requests make Python look for garbage; looking through all of
            # these objects, too, would stop every answer for a tenth of a second.
            gc.collect()
            gc.freeze()
            gc.enable()

            def ready() -> None:
                starting.close()
                on_ready()

            server, loop = DrainingServer(app, ready, on_beat), asyncio.get_running_loop()

            def drain() -> None:
                stopping.enter_context(telling("stopping"))
                server.drain()

            signals.stops(partial(loop.call_soon_threadsafe, drain))
            await server.serve([listener])

    with ExitStack() as starting, ExitStack() as stopping:
        starting.enter_context(telling("starting"))
        with telling("loading the server's code"):  # it takes its time to import; by now a signal ends the process
            from polyrank.service.app import create_app
            from polyrank.service.process.draining import DrainingServer

            app = create_app(settings, shared=shared)
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            runner.run(lifetime())


def _allow_files(many: int) -> None:
    """Let the process open so many files, and as many as the store may need, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = many + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < need:
        allowed = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < need:
            fields = {"may_open": allowed, "would_need": need}
            log.warning("too few files may be open (ulimit -n) for max_connections", extra={"fields": fields})


def _announce(listener: socket.socket, out: TextIO) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    out.write(f"polyrank is ready on {url}\n")
    out.flush()


def _failed(why: str) -> int:
    sys.stderr.write(f"polyrank: {why}\n")
    return 1
