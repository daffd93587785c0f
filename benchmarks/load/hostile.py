"""Honest callers beside hostile ones: their answers must be right, in time, and memory may not grow.

    python -m benchmarks.load.hostile [--seconds 600] [--workers 2] [--hostile 3] [--pause 0.5] [--only WORDS ...]
        [--each]

The honest callers send requests whose answers are known from a calm server, and say of each which reply was chosen. The
hostile ones, in a process of their own, send at random the requests of `worst.py` and do what `attacks.py` names; with
`--each`, one kind after the other, 16 callers without a pause. Two more processes ask for /livez at a steady beat, over
a kept connection and over new ones. Prints a line of JSON for the calm before, each load and the calm after: what
hostile callers were answered, and what honest callers, the beats and memory did. The last line says how many events
were acknowledged to honest callers, and how many of them the log holds once the server has stopped.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import resource
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
from benchmarks.load.drive import Running, add_options, cores, mix_of, resident_while, serving, store_of, warm
from benchmarks.load.figures import percentile_ms
from benchmarks.load.worst import BODIES, HOSTILE, JSON, Call
from benchmarks.timing import machine

from polyrank.service.feedback.reading import uses

EACH_PER_S = 4.0  # requests of an honest caller
REQUESTS = 500  # distinct ones, at most; a short run sends fewer
CALM_SECONDS = 60.0  # at most; a shorter load is compared with as short a calm
TIMEOUT_MS = 10_000
# A compaction counts the words of what attackers added, after which other answers are right.
SETTINGS = {"max_timeout_ms": TIMEOUT_MS, "compact_after": 0, "feedback": "texts"}
BEAT_SECONDS = 0.02  # between two requests for /livez
NEW_BEAT_SECONDS = 0.05  # the same, where each has a connection of its own
STALLED_SECONDS = 60.0  # a beat without an answer for so long has none
HARDLY_SECONDS = 0.2  # of the processor, in two
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
                ended = group[name](target, draw)
            except (OSError, http.client.HTTPException) as error:
                ended = type(error).__name__
            every = [ended] if isinstance(ended, str) else ended
            answers.update(f"{name}: {each}" if is_mixed else each for each in every)
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


def beat(until: float, target: Target, apart: float = BEAT_SECONDS, are_new: bool = False) -> Beats:
    """Ask for /livez so often, in seconds, over a kept or new connections until a time of the monotonic clock.

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
            if are_new:
                connection.close()
        except (OSError, http.client.HTTPException):
            connection.close()
            failed += 1
        now = time.monotonic()
        late = [now - due]
        while (due := due + apart) <= now:
            late.append(now - due)
        seconds += late
        missed += len(late) - 1
    connection.close()
    return Beats(seconds, missed, failed)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an honest caller got.

    Attributes:
        wrong: why an answer was not as it should be.
        said: what was said of it: the ranking, where the event was acknowledged; an empty text, where it was not.
    """

    seconds: float
    status: int
    wrong: str | None
    said: str | None = None


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
            self._expected = [self._ask(connection, body)[1]["results"] for body in self._bodies]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._target.host, self._target.port, timeout=TIMEOUT_MS / 1000 + 5)

    def _ask(self, connection: http.client.HTTPConnection, body: bytes, path: str = "/rank") -> tuple[int, Any]:
        connection.request("POST", path, body, dict(JSON))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def _say(self, connection: http.client.HTTPConnection, told: Any) -> str:
        """Say that the first reply was chosen; returns the ranking, or an empty text where nothing is acknowledged."""
        first = told["results"][0]
        reply = {"text": first["text"]} if first["id"] is None else {"id": first["id"]}
        event = {"ranking_id": told["ranking_id"], "event_id": "a", "kind": "chosen", **reply}
        status, taken = self._ask(connection, json.dumps({"events": [event]}).encode(), "/feedback")
        return told["ranking_id"] if status == 200 and taken["accepted"] + taken["repeated"] else ""

    def _one(self, number: int, until: float, seen: list[Seen]) -> None:
        draw, due = random.Random(number), time.monotonic()
        connection = self._connect()
        while (due := max(due + draw.expovariate(EACH_PER_S), time.monotonic())) < until:
            time.sleep(max(due - time.monotonic(), 0))
            at = draw.randrange(len(self._bodies))
            began, said = time.monotonic(), None
            try:
                status, told = self._ask(connection, self._bodies[at])
                wrong = f"status {status}" if status != 200 else difference(self._expected[at], told["results"])
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status, wrong = 0, repr(error)
            took = time.monotonic() - began
            if status == 200:
                try:
                    said = self._say(connection, told)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    said = ""
            seen.append(Seen(took, status, wrong, said))
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
        "said": sum(bool(each.said) for each in seen),
        "not_said": sum(each.said == "" for each in seen),
        **_times([each.seconds for each in seen]),
        "reasons": Counter(wrong).most_common(5),
    }


def settle(server: Running) -> None:
    """Wait, up to a minute, until a server does hardly anything: a kind may leave work to those after it."""
    for _ in range(30):
        before = server.spent()
        time.sleep(2.0)
        if server.spent() < before + HARDLY_SECONDS:
            return


def use_all(target: Target) -> None:
    """Use each route once: what some load then, such as the network that /explain reads, stays."""
    for path, body in BODIES.items():
        target.ask("POST", path, body)
    target.call(Call("", "GET", "/openapi.json"))


def stretch(
    server: Running,
    target: Target,
    honest: Honest,
    processes: Executor,
    acknowledged: list[str],
    kind: str,
    seconds: float,
    *attacks: Any,
) -> dict[str, Any]:
    """Let the honest callers and the beats run for so long, beside attacks if there are any; returns the figures."""
    settle(server)
    until = time.monotonic() + seconds  # this clock is the same in all processes
    attacking = processes.submit(attack, until, target, *attacks) if attacks else None
    beating, asking = processes.submit(beat, until, target), processes.submit(honest.run, until)
    beating_new = processes.submit(beat, until, target, NEW_BEAT_SECONDS, True)
    sizes = [size >> 20 for _, size in resident_while(server, seconds)]
    livez, ends = beating.result(), [len(sizes) * at // 10 for at in range(11)]
    new, seen = beating_new.result(), asking.result()
    acknowledged += [each.said for each in seen if each.said]
    return {
        "kind": kind,
        "answers": dict(sorted(attacking.result().items())) if attacking else {},
        "livez": len(livez.seconds),
        "missed": livez.missed,
        "failed": livez.failed + new.failed,
        **_times(livez.seconds, "livez_"),
        **_times(new.seconds, "livez_new_"),
        **honest_figures(seen),
        "resident_mib": max(sizes),
        "resident_tenths_mib": [statistics.median(sizes[at:end]) for at, end in pairwise(ends) if end > at],
    }


def prepare() -> None:
    """Keep a process off the server's core, and let it open many connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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
    acknowledged = list[str]()
    with store_of(options) as store:
        with (
            serving(store, SETTINGS | {"workers": options.workers}) as server,
            ProcessPoolExecutor(4, context, initializer=prepare) as processes,
        ):
            mix, parts = mix_of(options), urlsplit(server.url)
            warm(server, mix)
            requests = mix.realistic(sent=0.33, fresh=0.1, top_k=10, timeout_ms=TIMEOUT_MS)  # a third bring candidates
            distinct = min(REQUESTS, int(options.honest * EACH_PER_S * options.seconds))
            target = Target(parts.hostname or "", parts.port or 80)
            use_all(target)
            honest = Honest(target, options.honest, [next(requests) for _ in range(distinct)])
            list(processes.map(time.sleep, [1.0] * 4))  # each process has started
            run = partial(stretch, server, target, honest, processes, acknowledged)
            yield machine() | run("calm before", calm_seconds)
            for kind, chosen in loads:
                yield run(kind, options.seconds, chosen, callers, pause, options.seed)
            yield run("calm after", calm_seconds)
        kept = {use.ranking.id for use in uses(store) if any(event.kind == "chosen" for event in use.events)}
        yield {"acknowledged": len(acknowledged), "lost": len({*acknowledged} - kept)}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.set_defaults(seconds=600.0)
    made.add_argument("--hostile", type=int, help="attackers at a time; default: 3, and 16 with --each")
    made.add_argument("--honest", type=int, default=5, help="each sends four requests a second; default: 5")
    made.add_argument("--workers", type=int, default=1, help="of the server; default: 1")
    made.add_argument("--pause", type=float, help="seconds at most after an attack; default: 0.5, and 0 with --each")
    made.add_argument("--only", nargs="+", default=(), metavar="WORDS", help="kinds whose name holds one of these")
    made.add_argument("--each", action="store_true", help="one kind after the other, each for all of the seconds")
    return made


def main() -> int:
    for found in hostile(parser().parse_args()):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
