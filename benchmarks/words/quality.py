"""What words are worth: R@1 of models by their vectors, by words, by both and without each feature.

    python -m benchmarks.words.quality --data F [F...] --model CHECKPOINT [...] [--against CHECKPOINT [...]] [--limit N]

Several checkpoints after one option are seeds of one model: the figure of an example is the mean over them. For each
file a table shows the parts of each model's score, and what the whole score has more than the part. With `--against`,
another one shows the difference of the two models. Intervals (95 %, bootstrap) are over whole dialogues, and all
differences are paired. Each figure is also given over the lists without an already said negative, which are those
where no wrong candidate is a turn of the context.

The figures of whole scores are those of `polyrank evaluate`. "all but persona" leaves that feature out and the other
weights as they are. (What training prints, and keeps in `polyrank.json`, is fitted anew without the feature.)
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from benchmarks.words.parts import VECTORS, WHOLE, Firsts, firsts_of, says_nothing_again
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.measures import group_numbers, intervals
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import read_dialogues

Columns = dict[str, NDArray[np.float64]]


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
        self._every = np.ones(len(self.dialogues), bool)
        self._fresh = np.array([says_nothing_again(each) for each in self.dialogues])

    def described(self) -> str:
        return (
            f"{self.name}: {len(self._every)} lists, {self._fresh.sum()} of them without an already said negative "
            "(the columns on the right)"
        )

    def estimates(self, columns: Columns, signed: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
        """Return each figure with its interval, over all lists and over those without an already said negative.

        columns: values of each example by figure, (examples,). signed: figures that are written with their sign.
        """
        over_all, over_fresh = (self._over(chosen, columns, signed) for chosen in (self._every, self._fresh))
        return {name: (over_all[name], over_fresh[name]) for name in columns}

    def _over(self, chosen: NDArray[np.bool_], columns: Columns, signed: Sequence[str]) -> dict[str, str]:
        if not chosen.any():
            return dict.fromkeys(columns, "")
        values = np.column_stack(list(columns.values()))[chosen]
        groups = group_numbers(each.dialogue for each, own in zip(self.dialogues, chosen, strict=True) if own)
        told = {}
        for name, mean, low, high in zip(columns, values.mean(axis=0), *intervals(values, groups), strict=True):
            form = "+.3f" if name in signed else ".3f"
            told[name] = f"{mean:{form}} [{low:{form}}, {high:{form}}]"
        return told


def measured(model: Path | str, yardsticks: Sequence[Yardstick]) -> list[Firsts]:
    """Measure a checkpoint on each file."""
    ranker, found = load_vector_ranker(model), []
    for yardstick in yardsticks:
        began = time.perf_counter()
        found.append(firsts_of(ranker, yardstick.dialogues))
        print(f"{model}, {yardstick.name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return found


def print_parts(yardstick: Yardstick, models: Mapping[str, Sequence[Firsts]]) -> None:
    """Print the table of a file: the parts of each model's score. A model has one entry for each of its seeds."""
    print("| model | ranked by | R@1 | the whole score minus this | R@1 | the whole score minus this |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, seeds in models.items():
        means = {part: np.mean([seed[part] for seed in seeds], axis=0) for part in _common(seeds)}
        told = yardstick.estimates(means)
        less = {part: means[WHOLE] - each for part, each in means.items()}
        differences = yardstick.estimates(less, signed=list(less))
        for part in means:
            first, second = ("", "") if part == WHOLE else differences[part]
            print(f"| {name} | {part} | {told[part][0]} | {first} | {told[part][1]} | {second} |", flush=True)


def print_comparison(yardstick: Yardstick, models: Mapping[str, Sequence[Firsts]]) -> None:
    """Print the table of a file: two models and the first minus the second, by whole scores and by vectors alone.

    Seeds of equal place are subtracted from each other, so both models have equally many.
    """
    (one, ones), (other, others) = models.items()
    difference = f"{one} - {other}"
    print("| ranked by | model | R@1 | each seed | R@1 |\n| --- | --- | --- | --- | --- |")
    for part in (WHOLE, VECTORS):
        found = {name: np.stack([seed[part] for seed in seeds]) for name, seeds in ((one, ones), (other, others))}
        found[difference] = found[one] - found[other]
        told = yardstick.estimates({name: each.mean(axis=0) for name, each in found.items()}, signed=[difference])
        for name, each in found.items():
            form = "+.3f" if name == difference else ".3f"
            seeds = ", ".join(f"{value:{form}}" for value in each.mean(axis=1))
            print(f"| {part} | {name} | {told[name][0]} | {seeds} | {told[name][1]} |", flush=True)


def report(yardsticks: Sequence[Yardstick], models: Mapping[str, Sequence[Path | str]]) -> None:
    """Measure all checkpoints of one or two models, and print the tables."""
    found = {name: [measured(each, yardsticks) for each in paths] for name, paths in models.items()}
    for at, yardstick in enumerate(yardsticks):
        own = {name: [seed[at] for seed in seeds] for name, seeds in found.items()}
        print(f"\n{yardstick.described()}\n")
        print_parts(yardstick, own)
        if len(own) == 2:
            print()
            print_comparison(yardstick, own)


def _common(seeds: Sequence[Firsts]) -> list[str]:
    """Return the parts that all seeds have, in order: a seed may do without words, or without one of the features."""
    return [part for part in seeds[0] if all(part in seed for seed in seeds)]


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables, or in one line why there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="F", help="dialogues with candidates")
    parser.add_argument("--model", nargs="+", required=True, metavar="CHECKPOINT")
    parser.add_argument("--against", nargs="+", default=[], metavar="CHECKPOINT")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples of each file")
    arguments = parser.parse_args(given)
    if arguments.against and len(arguments.against) != len(arguments.model):
        parser.error("--model and --against need equally many checkpoints: those of one place share a seed")
    if arguments.limit is not None and arguments.limit < 1:
        parser.error("--limit must be at least 1")
    models = {_name(each): each for each in (arguments.model, arguments.against) if each}
    if arguments.against and len(models) == 1:
        parser.error("--model and --against name the same checkpoint")
    try:
        report([Yardstick(file, arguments.limit) for file in arguments.data], models)
    except RankingError as error:
        parser.exit(1, f"{error}\n")


def _name(checkpoints: Sequence[str]) -> str:
    name = Path(checkpoints[0]).name
    return f"{name} and {len(checkpoints) - 1} more" if len(checkpoints) > 1 else name


if __name__ == "__main__":
    main()
