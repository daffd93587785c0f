"""uvicorn's server, stopped without losing a request.

1. Draining begins: `/readyz` is 503, and every answer ends its connection.
2. For `drain_delay_s` new requests are still answered, while balancers learn of it.
3. No new connection can begin; those that have begun are accepted, and the listener is closed.
4. What was accepted is answered, for at most FINISH_SECONDS.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from typing import cast

import uvicorn
from fastapi import FastAPI

from polyrank.service.process.connections import Connection, Connections
from polyrank.service.process.listening import HANDSHAKE_SECONDS, refuse_new
from polyrank.service.resources import Resources

KEEP_ALIVE_SECONDS = 75  # longer than a balancer's idle timeout, so that the balancer is the side that closes
FINISH_SECONDS = 20
TICKS_IN_A_SECOND = 10  # uvicorn's
ACCEPTS_A_TURN = 64  # connections

log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """Serves an app whose lifespan has begun; the caller ends that, and handles signals.

    `on_ready` is called when requests are accepted, and `on_beat` about once a second as long as the event loop and the
    model's thread are alive.
    """

    def __init__(self, app: FastAPI, on_ready: Callable[[], None], on_beat: Callable[[], None] | None = None) -> None:
        resources = cast(Resources, app.state.resources)
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                headers=[("X-Content-Type-Options", "nosniff")],  # what a caller sent comes back in some problems
                lifespan="off",  # the caller enters it, so that its errors reach the caller
                access_log=False,
                proxy_headers=False,  # nothing here asks who connects, or by which scheme
                log_config=None,
                server_header=False,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=FINISH_SECONDS,
            )
        )
        self.server_state: Connections = Connections(
            resources.settings.max_connections, resources.metrics.count_rejected
        )
        self._runtime, self._state = resources.runtime, app.state
        self._on_ready, self._on_beat = on_ready, on_beat
        self._delay = resources.settings.drain_delay_s
        self._shares_socket = resources.settings.workers > 1  # then the parent refuses new connections for all
        self._stops_at: float | None = None

    def drain(self) -> None:
        """Begin to stop; call it in the event loop. A second call changes nothing."""
        if self._stops_at is None:
            self._stops_at = time.monotonic() + self._delay
            log.info("draining", extra={"fields": {"accepts_for_seconds": self._delay}})
            self._state.draining = True
            self.server_state.drain()

    def capture_signals(self) -> "contextlib.AbstractContextManager[None]":  # type: ignore[override]  # uvicorn's is a generator
        """Leave signals alone."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept on the sockets of the caller, then call `on_ready`. Without any uvicorn binds its own."""
        assert sockets, "a server without a socket listens to nobody"
        # uvloop accepts one connection of a socket in a turn of the loop, in which requests go on, too.
        await super().startup([each.dup() for each in sockets for _ in range(ACCEPTS_A_TURN)])
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Look after what needs it about once a second; returns whether it is time to stop accepting."""
        if counter % TICKS_IN_A_SECOND == 0:
            self.server_state.cut_off_unread()
            if self._on_beat is not None and not self._runtime.stuck:
                self._on_beat()
        is_over = self._stops_at is not None and time.monotonic() >= self._stops_at
        return await super().on_tick(counter) or is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what is on its way, stop accepting, and answer what was accepted."""
        self.drain()
        if not self._shares_socket:
            for listener in sockets or ():
                refuse_new(listener)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        await super().shutdown(sockets)
