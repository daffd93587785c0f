"""What recording costs: `/rank` with the setting `feedback` off and on texts, in turns over one store.

    python -m benchmarks.load.feedback [--callers 16] [--seconds 10] [--rounds 10] [--pool POOL --data DIALOGUES]

With `--trial MODEL`, what a canary costs instead: both servers record texts, and that of a second store has this model
on trial for a tenth of the conversations.

Both servers stay loaded on one core, and only one is asked at a time; the one that begins changes with every round. The
table has p50 and p99 of a caller's wait and the processor time of an answer: medians over the rounds, and the ratio of
the second server to the first as median, least and most of the rounds. Prints one JSON object as the last line.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load.drive import Running, add_options, drive, mix_of, serving, store_of, table, warm
from benchmarks.load.figures import percentile_ms
from benchmarks.load.generator import Phase
from benchmarks.load.mix import Mix
from benchmarks.timing import machine

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.service.feedback.reading import uses

OFF, ON, TRIAL = "off", "texts", "trial"
SHARE = 0.1
FIGURES = ("p50, ms", "p99, ms", "processor, ms")


@contextmanager
def both(options: argparse.Namespace) -> Iterator[dict[str, tuple[Path, str]]]:
    """Yield the two servers by name: the store of each, and its setting `feedback`."""
    with store_of(options) as store:
        if options.trial is None:
            yield {OFF: (store, OFF), ON: (store, ON)}
            return
        with store_of(options) as second:
            rows = [row for row in read_pool([options.pool]) if isinstance(row, Candidate)]
            built = build(load_vector_ranker(options.trial), rows, second, BuildOptions(activate=False))
            GenerationStore(second).begin_trial(built.generation, SHARE)
            yield {ON: (store, ON), TRIAL: (second, ON)}


def asked(server: Running, mix: Mix, phase: Phase) -> dict[str, float]:
    """Ask one server; returns the FIGURES."""
    before = sum(server.spent_by_thread().values())
    [answers] = drive(server, mix.realistic(sent=0.0, fresh=0.0, timeout_ms=30_000), [phase])
    used = sum(server.spent_by_thread().values()) - before
    if failed := [each.status for each in answers if each.status != 200]:
        raise SystemExit(f"{len(failed)} of {len(answers)} requests failed, the first with {failed[0]}")
    waits = [each.seconds for each in answers]
    p50, p99 = (percentile_ms(waits, percent) or 0.0 for percent in (50, 99))
    return dict(zip(FIGURES, (p50, p99, 1000 * used / len(answers)), strict=True))


def compared(rounds: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Make the rows of the table."""
    rows, (first, second) = [], rounds
    for name in FIGURES:
        before, after = ([each[name] for each in rounds[side]] for side in (first, second))
        ratios = sorted(own / other for own, other in zip(after, before, strict=True))
        told = {first: median(before), second: median(after)}
        told |= {"ratio": median(ratios), "least": ratios[0], "most": ratios[-1]}
        rows.append({"figure": name, **{key: round(value, 3) for key, value in told.items()}})
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.set_defaults(seconds=10.0)
    parser.add_argument("--callers", type=int, default=16, help="at a time; default: 16")
    parser.add_argument("--rounds", type=int, default=10, help="default: 10")
    parser.add_argument("--trial", metavar="MODEL", help=f"have it on trial for a share of {SHARE:g} on one server")
    options = parser.parse_args()
    mix, phase = mix_of(options), Phase(options.seconds, concurrency=options.callers)
    rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
    with both(options) as places, ExitStack() as stack:
        sides = [
            (side, stack.enter_context(serving(store, {"feedback": feedback})))
            for side, (store, feedback) in places.items()
        ]
        for _, server in sides:
            warm(server, mix)
        for number in range(options.rounds):
            for side, server in sides[:: -1 if number % 2 else 1]:
                rounds[side].append(asked(server, mix, phase))
        store, _ = [*places.values()][-1]
        written = sum(path.stat().st_size for path in Path(store, "feedback").iterdir())
        taken = Counter(use.ranking.side for use in uses(store) if use.ranking.replaced is None)
    rows = compared(rounds)
    print(table(rows, list(rows[0])), flush=True)
    told = {"machine": machine(), "written_bytes": written, "sides": taken, "figures": rows, "rounds": rounds}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
