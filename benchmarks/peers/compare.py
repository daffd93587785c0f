"""Shared by all comparisons: options, participants, tables and files of results."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.load.drive import REPOSITORY, table
from benchmarks.load.mix import SAMPLE
from benchmarks.peers.contest import Side, contest, sides
from benchmarks.peers.environments import CACHE, python_of
from benchmarks.peers.models import base_in
from benchmarks.peers.ratios import Figure, ratios, rows
from benchmarks.timing import machine

RESULTS = REPOSITORY / "benchmarks" / "results"
# sentence-transformers' default; then the back-ends its documentation recommends for CPUs; then less precise ones.
VARIANTS = ("torch", "openvino", "onnx", "onnx-O3", "openvino-f16", "openvino-f32", "torch-bf16", "onnx-int8")
CALL_COLUMNS = ("work", "threads", "who", "ms", "times_ours", "cosine")
SERVER_COLUMNS = (
    "candidates", "callers", "who", "per_second", "p50_ms", "p99_ms", "per_second_times", "p50_times", "p99_times",
    "overhead_ms",
)  # fmt: skip
ENVIRONMENTS = {"torch": "sentence-transformers", "openvino": "openvino", "onnx": "onnx"}


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Make the parser with the options of all comparisons."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SAMPLE / "conversations.jsonl", help="default: the bundled sample")
    parser.add_argument(
        "--pool", type=Path, nargs="+", default=[SAMPLE / "pool.jsonl"], help="default: the bundled sample"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"environments and models; default: {CACHE}")
    parser.add_argument("--output", type=Path, default=RESULTS, help=f"folder of results; default: {RESULTS}")
    return parser


class Work(NamedTuple):
    """What is timed: a call of the workers, its inputs, and the number of pieces of work in all inputs."""

    name: str
    call: str
    inputs: Sequence[Any]
    count: int  # type: ignore[assignment]  # no other method of a tuple is meant


def compared(
    subject: str,
    ours: Mapping[str, tuple[str, str]],
    works: Sequence[Work],
    threads: Sequence[int],
    options: argparse.Namespace,
    alike: tuple[str, Sequence[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Time all works for each number of threads; returns a row for each side.

    Args:
        subject: "encode" or "rerank", of the peers.
        ours: the work of `polyrank_worker` and its precision, of each side of ours.
        works: what to time.
        threads: with how many, one number after the other.
        options: values of `parser_of`.
        alike: a call for which all sides of the same weights should give the same vectors, and its input; each row gets
            the smallest cosine between its vectors and those of sentence-transformers' default.
    """
    models = options.cache / "models"
    base_in(models)
    commands = {
        name: command_of(sys.executable, "polyrank_worker", work, models, "--precision", precision)
        for name, (work, precision) in ours.items()
    }
    for variant in VARIANTS:
        python = python_of(ENVIRONMENTS[variant.partition("-")[0]], options.cache)
        commands[variant] = command_of(python, "st_worker", subject, models, "--variant", variant)
    found = []
    for number in threads:
        with sides(commands, number) as competitors:
            about: dict[str, dict[str, Any]] = {side.name: {"about": side.about} for side in competitors}
            for name, cosine in (_cosines(competitors, *alike) if alike else {}).items():
                about[name]["cosine"] = cosine
            for work in works:
                took = contest(competitors, work.call, work.inputs, options.rounds)
                told = rows(took, work.count, {"work": work.name, "threads": number})
                found += [{**row, **about[row["who"]]} for row in told]
                print(f"{work.name}, {number} threads: {ratios(took)}", file=sys.stderr, flush=True)
    return found


def _cosines(competitors: Sequence[Side], call: str, given: Sequence[Any]) -> dict[str, float]:
    """Return the smallest cosine of each side's vectors to the reference's; nothing if the reference is not there."""
    vectors = {side.name: np.asarray(side.results(call, [given])[0], np.float64) for side in competitors}
    for each in vectors.values():
        each /= np.linalg.norm(each, axis=1, keepdims=True)
    reference = vectors.get(VARIANTS[0])
    if reference is None:
        return {}
    return {name: round(float((each * reference).sum(axis=1).min()), 6) for name, each in vectors.items()}


def command_of(python: str | Path, worker: str, subject: str, models: Path, *options: object) -> list[object]:
    """Return the command of a worker."""
    return [python, "-m", f"benchmarks.peers.{worker}", subject, "--models", models, *options]


def finish(name: str, found: list[dict[str, Any]], columns: Sequence[str], options: argparse.Namespace) -> int:
    """Print a table, and everything as JSON in the last line; write the JSON to the folder of results."""
    told = {"commit": _commit(), "machine": machine(), "seed": options.seed}
    result = {"benchmark": name, **told, "rows": found}
    print(table([in_words(row) for row in found], columns))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


def in_words(row: dict[str, Any]) -> dict[str, Any]:
    """Format the values of a row for a table."""
    figure = {"median", "low", "high"}
    return {
        key: str(Figure(**value))
        if isinstance(value, dict) and set(value) == figure
        else ""
        if value is None
        else value
        for key, value in row.items()
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match", ""]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY).stdout.strip()
