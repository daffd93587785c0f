"""What words are worth: R@1 of models by their vectors, by words, by both and without each feature.

    python -m benchmarks.words.quality --data F --model CHECKPOINT [--against CHECKPOINT] [--limit N]

A table shows the parts of each model's score, and what the whole score has more than the part. With `--against`,
another one shows the difference of the two models. Intervals (95 %, bootstrap) are over whole dialogues, and all
differences are paired.

The figures of whole scores are those of `polyrank evaluate`. "all but persona" leaves that feature out and the other
weights as they are. (What training prints, and keeps in `polyrank.json`, is fitted anew without the feature.)
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from benchmarks.words.parts import VECTORS, WHOLE, Firsts, firsts_of
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.measures import group_numbers, intervals
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import read_dialogues

Columns = Mapping[str, NDArray[np.float64]]


class Yardstick:
    """The lists of a file, and the intervals of figures over them.

    Attributes:
        dialogues: those that have candidates.
    """

    def __init__(self, file: Path, limit: int | None = None) -> None:
        """Raise InvalidInput where no example has candidates."""
        self.name = f"{file.parent.name}/{file.name.split('.')[0]}"
        self.dialogues = [each for each in identified(islice(read_dialogues(file), limit))[0] if each.candidates]
        if not self.dialogues:
            raise InvalidInput(f"{file}: no example has `candidates`; there is nothing to rank")

    def estimates(self, columns: Columns, signed: Sequence[str] = ()) -> dict[str, str]:
        """Return each figure with its interval.

        columns: values of each example by figure, (examples,). signed: figures that are written with their sign.
        """
        values = np.column_stack(list(columns.values()))
        groups = group_numbers(each.dialogue for each in self.dialogues)
        told = {}
        for name, mean, low, high in zip(columns, values.mean(axis=0), *intervals(values, groups), strict=True):
            form = "+.3f" if name in signed else ".3f"
            told[name] = f"{mean:{form}} [{low:{form}}, {high:{form}}]"
        return told


def print_parts(yardstick: Yardstick, models: Mapping[str, Firsts]) -> None:
    """Print the table of a file: the parts of each model's score."""
    print("| model | ranked by | R@1 | the whole score minus this |\n| --- | --- | --- | --- |")
    for name, firsts in models.items():
        told = yardstick.estimates(firsts)
        less = {part: firsts[WHOLE] - each for part, each in firsts.items()}
        differences = yardstick.estimates(less, signed=list(less))
        for part in firsts:
            difference = "" if part == WHOLE else differences[part]
            print(f"| {name} | {part} | {told[part]} | {difference} |", flush=True)


def print_comparison(yardstick: Yardstick, models: Mapping[str, Firsts]) -> None:
    """Print the table of a file: two models and the first minus the second, by whole scores and by vectors alone."""
    one, other = models
    difference = f"{one} - {other}"
    print("| ranked by | model | R@1 |\n| --- | --- | --- |")
    for part in (WHOLE, VECTORS):
        found = {name: firsts[part] for name, firsts in models.items()}
        found[difference] = found[one] - found[other]
        told = yardstick.estimates(found, signed=[difference])
        for name in found:
            print(f"| {part} | {name} | {told[name]} |", flush=True)


def report(yardstick: Yardstick, checkpoints: Sequence[str]) -> None:
    """Measure one or two checkpoints, and print the tables."""
    models = {Path(each).name: firsts_of(load_vector_ranker(each), yardstick.dialogues) for each in checkpoints}
    print(f"\n{yardstick.name}: {len(yardstick.dialogues)} lists\n")
    print_parts(yardstick, models)
    if len(models) == 2:
        print()
        print_comparison(yardstick, models)


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables, or in one line why there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="F", help="dialogues with candidates")
    parser.add_argument("--model", required=True, metavar="CHECKPOINT")
    parser.add_argument("--against", metavar="CHECKPOINT", help="of another name")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    arguments = parser.parse_args(given)
    try:
        report(Yardstick(arguments.data, arguments.limit), [*filter(None, (arguments.model, arguments.against))])
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
