"""What scoring costs: every system over stored candidates, beside a context's pass and a Cross-encoder.

    python -m benchmarks.costs [--systems bi poly …] [--counts 50 1000 100000] [--context 128] [--longest 20] [--json]

The models have MiniLM's shape and random weights, and run in float32. A thousand candidates of 6 to 24 tokens are
encoded, and repeated where more are to be scored. Milliseconds are processor time of one thread, the median of five
calls, or one call where that takes longer than two seconds; rows are fetched from main memory. What would take longer
than `--longest` seconds is inferred in proportion to fewer candidates, and marked so. `slope` is how the time of
scoring grows: 1 is in proportion.

Beside them: bytes of a candidate in float16, and multiplications that torch counts for a candidate, as a share of the
architecture's formula (`late_cost`; for a pair of the Cross-encoder 12 T D^2 + 2 T^2 D in each layer of T tokens):
first of candidates of equal length, then of those above, which are padded to the longest. `200, of context` and `times
cross at 200` compare scoring of 200 candidates with the context's pass and with a Cross-encoder.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from benchmarks.random_models import MINILM, Shape, loaded, token_ids, write_base
from benchmarks.timing import processor_seconds, quartiles_ms
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from polyrank.model.inference.runners import FLOAT32, TORCH, Runner
from polyrank.model.rankers.networks import CrossRanker, LateRanker
from polyrank.model.registry import DeformerConfig, MixConfig
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.sequences import Pairs

SHORTEST, LONGEST = 6, 24  # tokens of a candidate
USUAL = 15
ENCODED, SECOND_STAGE, ENCODED_EQUAL = 1000, 200, 100
SLOW_SECONDS = 2.0
_LAYERS = (-3, -2, -1)
SYSTEMS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi"},
    "poly": {"architecture": "poly"},
    "colbert": {"architecture": "colbert"},
    "mix-a": {"architecture": "mix"},
    "mix-b": {"architecture": "mix", "own": MixConfig(layers=_LAYERS)},
    "mix-c": {"architecture": "mix", "own": MixConfig(rows=2, layers=_LAYERS)},
    "mix, 2 rows": {"architecture": "mix", "own": MixConfig(rows=2)},
    "mix, 3 rows": {"architecture": "mix", "own": MixConfig(rows=3)},
    "mix, 5 rows": {"architecture": "mix", "own": MixConfig(rows=5)},
    "virt": {"architecture": "virt"},
    "deformer": {"architecture": "deformer", "own": DeformerConfig()},
    "cross": {"architecture": "cross"},
}
Record = dict[str, Any]


def growth(score: Callable[[int], Any], counts: Sequence[int], longest: float) -> list[Record]:
    """Time scoring of so many candidates each, fewest first; what would take too long follows from those before."""
    rows: list[Record] = []
    for count in counts:
        expected = rows[-1]["ms"] / 1000 * count / rows[-1]["candidates"] if rows else 0.0
        if expected > longest:
            rows.append({"candidates": count, "ms": round(1000 * expected, 1), "inferred": True})
        elif expected > SLOW_SECONDS:
            rows.append({"candidates": count, "ms": round(1000 * processor_seconds(partial(score, count)), 1)})
        else:
            took = quartiles_ms({count: partial(score, count)}, 0.0, 5, processor_seconds)[count]
            rows.append({"candidates": count, "ms": took[0], "quartiles": took[1:]})
    return rows


def slope(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the exponent of growth between the last two counts that were timed; None: there are none."""
    timed = [row for row in rows if not row.get("inferred")][-2:]
    if len(timed) < 2:
        return None
    (few, short), (many, long) = ((row["candidates"], row["ms"]) for row in timed)
    return round(float(np.log(long / short) / np.log(many / few)), 2)


