"""The load generator: HTTP/1.1 over kept connections, in a process and on a core of its own.

    python -m benchmarks.load.generator PLAN.json ANSWERS.json

An open phase sends by a schedule drawn beforehand, whatever the server does, and counts from when a request was due. In
a closed phase so many callers each wait for their answer and, if refused, for as long as Retry-After says. Phases
follow each other without a pause; requests that are still unanswered go on.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from benchmarks.load.figures import Answer, poisson

HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
KEPT_SECONDS = 30.0
GIVE_UP_SECONDS = 60.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of load: `rate` a second at random times drawn by `seed`, or `concurrency` at a time."""

    seconds: float
    rate: float = 0.0
    seed: int = 0
    concurrency: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send where; `bodies` is a file of JSON lines, taken in turn over all phases."""

    url: str
    path: str
    bodies: str
    core: int | None
    phases: tuple[Phase, ...]
    timings: bool = False


class Client:
    """Sends bodies over as many connections as are needed at a time."""

    def __init__(self, plan: Plan) -> None:
        parts = urlsplit(plan.url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.timings = plan.timings
        bodies = Path(plan.bodies).read_bytes().splitlines()
        heads = [HEAD.format(path=plan.path, host=parts.netloc, length=len(each)).encode() for each in bodies]
        self.requests = [head + body for head, body in zip(heads, bodies, strict=True)]
        self.turn = count()
        self.idle: list[tuple[float, Connection]] = []  # since when
        self.answers: list[Answer] = []

    async def send(self, phase: int, began: float, scheduled: float) -> Answer:
        """Send the next body now, and record the result."""
        request = self.requests[next(self.turn) % len(self.requests)]
        late = time.monotonic() - began - scheduled
        status, retry_after, body = 0, None, b""
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                status, retry_after, body = await self._exchange(request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        seconds = time.monotonic() - began - scheduled
        told = json.loads(body) if self.timings and status == 200 else {}
        own = told.get("timings_ms"), told.get("request_id", "")
        answer = Answer(phase, scheduled, late, seconds, status, retry_after, *own)
        self.answers.append(answer)
        return answer

    async def _exchange(self, request: bytes) -> tuple[int, int | None, bytes]:
        reader, writer = self._kept() or await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(_number(head, b"content-length") or 0)
        except BaseException:
            writer.close()
            raise
        if b"\r\nconnection: close\r\n" in head:
            writer.close()
        else:
            self.idle.append((time.monotonic(), (reader, writer)))
        return int(head[9:12]), _number(head, b"retry-after"), body

    def _kept(self) -> Connection | None:
        """Return a connection that was used a moment ago; the server may be closing older ones."""
        while self.idle:
            since, connection = self.idle.pop()
            if time.monotonic() - since < KEPT_SECONDS:
                return connection
            connection[1].close()
        return None

    async def open(self, number: int, phase: Phase) -> list[asyncio.Task[Answer]]:
        """Send by the schedule; returns the requests, which may still be unanswered."""
        began, sent = time.monotonic(), []
        for due in poisson(phase.rate, phase.seconds, phase.seed):
            if (wait := began + due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            sent.append(asyncio.ensure_future(self.send(number, began, due)))
        await asyncio.sleep(began + phase.seconds - time.monotonic())
        return sent

    async def closed(self, number: int, phase: Phase) -> None:
        """Let so many callers send requests until the time is over."""
        began = time.monotonic()

        async def one_after_another() -> None:
            while (now := time.monotonic() - began) < phase.seconds:
                answer = await self.send(number, began, now)
                await asyncio.sleep(answer.retry_after or 0)

        await asyncio.gather(*(one_after_another() for _ in range(phase.concurrency)))


def _number(head: bytes, name: bytes) -> int | None:
    """Read the number of a header from a head in lower case."""
    value = head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0]
    return int(value) if value else None


async def run(plan: Plan) -> list[Answer]:
    """Run all phases; returns the answers."""
    client, unanswered = Client(plan), list[asyncio.Task[Answer]]()
    for number, phase in enumerate(plan.phases):
        if phase.concurrency:
            await client.closed(number, phase)
        else:
            unanswered += await client.open(number, phase)
    await asyncio.gather(*unanswered)
    for _, (_, writer) in client.idle:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return client.answers


def read_plan(text: str) -> Plan:
    """Read a plan as `asdict` writes it."""
    fields: dict[str, Any] = json.loads(text)
    return Plan(**{**fields, "phases": tuple(Phase(**each) for each in fields["phases"])})


def lines(answers: list[Answer]) -> Iterator[str]:
    """Format the answers, one JSON object a line."""
    return (json.dumps(asdict(each)) + "\n" for each in answers)


def main() -> int:
    plan = read_plan(Path(sys.argv[1]).read_text())
    if plan.core is not None:
        os.sched_setaffinity(0, {plan.core})
    gc.disable()  # nothing here is in reference cycles, and a pause would count as the server's
    answers = uvloop.run(run(plan))
    with open(sys.argv[2], "w") as out:
        out.writelines(lines(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
