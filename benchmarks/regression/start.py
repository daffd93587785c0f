"""Compare how long two checkouts take to start, in turns, within one run: medians, and NEW / OLD with its spread.

    python benchmarks/regression/start.py OLD NEW [--rounds 5]

    first   seconds of `serve` to ready, where nothing is kept from an earlier start
    second  seconds of `serve` to ready, after that
    memory  megabytes that the second one has in memory then, with what it has mapped of files
    build   seconds of a build of five replies, after that
    rank    seconds of `rank --store`, after that

Every round of a side begins with an empty directory of caches. The side that begins changes with every round, and a
ratio is taken within its round. Processor time, user and system, is of the process alone: other work on the machine
changes it much less. A line on standard error tells each round's figures.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from checkouts import READY, Checkout, end_of, running
from same_speed import Round, Times, in_turns, print_table, processor_seconds, summary

REPLIES = 5
HUB = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")  # base models stay where they are


def timed(checkout: Checkout, arguments: Sequence[object], variables: dict[str, str]) -> list[float | None]:
    """Run a command to its end; returns its seconds, and seconds of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    checkout.polyrank(*arguments, **variables)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return [seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]


def until_ready(checkout: Checkout, store: Path, variables: dict[str, str]) -> tuple[list[float | None], float]:
    """Start a server and stop it; returns its seconds until it was ready, those of the processor, and its megabytes."""
    began = time.perf_counter()
    line = [*checkout.command, "serve", "--store", str(store), "--port", "0"]
    told = checkout.environment(POLYRANK_DRAIN_DELAY_S="0", **variables)
    with running(line, checkout.path, told) as (process, log):
        assert process.stdout is not None, "piped"
        if not next((each for each in process.stdout if each.startswith(READY)), None):
            sys.exit(f"{' '.join(line)} did not start\n{end_of(log)}")
        taken: list[float | None] = [time.perf_counter() - began, processor_seconds(process.pid)]
        megabytes = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
        process.terminate()
    return taken, megabytes


@contextmanager
def starting(checkout: Checkout) -> Iterator[Round]:
    """Build five replies with the checkout itself; a round starts everything once."""
    with tempfile.TemporaryDirectory() as folder:
        pool, store = Path(folder, "pool.jsonl"), Path(folder, "store")
        with checkout.pool.open(encoding="utf-8") as lines:
            pool.write_text("".join(islice(lines, REPLIES)), encoding="utf-8")
        build = ("build", "--model", checkout.checkpoints / "chat-poly", "--pool", pool, "--store", store)
        checkout.polyrank(*build, "--backend", "torch", XDG_CACHE_HOME=folder, HF_HOME=HUB)

        def round_() -> Times:
            with tempfile.TemporaryDirectory() as caches:
                variables = {"XDG_CACHE_HOME": caches, "HF_HOME": HUB}
                times: Times = {"first": until_ready(checkout, store, variables)[0]}
                times["second"], megabytes = until_ready(checkout, store, variables)
                times["memory"] = [megabytes, None]
                times["build"] = timed(checkout, build, variables)
                times["rank"] = timed(checkout, ("rank", "where is my parcel?", "--store", store), variables)
            print(f"{checkout.path}: {json.dumps(times)}", file=sys.stderr, flush=True)
            return times

        yield round_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", type=Checkout)
    parser.add_argument("new", metavar="NEW", type=Checkout)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    checkouts = {"old": given.old, "new": given.new}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(starting(each)) for side, each in checkouts.items()}
        taken = in_turns(sides, given.rounds)
    print_table({name: summary(each, "MB" if name == "memory" else "s") for name, each in taken.items()})


if __name__ == "__main__":
    main()
