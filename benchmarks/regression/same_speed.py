"""Compare the speed of two checkouts in turns, within one run: medians, and NEW / OLD with its spread.

    python benchmarks/regression/same_speed.py OLD NEW [--rounds 10] [--only NAME [NAME ...]] [--json]

    rank-1    milliseconds of a `/rank` request, one caller
    rank-16   milliseconds of a `/rank` request, 16 callers: the time of all divided by their number
    scan      milliseconds of a scan of 100,000 random vectors (D = 384, M = 64, k = 10)
    build     seconds of a build of the sample pool, without and with loading the model
    train     seconds of a training step (poly, a batch of 32)

Both sides run all the time, but only one of them works at a time. The side that begins changes with every round, and a
ratio is taken within its round. Processor time is what the working process had of all processors: other work on the
machine changes it much less. Threads are as OMP_NUM_THREADS says, or the default.
"""

import argparse
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from checkouts import Checkout, end_of, machine, read_lines, running, table

REQUESTS = {1: 100, 16: 192}  # of a round, by callers
UNITS = {"rank-1": "ms", "rank-16": "ms", "scan": "ms"}  # all else is in seconds
WORK = ("rank-1", "rank-16", "scan", "build", "train")

Times = dict[str, list[float | None]]  # by name: seconds, and seconds of the processor where they are known
Round = Callable[[], Times]  # does the work once
Rounds = dict[str, dict[str, list[list[float | None]]]]  # by name and side


def load(url: str, bodies: Sequence[bytes], callers: int) -> float:
    """Send `/rank` requests, so many at a time; returns seconds each."""
    failed: list[str] = []
    threads = [
        threading.Thread(target=_call, args=(url, bodies[at::callers], failed), daemon=True) for at in range(callers)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(f"{url}: {len(failed)} callers failed, the first by {failed[0]}")
    return (time.perf_counter() - began) / len(bodies)


def _call(url: str, bodies: Sequence[bytes], failed: list[str]) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        for body in bodies:
            connection.request("POST", "/rank", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise OSError(f"{response.status}: {answer[:300]!r}")
    except (OSError, http.client.HTTPException) as error:
        failed.append(str(error))
    finally:
        connection.close()


@contextmanager
def ranking(checkout: Checkout, callers: int) -> Iterator[Round]:
    """Serve the sample pool, built by the checkout itself; a round sends contexts of the sample conversations."""
    contexts = [row["context"] for row in read_lines(checkout.conversations)]
    bodies = [json.dumps({"context": contexts[at % len(contexts)]}).encode() for at in range(REQUESTS[callers])]
    with tempfile.TemporaryDirectory() as store:
        model = checkout.checkpoints / "chat-poly"
        checkout.polyrank("build", "--model", model, "--pool", checkout.pool, "--store", store, "--backend", "torch")
        with checkout.served(Path(store)) as server:

            def round_() -> Times:
                before = processor_seconds(server.pid)
                seconds = load(server.url, bodies, callers)
                return {f"rank-{callers}": [seconds, (processor_seconds(server.pid) - before) / len(bodies)]}

            round_()  # warm
            yield round_


def processor_seconds(pid: int) -> float:
    """What a process has had of the processors."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as line:
        user, system = line.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def worker(checkout: Checkout, work: str) -> Iterator[Round]:
    """Run `timed.py` in the checkout; a round is one order to it."""
    script = str(Path(__file__).with_name("timed.py"))
    with tempfile.TemporaryDirectory() as folder:
        line = [str(checkout.python), script, work, str(checkout.path), folder]
        with running(line, checkout.path, checkout.environment()) as (process, log):
            orders, answers = process.stdin, process.stdout
            assert orders is not None, "piped"
            assert answers is not None, "piped"

            def answer() -> Times:
                line = answers.readline()
                if not line:
                    sys.exit(f"{work} in {checkout.path} failed\n{end_of(log)}")
                times: Times = json.loads(line)
                return times

            def round_() -> Times:
                orders.write("\n")
                return answer()

            answer()  # it is ready
            yield round_
            orders.close()  # it ends


def prepared(checkout: Checkout, work: str) -> Any:
    """The context manager of a side's rounds."""
    if work.startswith("rank-"):
        return ranking(checkout, int(work.removeprefix("rank-")))
    return worker(checkout, work)


def in_turns(sides: dict[str, Round], rounds: int) -> Rounds:
    taken: Rounds = {}
    for number in range(rounds):
        names = list(sides)
        for side in names if number % 2 == 0 else reversed(names):
            for name, times in sides[side]().items():
                taken.setdefault(name, {each: [] for each in sides})[side].append(times)
    return taken


def ratios(taken: dict[str, list[Any]]) -> list[float] | None:
    """NEW / OLD of each round, sorted; None where the times are not known."""
    if None in taken["old"] + taken["new"]:
        return None
    return sorted(new / old for old, new in zip(taken["old"], taken["new"], strict=True))


def summary(taken: dict[str, list[Any]], unit: str) -> dict[str, Any]:
    """Medians of both sides, and NEW / OLD: the median of the rounds, the middle half, the least and the most."""
    scale = 1000 if unit == "ms" else 1
    seconds, processor = ({side: [each[at] for each in rounds] for side, rounds in taken.items()} for at in (0, 1))
    found, of_processor = ratios(seconds), ratios(processor)
    assert found is not None, "always known"
    middle = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return {
        "unit": unit,
        "old": round(median(seconds["old"]) * scale, 4),
        "new": round(median(seconds["new"]) * scale, 4),
        "ratio": round(median(found), 4),
        "middle_half": [round(middle[0], 4), round(middle[2], 4)],
        "range": [round(found[0], 4), round(found[-1], 4)],
        "ratio_of_processor_time": round(median(of_processor), 4) if of_processor else None,
        "seconds": seconds,
        "processor_seconds": processor,
    }


def measured(checkouts: dict[str, Checkout], work: str, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        sides = {side: stack.enter_context(prepared(each, work)) for side, each in checkouts.items()}
        taken = in_turns(sides, rounds)
    return {name: summary(each, UNITS.get(name, "s")) for name, each in taken.items()}


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    """Print a row for each summary."""
    rows = [cells(name, found) for name, found in figures.items()]
    print(table(["median", "OLD", "NEW", "NEW / OLD", "middle half", "range", "processor time, NEW / OLD"], rows))


def cells(name: str, found: dict[str, Any]) -> list[str]:
    low, high = found["middle_half"]
    least, most = found["range"]
    figures = [f"{found[side]:.4g} {found['unit']}" for side in ("old", "new")]
    processor = found["ratio_of_processor_time"]
    spread = [f"{low:.3f} to {high:.3f}", f"{least:.3f} to {most:.3f}"]
    return [name, *figures, f"{found['ratio']:.3f}", *spread, "" if processor is None else f"{processor:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", type=Checkout)
    parser.add_argument("new", metavar="NEW", type=Checkout)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=WORK, default=WORK, metavar="NAME", help=", ".join(WORK))
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line, every round in it")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    checkouts = {"old": given.old, "new": given.new}
    result: dict[str, Any] = {"machine": machine(checkouts), "rounds": given.rounds, "figures": {}}
    for work in given.only:
        print(f"{work} ...", file=sys.stderr, flush=True)
        result["figures"] |= measured(checkouts, work, given.rounds)
    result["machine"]["load_after"] = machine({})["load"]
    print_table(result["figures"])
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
