"""One change to runs of benchmarks.systems, against the same runs without it.

    python -m benchmarks.one_change pretraining --data DATA --output FOLDER [--pretrain-steps 2000]
    python -m benchmarks.one_change teacher --data DATA --output FOLDER --systems poly [--teacher MODEL]

`pretraining`: the base model is pre-trained on the same files first. `teacher`: a teacher's scores of listed replies
count in the loss; both runs have these replies, three of other dialogues for each example, as negatives. All other
options are those of benchmarks.systems, and FOLDER may be the one of that script: its finished runs are those without a
pre-trained base. The table has what R@1 and MRR are more with the change: means over the seeds, 95 % intervals over
whole dialogues.
"""

import argparse
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard
from benchmarks import systems
from benchmarks.poly_against_bi import trained
from numpy.typing import NDArray

from polyrank.model.errors import RankingError
from polyrank.model.training.config import STATE_FILE, Data, PretrainConfig
from polyrank.model.training.pretraining import pretrain
from polyrank.model.training.recipes import PRETRAINING_FILE

NEGATIVES = 3


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that differ in one thing from others: where they are kept, and how they are made."""

    folder: Path
    recipe: systems.Recipe


def pretraining(given: argparse.Namespace, recipe: systems.Recipe, files: Data) -> tuple[Data, Runs, Runs]:
    """Return runs from the base model, and runs from the same one pre-trained, which is made if it is missing."""
    base, folder = given.output / "pretrained-base", given.output / "pretrained"
    light = {name: value for name, value in systems.LIGHT.items() if name != "tune"} if given.light else {}
    config = PretrainConfig(
        base=given.base,
        steps=given.pretrain_steps,
        batch_size=32,
        warmup_steps=max(1, given.pretrain_steps // 10),
        looks=0.1,
        dropout=0.0,
        **{"precision": "bf16", "max_turns": 4, "max_context_tokens": 96, "max_candidate_tokens": 32, **light},
    )
    summary = base / PRETRAINING_FILE
    if not summary.is_file() or (base / STATE_FILE).is_file():
        resume = (base / STATE_FILE).is_file()
        pretrain(config, files, base, resume=resume, on_survey=lambda *_: None, watch=lambda *_: None)

    def changed(system: str, _: str, steps: int, seed: int) -> Any:
        return recipe(system, str(base), steps, seed)

    return files, Runs(given.output, recipe), Runs(folder, changed)


def teacher(given: argparse.Namespace, recipe: systems.Recipe, files: Data) -> tuple[Data, Runs, Runs]:
    """Return runs over listed negatives without a teacher, and with one."""

    def listed(system: str, base: str, steps: int, seed: int) -> Any:
        return replace(recipe(system, base, steps, seed), negatives=NEGATIVES)

    def taught(system: str, base: str, steps: int, seed: int) -> Any:
        return replace(listed(system, base, steps, seed), teacher=str(given.teacher))

    paths = [with_negatives(path, given.output / f"{path.parent.name}-negatives.jsonl") for path in files.paths]
    own = replace(files, paths=paths)
    return own, Runs(given.output / "untaught", listed), Runs(given.output / "taught", taught)


def with_negatives(source: Path, output: Path) -> Path:
    """Write the examples of a file, each with replies of others as negatives."""
    if output.is_file():
        return output
    with zstandard.open(source, "rb") as file:
        rows = [orjson.loads(line) for line in io.BufferedReader(file)]
    rng, replies = random.Random(0), [row["response"] for row in rows]
    for row in rows:
        others = (reply for reply in rng.sample(replies, NEGATIVES + 10) if reply.lower() != row["response"].lower())
        row["negatives"] = [reply for reply, _ in zip(others, range(NEGATIVES), strict=False)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return output


CHANGES: dict[str, Callable[[argparse.Namespace, systems.Recipe, Data], tuple[Data, Runs, Runs]]] = {
    "pretraining": pretraining,
    "teacher": teacher,
}


def compare(given: argparse.Namespace) -> None:
    """Train and rank what is missing, then print the table."""
    recipe = systems.recipe_of(given)
    held_out = systems.LIGHT_HELD_OUT if given.light else systems.HELD_OUT
    lists = systems.Lists.of(given)
    files, *both = CHANGES[given.change](given, recipe, systems.training_files(given.data, held_out))
    table: dict[str, dict[str, Any]] = {name: {} for name in systems.YARDSTICKS}
    for system in given.systems:
        found: dict[str, list[list[NDArray[np.float64]]]] = {name: [[], []] for name in table}
        groups = dict[str, NDArray[np.int64]]()
        for at, runs in enumerate(both):
            for seed in given.seeds:
                checkpoint = systems.place(runs.folder, system, seed)
                trained(runs.recipe(system, given.base, given.steps, seed), files, checkpoint, evidence=False)
                for name, (own, groups[name]) in lists.ranked(system, checkpoint, "cpu").items():
                    found[name][at].append(own)
        for name, (without, changed) in found.items():
            row = systems.row(changed, without, groups[name])
            before = systems.row(without, [], groups[name])["R@1"]
            table[name][system] = {"lists": changed[0].shape[1], "without": before, **row}
    if given.json:
        print(orjson.dumps(table).decode())
        return
    print("| set | system | lists | R@1 without | R@1 with | R@1 more | MRR more |")
    print(f"|{' --- |' * 7}")
    for name, rows in table.items():
        for system, told in rows.items():
            more = " | ".join("{:+.3f} [{:+.3f}, {:+.3f}]".format(*told[each]) for each in ("more", "more MRR"))
            print(f"| {name} | {system} | {told['lists']} | {told['without'][0]:.3f} | {told['R@1'][0]:.3f} | {more} |")


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, or in one line why there is none."""
    parser = systems.options(__doc__)
    parser.add_argument("change", choices=CHANGES)
    parser.add_argument("--pretrain-steps", type=int, default=2000)
    parser.add_argument("--teacher", type=Path, default=Path("checkpoints/chat-uni"))
    try:
        compare(parser.parse_args(given))
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
