"""A heartbeat of a server's event loop, in processor time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

BEAT_SECONDS = 0.005


class Beats:
    """Beats on the event loop of an app, and counts those that the loop was too busy for.

    A beat is late by the processor time that the loop's thread spends between two of them. What else runs on the
    machine, and what other threads of the process do, has no say.
    """

    def __init__(self, app: FastAPI) -> None:
        self.missed = 0
        self._at = 0.0
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with inner(app) as state:
                self._at = time.thread_time()
                beating = asyncio.create_task(self._beat())
                yield state
                beating.cancel()

        app.router.lifespan_context = lifespan

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            before, self._at = self._at, time.thread_time()
            # Up to a beat's time may pass in small pieces, and as much in the one that the beat waits for.
            self.missed += max(0, int((self._at - before) / BEAT_SECONDS) - 1)
