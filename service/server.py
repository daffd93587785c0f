"""Run the app with uvicorn, in one process, until it is told to stop."""

import asyncio
import logging
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from model.errors import RankingError
from service import logs
from service.app import create_app
from service.settings import Settings

KEEP_ALIVE_SECONDS = 75  # above a balancer's idle timeout: the side that closes first must be the balancer
DRAIN_SECONDS = 20

log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C; requests that have begun are answered first.

    Once requests are accepted, a line on standard output tells where.

    Returns:
        The exit status: 0 stopped as told, 1 could not start.
    """
    logs.configure(settings.log_level, settings.log_format)
    log.info("settings", extra={"fields": settings.model_dump(mode="json")})
    try:
        listener = _bind(settings.host, settings.port)
    except OSError as error:
        return _failed(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with listener, asyncio.Runner(loop_factory=_config(None).get_loop_factory()) as runner:
            runner.run(_serve(create_app(settings), listener))
    except RankingError as error:
        return _failed(str(error))
    except KeyboardInterrupt:  # while loading
        pass
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    return 0


def _failed(why: str) -> int:
    sys.stderr.write(f"polyrank: {why}\n")
    return 1


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _config(app: FastAPI | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # None where only the event loop is asked for
        lifespan="off",  # entered below, so that its errors come as they are
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


async def _serve(app: FastAPI, listener: socket.socket) -> None:
    async with app.router.lifespan_context(app):
        # uvicorn raises the signals it has handled once more when it is done; stopping as told is no failure.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        await _AnnouncedServer(_config(app)).serve([listener])


class _AnnouncedServer(uvicorn.Server):
    """Tells when it accepts requests."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept, then tell."""
        await super().startup(sockets)
        assert sockets, "bound before"
        host, port = sockets[0].getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        sys.stdout.write(f"polyrank is ready on {url}\n")
        sys.stdout.flush()
