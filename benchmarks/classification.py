"""Classifiers, by default on SICK (entailment, neutral, contradiction): same data, steps and seeds.

    python -m benchmarks.classification --data SICK --output FOLDER [--models cross mix bi] [--steps 254] [--seeds 0]
        [--light]

`--set` says what DATA holds:

    sick      train and valid: pairs with a, b and label
    replies   valid of DailyDialog++: replies to a context that are relevant, adversarial or random; the last of every
              five contexts are for validation
    banking   train of BANKING77: texts with an intent, of which every tenth is for validation
    clinc     train, val, oos_train and oos_val of CLINC150: texts with an intent, or with none ("something else")

All are .jsonl.zst. FOLDER keeps the checkpoints: finished runs are not trained again, interrupted runs go on. The table
has the accuracy on the validation examples and what a model has more than the Bi-encoder, means over the seeds with
95 % intervals over the examples.
`--light` is for a processor without bfloat16: float32.
"""

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import zstandard
from benchmarks.poly_against_bi import trained
from numpy.typing import NDArray

from polyrank.model.errors import RankingError
from polyrank.model.measures import Ties, intervals
from polyrank.model.rankers.load import load_classifier
from polyrank.model.registry import classifiers
from polyrank.model.text.dialogues import Dialogue, read_dialogues
from polyrank.model.training.config import Data, TrainConfig

AT_ONCE = 64
_KINDS = {"positives": "relevant", "adversarial_negatives": "adversarial", "random_negatives": "random"}

Rows = list[dict[str, Any]]
"""Examples as training reads them."""


class Split(NamedTuple):
    """What is trained on, and what is measured."""

    train: Rows
    valid: Rows


def config_of(architecture: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the one recipe of all models: whole weights, 32 pairs a step."""
    return TrainConfig.of(
        architecture=architecture,
        task="classify",
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


def light_config_of(architecture: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the same recipe for a slower processor."""
    return replace(config_of(architecture, base, steps, seed), precision="no")


def read(data: Path, part: str) -> Rows:
    """Read a part of a set."""
    with zstandard.open(data / f"{part}.jsonl.zst", "rb") as file:
        return [orjson.loads(line) for line in io.BufferedReader(file)]


def sick(data: Path) -> Split:
    """Pairs: a is the context, b the response."""

    def pairs(part: str) -> Rows:
        return [{"context": [row["a"]], "response": row["b"], "label": row["label"]} for row in read(data, part)]

    return Split(pairs("train"), pairs("valid"))


def replies(data: Path) -> Split:
    """Pairs of a context with each reply that is listed for it."""
    found = Split([], [])
    for number, row in enumerate(read(data, "valid")):
        for name, label in _KINDS.items():
            pairs = [
                {"context": row["context"], "response": text, "label": label, "dialogue": row["id"]}
                for text in row[name]
            ]
            (found.valid if number % 5 == 4 else found.train).extend(pairs)
    return found


def banking(data: Path) -> Split:
    """Single texts."""
    rows = _texts(read(data, "train"))
    return Split([row for at, row in enumerate(rows) if at % 10], rows[::10])


def clinc(data: Path) -> Split:
    """Single texts, a few of which have no intent."""
    return Split(*(_texts([*read(data, part), *read(data, f"oos_{part}")]) for part in ("train", "val")))


def _texts(rows: Iterable[dict[str, str]]) -> Rows:
    named = {"oos": "something else"}
    return [
        {"context": [row["text"]], "label": named.get(row["intent"], row["intent"].replace("_", " "))} for row in rows
    ]


SETS: dict[str, Callable[[Path], Split]] = {"sick": sick, "replies": replies, "banking": banking, "clinc": clinc}


def write(rows: Rows, output: Path) -> Path:
    """Write a part as training reads it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return output


def right(checkpoint: Path, examples: Sequence[Dialogue], device: str = "cpu") -> NDArray[np.float64]:
    """Return the chance that the class of each example is told rightly, (examples,): 1 or 0, unless classes tie."""
    classifier = load_classifier(checkpoint, device)
    told: list[float] = []
    for start in range(0, len(examples), AT_ONCE):
        some = examples[start : start + AT_ONCE]
        for own, each in zip(classifier.of_examples(some), some, strict=True):
            told.append(Ties.of(own, [label == each.category for label in classifier.labels]).found(1))
    return np.array(told)


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
    split = SETS[given.set](given.data)
    train, valid = (
        write(rows, given.output / f"{part}.jsonl") for part, rows in zip(split._fields, split, strict=True)
    )
    labels = tuple(sorted({row["label"] for row in split.train}))
    read_as: Any = {"labels": labels, "class_from": "head" if "response" in split.train[0] else "score"}
    examples, found = list(read_dialogues(valid)), {}
    for name in given.models:
        seeds = []
        for seed in given.seeds:
            checkpoint = given.output / f"{name}-{seed}"
            config = replace(recipe(name, given.base, given.steps, seed), **read_as)
            trained(config, Data([train], held_out=300), checkpoint)
            seeds.append(right(checkpoint, examples, device))
            print(f"{name}, seed {seed}: {seeds[-1].mean():.3f}", file=sys.stderr, flush=True)
        found[name] = np.stack(seeds)
    print_table(found)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, or in one line why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=SETS, default="sick")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--models", nargs="+", default=["cross", "mix", "bi"], choices=classifiers())
    parser.add_argument("--steps", type=int, default=254)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--light", action="store_true")
    arguments = parser.parse_args(given)
    try:
        compare(arguments, light_config_of if arguments.light else config_of)
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
