"""What a back-end or a precision changes, beside torch in float32.

    python -m benchmarks.parity scores --data F ... --pool examples/support/pool.jsonl
    python -m benchmarks.parity lists --model checkpoints/chat-poly --data F --runner 'openvino bfloat16' --results R
    python -m benchmarks.parity table --results R

`scores` prints for chat-poly and chat-bi, and each runner: the 99th percentile and the largest of the differences of
scores, of every context with every text of the pool; the share of contexts whose ten best texts are the same set; and
R@1 on each file over its own candidates with the points gained or lost.

`lists` ranks the lists of one file with one model and runner, and appends a line of JSON for every 250 lists. A run
that was stopped goes on where it ended. `table` reads these lines and prints for each model, file and runner R@1, MRR
and their differences from 'openvino float32' over the same lists, each with the ends of its 95 % interval (bootstrap
over dialogues).
"""

import argparse
import gc
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import polyrank
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.inference.runners import Runner
from polyrank.model.measures import group_numbers, intervals, rank_values
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.search.topk import scores_of
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import Dialogue, read_dialogues

MODELS = ("checkpoints/chat-poly", "checkpoints/chat-bi")
REFERENCE = Runner("torch", "float32")
FLOAT32 = "openvino float32"  # which `table` compares the others with
CHUNK = 250  # lists a line of results
RUNNERS = ("openvino float32", "openvino float16", "openvino bfloat16", "openvino int8")
FIGURES = {"R@1": "recall@1", "MRR": "mrr"}
TEXTS = 5000


class Scores(NamedTuple):
    """Scores (contexts, texts), and R@1 of each file."""

    scores: np.ndarray
    first: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    _add_scores(commands.add_parser("scores"))
    _add_lists(commands.add_parser("lists"))
    tabled = commands.add_parser("table")
    tabled.add_argument("--results", type=Path, required=True)
    tabled.set_defaults(run=table)
    arguments = parser.parse_args()
    arguments.run(arguments)


def _add_scores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", nargs="+", type=Path, required=True)
    parser.add_argument("--pool", nargs="+", type=Path, required=True)
    parser.add_argument("--contexts", type=int, default=200, help="of each file, that are scored against the pool")
    parser.add_argument("--limit", type=int, help="of each file, for R@1")
    parser.set_defaults(run=scores)


def _add_lists(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runner", required=True, metavar="'BACKEND PRECISION'")
    parser.add_argument("--limit", type=int, help="only the first lists")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, required=True)
    parser.set_defaults(run=lists)


def scores(arguments: argparse.Namespace) -> None:
    """Print the table of `scores`."""
    files = {
        f"{path.parent.name}/{path.stem}": list(islice(read_dialogues(path), arguments.limit))
        for path in arguments.data
    }
    texts = [row.text for row in islice(read_pool(arguments.pool), TEXTS) if isinstance(row, Candidate)]
    print("| model | back-end | score p99 | largest | same ten best | " + " | ".join(f"R@1 {f}" for f in files) + " |")
    print("| --- " * (5 + len(files)) + "|")
    for name in MODELS:
        reference = measured(name, REFERENCE, files, texts, arguments.contexts)
        row(name, REFERENCE, reference, reference)
        for runner in (Runner(*each.split()) for each in RUNNERS):
            try:
                row(name, runner, measured(name, runner, files, texts, arguments.contexts), reference)
            except InvalidInput as error:
                print(f"| {name} | {' '.join(runner)} | {error} |")


def measured(
    name: str, runner: Runner, files: dict[str, list[Dialogue]], texts: Sequence[str], contexts: int
) -> Scores:
    gc.collect()
    ranker = load_vector_ranker(name, *runner)
    chosen = [each for dialogues in files.values() for each in dialogues[:contexts]]
    candidates = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    codes = ranker.encode_contexts([ranker.tokenize_context(each.conversation)[0] for each in chosen])
    scores = np.stack([scores_of(candidates, each) for each in codes])
    first = {
        each: float(rank_values(rank_lists(ranker, listed, lambda *_: None).ties)["recall@1"].mean())
        for each, listed in files.items()
    }
    return Scores(scores, first)