def multiplications(call: Callable[[], Any]) -> float:
    """Count the multiplications of a call's products of matrices, those of attention included."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others are not counted on a CPU
        call()
    return float(counter.get_total_flops()) / 2


def of_layers(shape: Shape, tokens: int) -> float:
    """Return the multiplications of a transformer over a sequence."""
    width = 4 * shape.dim + 2 * shape.feed_forward
    return float(shape.layers * (width * shape.dim * tokens + 2 * tokens**2 * shape.dim))


def of_late(ranker: LateRanker, context: list[int], ids: Sequence[list[int]], given: argparse.Namespace) -> Record:
    """Measure a system that keeps candidates apart."""
    [encoded], stored = ranker.represent_contexts([context]), ranker.represent_candidates(ids)

    def score(count: int) -> None:
        ranker.late_scores(encoded, stored.take(np.arange(count) % len(ids)))

    numbers = stored.first.size + (0 if stored.late is None else stored.late.size)
    rows = growth(score, sorted({SECOND_STAGE, *given.counts}), given.longest)
    told: Record = {"bytes": round(2 * numbers / len(ids)), "growth": rows, "slope": slope(rows)}
    of_context = partial(ranker.represent_contexts, [context])
    told["context_ms"] = quartiles_ms({"context": of_context}, 0.0, 5, processor_seconds)["context"][0]
    if stored.counts is not None:
        equal = ranker.represent_candidates([context[:USUAL]] * ENCODED_EQUAL)
        shares = [_share(ranker, encoded, len(context), some) for some in (equal, stored)]
        told |= {"of_formula": shares[0], "of_formula_with_padding": shares[1]}
    return told


def _share(ranker: LateRanker, encoded: ContextEncoding, tokens: int, stored: Representations) -> float:
    """Return the multiplications of a candidate more, as a share of what the formula says."""
    counted = [
        multiplications(partial(ranker.late_scores, encoded, stored.take(np.arange(count))))
        for count in (ENCODED_EQUAL // 2, ENCODED_EQUAL)
    ]
    assert stored.counts is not None
    rows = stored.counts[ENCODED_EQUAL // 2 : ENCODED_EQUAL].tolist()
    cost = sum(ranker.encoder.late_cost(ranker.config, ranker.encoder.context.dim, tokens, each) for each in rows)
    return round((counted[1] - counted[0]) / cost, 3)


def of_cross(ranker: CrossRanker, context: list[int], ids: Sequence[list[int]], given: argparse.Namespace) -> Record:
    """Measure a Cross-encoder over pairs."""

    def score(count: int) -> None:
        own = [ids[at % len(ids)][1:] for at in range(count)]
        ranker.score_pairs(Pairs([context], own, [0] * count))

    rows = growth(score, sorted({SECOND_STAGE, *given.counts}), given.longest)
    counted = multiplications(partial(score, 1))
    told = {"bytes": 0, "growth": rows, "slope": slope(rows), "context_ms": 0.0}
    return {**told, "of_formula": round(counted / of_layers(given.shape, len(context) + len(ids[0]) - 1), 3)}


def measured(given: argparse.Namespace) -> Record:
    """Measure all systems with one base."""
    rng = np.random.default_rng(0)
    [context] = token_ids(rng, np.array([given.context]), given.shape)
    ids = token_ids(rng, rng.integers(SHORTEST, LONGEST + 1, given.encoded), given.shape)
    found: Record = {}
    with tempfile.TemporaryDirectory() as directory:
        base = write_base(Path(directory, "base"), given.shape)
        for name in given.systems:
            ranker = loaded(base, name.replace(", ", "-"), "cpu", Runner(TORCH, FLOAT32), **SYSTEMS[name])
            measure = of_cross if isinstance(ranker, CrossRanker) else of_late
            found[name] = measure(ranker, context, ids, given)
    return found


def milliseconds(told: Mapping[str, Any], count: int) -> float:
    """Return the time of scoring so many candidates."""
    return float(next(row["ms"] for row in told["growth"] if row["candidates"] == count))


def print_table(found: Mapping[str, Mapping[str, Any]], counts: Sequence[int]) -> None:
    """Print a row for each system; `~` marks what was inferred."""
    print(
        f"| system | context | {' | '.join(f'{count:,}' for count in counts)} | slope | times cross at {counts[1]:,} "
        f"| 200, of context | times cross at 200 | bytes | of formula |\n| --- |{' --- |' * (len(counts) + 7)}"
    )
    for name, told in found.items():
        by_count = {row["candidates"]: row for row in told["growth"]}
        took = [f"{'~' * by_count[count].get('inferred', False)}{by_count[count]['ms']:,.1f}" for count in counts]
        cells = [name, f"{told['context_ms']:.0f}", *took, str(told["slope"])]
        whole = [told["context_ms"] + milliseconds(told, count) for count in (counts[1], SECOND_STAGE)]
        if "cross" in found:
            cells.append(f"{milliseconds(found['cross'], counts[1]) / whole[0]:,.1f}")
        else:
            cells.append("")
        share = milliseconds(told, SECOND_STAGE) / told["context_ms"] if told["context_ms"] else None
        cells.append("" if share is None else f"{share:.2f}")
        times = milliseconds(found["cross"], SECOND_STAGE) / milliseconds(told, SECOND_STAGE) if "cross" in found else 0
        cells += [f"{times:,.0f}" if times else "", f"{told['bytes']:,}", str(told.get("of_formula", ""))]
        print(f"| {' | '.join(cells)} |")


def main(given: Sequence[str] | None = None, shape: Shape = MINILM) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--counts", type=int, nargs="+", default=[50, 1000, 100_000])
    parser.add_argument("--encoded", type=int, default=ENCODED)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--longest", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given, argparse.Namespace(shape=shape))
    torch.set_num_threads(1)
    found = measured(arguments)
    if arguments.json:
        print(orjson.dumps(found).decode())
    else:
        print_table(found, arguments.counts)


if __name__ == "__main__":
    main()
