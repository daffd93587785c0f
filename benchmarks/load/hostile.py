"""Honest callers beside hostile ones: their answers must be right, in time, and memory may not grow.

    python -m benchmarks.load.hostile [--seconds 600] [--hostile 3] [--pause 0.5] [--only KIND ...] [--each]

The honest callers send requests whose answers are known from a calm server. The hostile ones, in a process of their
own, send at random what `benchmarks.load.attacks` names, or those kinds alone, or one kind after the other. A third
process asks for /livez at a steady beat. Prints a table, and one JSON object: what honest callers, the beat and memory
did in calm before, under each load and in calm after, and what each attack was answered.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.attacks import ATTACKS, HOSTILE_IDS, JSON, Target
from benchmarks.load.drive import Running, add_options, cores, mix_of, resident_while, serving, store_of, table, warm
from benchmarks.load.figures import percentile_ms

from polyrank.service.cli.measuring.timing import machine

EACH_PER_S = 4.0  # requests of an honest caller
REQUESTS = 500  # distinct ones, at most; a short run sends fewer
CALM_SECONDS = 60.0  # at most; a shorter load is compared with as short a calm
TIMEOUT_MS = 10_000
BEAT_SECONDS = 0.02  # between two requests for /livez
STALLED_SECONDS = 60.0  # a beat without an answer for so long has none
APART = 1e-3  # scores may differ so much: texts are read in other batches
REFUSED = (429, 503, 504)  # with these the server says that it has no time for a request
COLUMNS = ("load", "right", "wrong", "refused", "p50_ms", "p99_ms", "livez_p50_ms", "livez_p99_ms", "livez_longest_ms",
           "missed", "resident_mib", "per_s")  # fmt: skip


@contextmanager
def beside(run: Callable[..., Any], *arguments: Any) -> Iterator[list[Any]]:
    """Let a function run in a process of its own for the `with` block; the list then holds what it returned.

    The function gets the event that ends it before its arguments.
    """
    context = multiprocessing.get_context("forkserver")  # the first process imports, the others are there at once
    ready, over, told = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=_tell, args=(run, ready, over, arguments, told))
    process.start()
    found: list[Any] = []
    try:
        ready.wait(timeout=STALLED_SECONDS)
        yield found
    finally:
        over.set()
        found.append(told.get(timeout=2 * STALLED_SECONDS))
        process.join()


def _tell(run: Callable[..., Any], ready: Event, over: Event, arguments: Sequence[Any], told: "Queue[Any]") -> None:
    ready.set()
    told.put(run(over, *arguments))


def attack(
    over: Event, target: Target, callers: int, pause: float, names: Sequence[str], seed: int
) -> list[tuple[tuple[str, str], int]]:
    """Attack until `over`; returns (name of the attack, answer) and how often that was."""
    os.nice(19)  # the honest callers measure on the same core
    counts: Counter[tuple[str, str]] = Counter()

    def one(draw: random.Random) -> None:
        while not over.wait(draw.uniform(0, pause)):
            name = draw.choice(names)
            try:
                answer = ATTACKS[name](target, draw)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            counts[name, answer] += 1

    threads = [threading.Thread(target=one, args=(random.Random(seed + number),)) for number in range(callers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sorted(counts.items())


@dataclass(frozen=True, slots=True)
class Beats:
    """What a steady beat of requests for /livez found.

    Attributes:
        seconds: for each beat, from when it was due to its answer.
        missed: beats that were due while an earlier one had no answer.
        failed: answers other than 200, and connections that were cut.
    """

    seconds: list[float]
    missed: int
    failed: int


def beat(over: Event, target: Target) -> Beats:
    """Ask for /livez every `BEAT_SECONDS` over a kept connection until `over`.

    A server that stalls pays for each beat that is due meanwhile.
    """
    seconds: list[float] = []
    missed = failed = 0
    connection = http.client.HTTPConnection(target.host, target.port, timeout=STALLED_SECONDS)
    due = time.monotonic()
    while not over.wait(max(due - time.monotonic(), 0)):
        try:
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            answer.read()
            failed += answer.status != 200
        except (OSError, http.client.HTTPException):
            connection.close()
            failed += 1
        now = time.monotonic()
        late = [now - due]
        while (due := due + BEAT_SECONDS) <= now:
            late.append(now - due)
        seconds += late
        missed += len(late) - 1
    connection.close()
    return Beats(seconds, missed, failed)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an honest caller got: `wrong` says why an answer was not as it should be."""

    seconds: float
    status: int
    wrong: str | None


