"""Honest callers beside hostile ones: their answers must be right, in time, and memory may not grow.

    python -m benchmarks.load.hostile [--seconds 600] [--hostile 3] [--pause 0.5] [--only WORDS ...] [--each]

The honest callers send requests whose answers are known from a calm server. The hostile ones, in a process of their
own, send at random the requests of `worst.py` and do what `attacks.py` names; with `--each`, one kind after the other,
16 callers without a pause. A third process asks for /livez at a steady beat. Prints a line of JSON for the calm before,
each load and the calm after: what hostile callers were answered, and what honest callers, the beat and memory did.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.attacks import Attack, Target, kinds
from benchmarks.load.drive import OURS, Running, add_options, cores, mix_of, resident_while, serving, store_of, warm
from benchmarks.load.figures import percentile_ms
from benchmarks.load.threads import spent
from benchmarks.load.worst import BODIES, HOSTILE, JSON, Call
from benchmarks.timing import machine

EACH_PER_S = 4.0  # requests of an honest caller
REQUESTS = 500  # distinct ones, at most; a short run sends fewer
CALM_SECONDS = 60.0  # at most; a shorter load is compared with as short a calm
TIMEOUT_MS = 10_000
# A compaction counts the words of what attackers added, after which other answers are right.
SETTINGS = {"max_timeout_ms": TIMEOUT_MS, "compact_after": 0}
BEAT_SECONDS = 0.02  # between two requests for /livez
STALLED_SECONDS = 60.0  # a beat without an answer for so long has none
APART = 1e-3  # scores may differ so much: texts are read in other batches
REFUSED = (429, 503, 504)  # with these the server says that it has no time for a request


def attack(
    until: float, target: Target, groups: Sequence[Mapping[str, Attack]], callers: int, pause: float, seed: int
) -> Counter[str]:
    """Attack until a time of the monotonic clock, with each group of kinds as often; returns a count of the answers."""
    answers: Counter[str] = Counter()
    is_mixed = sum(map(len, groups)) > 1

    def one(draw: random.Random) -> None:
        os.nice(19)  # of this thread alone: the honest callers measure on the same core
        while time.monotonic() < until:
            group = draw.choice(groups)
            name = draw.choice([*group])
            try:
                answer = group[name](target, draw)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            answers[f"{name}: {answer}" if is_mixed else answer] += 1
            time.sleep(draw.uniform(0, pause))

    _together([threading.Thread(target=one, args=(random.Random(seed + number),)) for number in range(callers)])
    return answers


def _together(threads: Sequence[threading.Thread]) -> None:
    for each in threads:
        each.start()
    for each in threads:
        each.join()


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


def beat(until: float, target: Target) -> Beats:
    """Ask for /livez every `BEAT_SECONDS` over a kept connection until a time of the monotonic clock.

    A server that stalls pays for each beat that is due meanwhile.
    """
    seconds: list[float] = []
    missed = failed = 0
    connection = http.client.HTTPConnection(target.host, target.port, timeout=STALLED_SECONDS)
    due = time.monotonic()
    while due < until:
        time.sleep(max(due - time.monotonic(), 0))
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
    kept = [each for each in got if not (each["id"] or "").startswith(HOSTILE)]
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
            self._expected = [self._ask(connection, body)[1] for body in self._bodies]

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
                wrong = f"status {status}" if status != 200 else difference(self._expected[at], results)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status, wrong = 0, repr(error)
            seen.append(Seen(time.monotonic() - began, status, wrong))
        connection.close()

    def run(self, until: float) -> list[Seen]:
        """Send requests until a time of the monotonic clock."""
        seen: list[Seen] = []
        _together([threading.Thread(target=self._one, args=(each, until, seen)) for each in range(self._callers)])
        return seen


def _times(seconds: Sequence[float], prefix: str = "") -> dict[str, float | None]:
    """Return the median, the 99th percentile and the longest time."""
    shares = {"p50": 50, "p99": 99, "longest": 100}
    return {f"{prefix}{name}_ms": percentile_ms(seconds, share) for name, share in shares.items()}


def honest_figures(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the honest callers' figures; who was refused got no wrong answer."""
    wrong = [each.wrong[:200] for each in seen if each.wrong and each.status not in REFUSED]
    return {
        "right": sum(each.wrong is None for each in seen),
        "wrong": len(wrong),
        "refused": sum(each.status in REFUSED for each in seen),
        **_times([each.seconds for each in seen]),
        "reasons": Counter(wrong).most_common(5),
    }