def lists(arguments: argparse.Namespace) -> None:
    """Rank the lists of a file, and append a line to the results for each chunk that is not there yet."""
    torch.set_num_threads(arguments.threads)
    listed = (each for each in identified(read_dialogues(arguments.data))[0] if each.candidates)
    dialogues = list(islice(listed, arguments.limit))
    about = {"model": arguments.model, "data": str(arguments.data), "runner": arguments.runner}
    done = {line["start"] for line in _lines(arguments.results) if about.items() <= line.items()}
    starts = [start for start in range(0, len(dialogues), CHUNK) if start not in done]
    if not starts:
        return
    ranker = polyrank.load(arguments.model, "cpu", *arguments.runner.split())
    for start in starts:
        chunk = dialogues[start : start + CHUNK]
        began = time.perf_counter()
        values = rank_values(rank_lists(ranker, chunk, lambda *_: None).ties)
        groups = [str(each.dialogue) for each in chunk]
        found = {**{name: values[name].tolist() for name in FIGURES.values()}, "groups": groups}
        line = json.dumps({**about, "start": start, "seconds": round(time.perf_counter() - began, 1), **found})
        with arguments.results.open("a") as file:
            file.write(line + "\n")
        print(f"{about} {start + len(chunk)} of {len(dialogues)}", flush=True)


def _lines(results: Path) -> list[dict[str, Any]]:
    """The whole lines of the results; a run that was killed may have left part of one."""
    if not results.is_file():
        return []
    return [json.loads(line) for line in results.read_text().splitlines(keepends=True) if line.endswith("}\n")]


def table(arguments: argparse.Namespace) -> None:
    """Print a JSON line for each model, file and runner: the figures, and the paired differences from FLOAT32."""
    found: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    for line in _lines(arguments.results):
        found.setdefault((line["model"], line["data"]), {}).setdefault(line["runner"], {})[line["start"]] = line
    for (model, data), runs in found.items():
        for runner, chunks in runs.items():
            against = runs.get(FLOAT32, chunks)
            starts = sorted(chunks.keys() & against.keys())
            print(json.dumps({"model": model, "data": data, "runner": runner, **_figures(chunks, against, starts)}))


def _figures(
    chunks: dict[int, dict[str, Any]], against: dict[int, dict[str, Any]], starts: Sequence[int]
) -> dict[str, Any]:
    """Means, differences and their 95 % intervals over the lists that both have."""
    columns: dict[str, NDArray[np.float64]] = {}
    for name, figure in FIGURES.items():
        ours, theirs = (np.concatenate([each[start][figure] for start in starts]) for each in (chunks, against))
        columns |= {name: ours, f"{name} difference": ours - theirs}
    groups = group_numbers(name for start in starts for name in chunks[start]["groups"])
    values = np.column_stack(list(columns.values()))
    low, high = intervals(values, groups)
    ends = zip(columns, values.mean(axis=0), low, high, strict=True)
    rounded = {name: [round(float(each), 5) for each in figures] for name, *figures in ends}
    return {
        "lists": len(groups),
        "dialogues": int(groups.max()) + 1,
        "same_rank": float((columns["MRR difference"] == 0).mean()),
        **rounded,
    }


def row(name: str, runner: Runner, found: Scores, reference: Scores) -> None:
    apart = np.abs(found.scores - reference.scores)
    best, others = (np.argsort(-each.scores, axis=1, kind="stable")[:, :10] for each in (found, reference))
    same = np.mean([set(one) == set(other) for one, other in zip(best.tolist(), others.tolist(), strict=True)])
    first = [f"{found.first[f]:.4f} ({100 * (found.first[f] - reference.first[f]):+.2f})" for f in found.first]
    cells = [name, " ".join(runner), f"{np.quantile(apart, 0.99):.5f}", f"{apart.max():.5f}", f"{same:.3f}", *first]
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
