"""Classifiers of pairs on SICK (entailment, neutral, contradiction): same data, steps and seeds.

    python -m benchmarks.classification --data SICK --output FOLDER [--models cross mix bi] [--steps 254] [--seeds 0]

SICK holds train.jsonl.zst and valid.jsonl.zst, rows with a, b and label. FOLDER keeps the checkpoints: finished runs
are not trained again, interrupted runs go on. The table has the accuracy on the validation pairs and what a model has
more than the Bi-encoder, means over the seeds with 95 % intervals over the pairs.
"""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import zstandard
from benchmarks.poly_against_bi import trained
from numpy.typing import NDArray

from polyrank.model.errors import RankingError
from polyrank.model.evaluation.intervals import intervals
from polyrank.model.rankers.load import load_classifier
from polyrank.model.registry import CLASSIFIERS
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, read_dialogues
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.run import Data

LABELS = ("contradiction", "entailment", "neutral")
AT_ONCE = 64


def config_of(architecture: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the one recipe of all models: whole weights, 32 pairs a step."""
    return TrainConfig.of(
        architecture=architecture,
        task="classify",
        labels=LABELS,
        base=base,
        steps=steps,
        seed=seed,
        batch_size=32,
        learning_rate=1e-4,
        code_learning_rate=1e-3,
        warmup_steps=25,
        schedule="cosine",
        looks=1.0,
        precision="bf16",
        max_context_tokens=64,
        max_candidate_tokens=64,
    )


def pairs(source: Path, output: Path) -> Path:
    """Write the rows of a set as training reads them: a is the context, b the response."""
    with zstandard.open(source, "rb") as file:
        rows = [orjson.loads(line) for line in io.BufferedReader(file)]
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = [orjson.dumps({"context": [row["a"]], "response": row["b"], "label": row["label"]}) for row in rows]
    output.write_bytes(b"\n".join(lines) + b"\n")
    return output


def right(checkpoint: Path, examples: Sequence[Dialogue], device: str = "cpu") -> NDArray[np.float64]:
    """Return 1 for each example whose class is told rightly, else 0, (examples,)."""
    classifier = load_classifier(checkpoint, device)
    told: list[str] = []
    for start in range(0, len(examples), AT_ONCE):
        some: list[tuple[Conversation, str]] = [
            (each.conversation, each.response) for each in examples[start : start + AT_ONCE]
        ]
        told += [classifier.labels[best] for best in classifier.probabilities(some).argmax(axis=1)]
    return np.array([own == each.category for own, each in zip(told, examples, strict=True)], np.float64)


def print_table(found: dict[str, NDArray[np.float64]], figure: str = "accuracy") -> None:
    """Print a row for each model; its values are (seeds, examples)."""
    print(f"| model | {figure} | each seed | minus bi |\n| --- | --- | --- | --- |")
    reference = found.get("bi")
    for name, values in found.items():
        columns = [values.mean(axis=0)]
        if reference is not None and name != "bi":
            columns.append((values - reference).mean(axis=0))
        stacked = np.column_stack(columns)
        low, high = intervals(stacked, np.arange(len(stacked)))
        accuracy, *more = [(mean, one, other) for mean, one, other in zip(stacked.mean(axis=0), low, high, strict=True)]
        seeds = ", ".join(f"{each:.3f}" for each in values.mean(axis=1))
        difference = "".join(f"{mean:+.3f} [{one:+.3f}, {other:+.3f}]" for mean, one, other in more)
        print(f"| {name} | {accuracy[0]:.3f} [{accuracy[1]:.3f}, {accuracy[2]:.3f}] | {seeds} | {difference} |")


def compare(
    given: argparse.Namespace, recipe: Callable[[str, str, int, int], TrainConfig] = config_of, device: str = "cpu"
) -> None:
    """Train what is missing, then print the table."""
    train, valid = (
        pairs(given.data / f"{part}.jsonl.zst", given.output / f"{part}.jsonl") for part in ("train", "valid")
    )
    examples, found = list(read_dialogues(valid)), {}
    for name in given.models:
        seeds = []
        for seed in given.seeds:
            checkpoint = given.output / f"{name}-{seed}"
            trained(recipe(name, given.base, given.steps, seed), Data([train], held_out=300), checkpoint)
            seeds.append(right(checkpoint, examples, device))
            print(f"{name}, seed {seed}: {seeds[-1].mean():.3f}", file=sys.stderr, flush=True)
        found[name] = np.stack(seeds)
    print_table(found)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, or in one line why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--models", nargs="+", default=["cross", "mix", "bi"], choices=CLASSIFIERS)
    parser.add_argument("--steps", type=int, default=254)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    try:
        compare(parser.parse_args(given))
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