def settle(server: Running) -> None:
    """Wait, up to a minute, until a server does hardly anything: a kind may leave work to those after it."""
    for _ in range(60):
        before = sum(spent(server.pid).values())
        time.sleep(1.0)
        if sum(spent(server.pid).values()) - before < 0.1:
            return


def use_all(target: Target) -> None:
    """Use each route once: what some load then, such as the network that /explain reads, stays."""
    for path, body in BODIES.items():
        target.ask("POST", path, body)
    target.call(Call("", "GET", "/openapi.json"))


def stretch(
    server: Running, target: Target, honest: Honest, processes: Executor, kind: str, seconds: float, *attacks: Any
) -> dict[str, Any]:
    """Let the honest callers and the beat run for so long, beside attacks if there are any; returns the figures."""
    settle(server)
    until = time.monotonic() + seconds  # this clock is the same in all processes
    attacking = processes.submit(attack, until, target, *attacks) if attacks else None
    beating, asking = processes.submit(beat, until, target), processes.submit(honest.run, until)
    sizes = [size >> 20 for _, size in resident_while(server, seconds)]
    livez, ends = beating.result(), [len(sizes) * at // 10 for at in range(11)]
    return {
        "kind": kind,
        "answers": dict(sorted(attacking.result().items())) if attacking else {},
        "livez": len(livez.seconds),
        "missed": livez.missed,
        "failed": livez.failed,
        **_times(livez.seconds, "livez_"),
        **honest_figures(asking.result()),
        "resident_mib": max(sizes),
        "resident_tenths_mib": [statistics.median(sizes[at:end]) for at, end in pairwise(ends) if end > at],
    }


def pin() -> None:
    """Keep a process off the server's core."""
    if (other := cores()[1]) is not None:
        os.sched_setaffinity(0, {other})


def hostile(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the load; yields what is printed."""
    callers = options.hostile or (16 if options.each else 3)
    pause = options.pause if options.pause is not None else 0.0 if options.each else 0.5
    groups, calm_seconds = kinds(options.only), min(CALM_SECONDS, options.seconds)
    loads = (
        [(name, [{name: group[name]}]) for group in groups for name in group] if options.each else [("mixed", groups)]
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "benchmarks.load.drive"])  # imported once for all processes
    with (
        store_of(options) as store,
        serving(store, SETTINGS, options.polyrank) as server,
        ProcessPoolExecutor(3, context, initializer=pin) as processes,
    ):
        mix, parts = mix_of(options), urlsplit(server.url)
        warm(server, mix)
        requests = mix.realistic(sent=0.33, fresh=0.1, top_k=10, timeout_ms=TIMEOUT_MS)  # a third bring candidates
        distinct = min(REQUESTS, int(options.honest * EACH_PER_S * options.seconds))
        target = Target(parts.hostname or "", parts.port or 80)
        use_all(target)
        honest = Honest(target, options.honest, [next(requests) for _ in range(distinct)])
        list(processes.map(time.sleep, [1.0] * 3))  # each process has started
        run = partial(stretch, server, target, honest, processes)
        yield machine() | run("calm before", calm_seconds)
        for kind, chosen in loads:
            yield run(kind, options.seconds, chosen, callers, pause, options.seed)
        yield run("calm after", calm_seconds)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.set_defaults(seconds=600.0)
    made.add_argument("--hostile", type=int, help="attackers at a time; default: 3, and 16 with --each")
    made.add_argument("--honest", type=int, default=5, help="each sends four requests a second; default: 5")
    made.add_argument("--pause", type=float, help="seconds at most after an attack; default: 0.5, and 0 with --each")
    made.add_argument("--only", nargs="+", default=(), metavar="WORDS", help="kinds whose name holds one of these")
    made.add_argument("--each", action="store_true", help="one kind after the other, each for all of the seconds")
    made.add_argument("--polyrank", nargs="+", default=OURS, help="the command of the server; default: this checkout's")
    return made


def main() -> int:
    for found in hostile(parser().parse_args()):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