def difference(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> str | None:
    """Say how an answer differs from the expected one; None: not at all.

    Candidates that attackers added may stand between the others.
    """
    scores = {each["id"] or each["index"]: each["score"] for each in expected}
    kept = [each for each in got if each["id"] not in HOSTILE_IDS]
    for before, now in zip(expected, kept, strict=False):
        known = scores.get(now["id"] or now["index"], before["score"])
        if max(abs(before["score"] - now["score"]), abs(known - now["score"])) > APART:
            return f"{now} in place of {before}"
    return None if len(got) == len(expected) else f"{len(got)} results in place of {len(expected)}"


class Honest:
    """Callers who send known requests at a steady pace."""

    def __init__(self, target: Target, callers: int, requests: Sequence[Mapping[str, Any]]) -> None:
        self._target = target
        self._callers = callers
        self._bodies = [json.dumps(each).encode() for each in requests]
        with closing(self._connect()) as connection:
            self._expected = [self._ask(connection, body) for body in self._bodies]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._target.host, self._target.port, timeout=TIMEOUT_MS / 1000 + 5)

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, Any]:
        connection.request("POST", "/rank", body, dict(JSON))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("results")

    def _one(self, number: int, until: float, seen: list[Seen]) -> None:
        draw, due = random.Random(number), time.monotonic()
        connection = self._connect()
        while (due := max(due + draw.expovariate(EACH_PER_S), time.monotonic())) < until:
            time.sleep(max(due - time.monotonic(), 0))
            at = draw.randrange(len(self._bodies))
            began = time.monotonic()
            try:
                status, results = self._ask(connection, self._bodies[at])
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                seen.append(Seen(time.monotonic() - began, 0, repr(error)))
                continue
            seconds = time.monotonic() - began
            wrong = f"status {status}" if status != 200 else difference(self._expected[at][1], results)
            seen.append(Seen(seconds, status, wrong))
        connection.close()

    def run(self, seconds: float) -> list[Seen]:
        """Send requests for so long."""
        seen: list[Seen] = []
        until = time.monotonic() + seconds
        callers = [threading.Thread(target=self._one, args=(number, until, seen)) for number in range(self._callers)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return seen


def honest_figures(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the honest callers' figures; who was refused got no wrong answer."""
    seconds = [each.seconds for each in seen]
    wrong = [each.wrong[:200] for each in seen if each.wrong and each.status not in REFUSED]
    return {
        "sent": len(seen),
        "right": sum(each.wrong is None for each in seen),
        "wrong": len(wrong),
        "refused": sum(each.status in REFUSED for each in seen),
        "p50_ms": percentile_ms(seconds, 50),
        "p99_ms": percentile_ms(seconds, 99),
        "longest_ms": percentile_ms(seconds, 100),
        "reasons": Counter(wrong).most_common(5),
    }


def stretch(name: str, server: Running, target: Target, honest: Honest, seconds: float) -> dict[str, Any]:
    """Let the honest callers and the beat run for so long; returns the figures."""
    held: list[tuple[float, int]] = []
    watch = threading.Thread(target=lambda: held.extend(resident_while(server, seconds)))
    watch.start()
    with beside(beat, target) as beats:
        seen = honest.run(seconds)
    watch.join()
    [livez], sizes = beats, [size >> 20 for _, size in held]
    ends = [len(sizes) * at // 10 for at in range(11)]
    return {
        "load": name,
        **honest_figures(seen),
        "livez_p50_ms": percentile_ms(livez.seconds, 50),
        "livez_p99_ms": percentile_ms(livez.seconds, 99),
        "livez_longest_ms": percentile_ms(livez.seconds, 100),
        "beats": len(livez.seconds),
        "missed": livez.missed,
        "failed": livez.failed,
        "resident_mib": max(sizes),
        "resident_tenths_mib": [statistics.median(sizes[start:end]) for start, end in pairwise(ends) if end > start],
    }


def hostile(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load; returns the object that is printed."""
    names = options.only or list(ATTACKS)
    calm_seconds = min(CALM_SECONDS, options.seconds)
    with store_of(options) as store, serving(store, {"max_timeout_ms": TIMEOUT_MS}) as server:
        parts = urlsplit(server.url)
        target = Target(parts.hostname or "", parts.port or 80)
        mix = mix_of(options)
        warm(server, mix)
        requests = mix.realistic(sent=0.33, fresh=0.1, top_k=10, timeout_ms=TIMEOUT_MS)  # a third bring candidates
        with apart():
            distinct = min(REQUESTS, int(options.honest * EACH_PER_S * options.seconds))
            honest = Honest(target, options.honest, [next(requests) for _ in range(distinct)])
            before = stretch("calm before", server, target, honest, calm_seconds)
            loads = []
            for kinds in [[name] for name in names] if options.each else [names]:
                attackers = (options.hostile, options.pause, kinds, options.seed)
                began = time.monotonic()
                with beside(attack, target, *attackers) as answers:
                    found = stretch(kinds[0] if len(kinds) == 1 else "mixed", server, target, honest, options.seconds)
                [counts] = answers
                found["per_s"] = round(sum(count for _, count in counts) / (time.monotonic() - began), 1)
                found["attacks"] = {f"{name}: {answer}": count for (name, answer), count in counts}
                loads.append(found)
            after = stretch("calm after", server, target, honest, calm_seconds)
    return {"machine": machine(), "before": before, "loads": loads, "after": after}


@contextmanager
def apart() -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, off the server's core for the `with` block."""
    ours, other = os.sched_getaffinity(0), cores()[1]
    if other is not None:
        os.sched_setaffinity(0, {other})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.set_defaults(seconds=600.0)
    made.add_argument("--hostile", type=int, default=3, help="each makes one attack after another; default: 3")
    made.add_argument("--honest", type=int, default=5, help="each sends four requests a second; default: 5")
    made.add_argument("--pause", type=float, default=0.5, help="seconds at most between two attacks; default: 0.5")
    made.add_argument("--only", nargs="+", choices=ATTACKS, metavar="KIND", help=f"of {', '.join(ATTACKS)}")
    made.add_argument("--each", action="store_true", help="one kind after the other, each for all of the seconds")
    return made


def main() -> int:
    found = hostile(parser().parse_args())
    print(table([found["before"], *found["loads"], found["after"]], COLUMNS))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
