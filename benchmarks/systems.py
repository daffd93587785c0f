"""All architectures on conversations: same base, data, steps and seeds; no words beside them.

    python -m benchmarks.systems --data DATA --output FOLDER [--systems bi poly …] [--steps 150] [--seeds 0]
        [--lists 1000] [--slow-lists 300] [--base MODEL] [--json]

DATA holds the converted sets: training is on persona chat and Ubuntu IRC. FOLDER keeps checkpoints and the ranks of the
gold replies: finished runs are not trained again, interrupted runs go on. Of each set the first `--lists` lists are
ranked, by systems that read every pair through layers of a transformer the first `--slow-lists`. The table has R@1 and
MRR, and what R@1 is more than the Bi-encoder's over the same lists: means over the seeds, 95 % intervals over whole
dialogues.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from benchmarks.poly_against_bi import trained
from numpy.typing import NDArray

import polyrank
from polyrank.model.errors import RankingError
from polyrank.model.evaluation.intervals import intervals
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.run import Data
from polyrank.service.cli.evaluation.tasks import ListsTask

TRAIN = ("synthetic_persona_chat/train.jsonl.zst", "ubuntu_irc/train.jsonl.zst")
YARDSTICKS = {
    "ConvAI2": "convai2/valid_a.self_original.jsonl.zst",
    "Ubuntu IRC": "ubuntu_irc/valid.jsonl.zst",
    "DailyDialog++": "dailydialog_pp/valid.jsonl.zst",
}
_LAYERS = (-3, -2, -1)
SYSTEMS: dict[str, dict[str, Any]] = {
    "bi": {"architecture": "bi"},
    "poly": {"architecture": "poly"},
    "colbert": {"architecture": "colbert"},
    "mix-a": {"architecture": "mix"},
    "mix-b": {"architecture": "mix", "interaction_layers": _LAYERS},
    "mix-c": {"architecture": "mix", "rows": 2, "interaction_layers": _LAYERS},
    "virt": {"architecture": "virt"},
    "deformer": {"architecture": "deformer"},
    "cross": {"architecture": "cross", "negatives": 3},
    # Parts of a MixEncoder: its rows, what makes them, its layers, and the first stage's score.
    "mix, 3 rows": {"architecture": "mix", "rows": 3},
    "mix, 5 rows": {"architecture": "mix", "rows": 5},
    "mix, 1 input": {"architecture": "mix", "row_strategy": "inputs"},
    "mix, 2 inputs": {"architecture": "mix", "rows": 2, "row_strategy": "inputs"},
    "mix, first layer": {"architecture": "mix", "interaction_layers": (1,)},
    "mix, last two": {"architecture": "mix", "interaction_layers": (-2, -1)},
    "mix, alone": {"architecture": "mix", "residual": False},
}
SLOW = ("deformer", "cross")
REFERENCE = "bi"


def config_of(system: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the one recipe of all systems: 16 conversations a step, adapters on the transformers."""
    return TrainConfig.of(
        base=base,
        steps=steps,
        seed=seed,
        batch_size=16,
        learning_rate=1e-3,
        code_learning_rate=1e-3,
        warmup_steps=min(20, steps - 1),
        schedule="cosine",
        looks=0.1,
        lora_rank=32,
        dropout=0.0,
        precision="bf16",
        max_turns=4,
        max_context_tokens=96,
        max_candidate_tokens=32,
        **SYSTEMS[system],
    )


def place(output: Path, system: str, seed: int) -> Path:
    """Return the folder of a run's checkpoint."""
    return output / f"{system.replace(', ', '-').replace(' ', '-')}-{seed}"


def ranks(
    checkpoint: Path, data: Path, count: int | None, device: str = "cpu"
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the rank of the gold reply in each of the first lists, (L,), and the dialogue of each; kept beside it."""
    task, kept = ListsTask(data, count), checkpoint / f"ranks-{data.parent.name}.json"
    if kept.is_file() and len(found := orjson.loads(kept.read_bytes())) == len(task.groups):
        return np.array(found, np.float64), task.groups
    reciprocal = task.measure(polyrank.load(checkpoint, device), lambda *_: None).values["mrr"]
    found = np.rint(1 / np.asarray(reciprocal)).astype(int).tolist()
    kept.write_bytes(orjson.dumps(found))
    print(f"{checkpoint.name}, {data.parent.name}: {np.mean(np.array(found) == 1):.3f}", file=sys.stderr, flush=True)
    return np.array(found, np.float64), task.groups


def row(
    own: Sequence[NDArray[np.float64]], reference: Sequence[NDArray[np.float64]], groups: NDArray[np.int64]
) -> dict[str, list[float]]:
    """Return R@1, MRR and what R@1 is more than the reference's, each as mean and both ends of its interval.

    Ranks of each seed, (L,); the reference may have more lists and other seeds.
    """
    count = len(own[0])
    first = np.mean([each == 1 for each in own], axis=0)
    columns = {"R@1": first, "MRR": np.mean([1 / each for each in own], axis=0)}
    if reference:
        columns["more"] = first - np.mean([each[:count] == 1 for each in reference], axis=0)
    values = np.column_stack(list(columns.values()))
    ends = zip(values.mean(axis=0), *intervals(values, groups[:count]), strict=True)
    return {name: [float(each) for each in found] for name, found in zip(columns, ends, strict=True)}


def print_table(table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print a row for each set and system."""
    print("| set | system | lists | R@1 | MRR | R@1 more than bi | each seed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, systems in table.items():
        for system, told in systems.items():
            mean, low, high = told["R@1"]
            more = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*told["more"]) if "more" in told else ""
            seeds = ", ".join(f"{each:.3f}" for each in told["seeds"])
            first = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
            print(f"| {name} | {system} | {told['lists']} | {first} | {told['MRR'][0]:.3f} | {more} | {seeds} |")


def compare(
    given: argparse.Namespace, recipe: Callable[[str, str, int, int], TrainConfig] = config_of, device: str = "cpu"
) -> None:
    """Train and rank what is missing, then print the table."""
    files = Data([given.data / name for name in TRAIN], [1.0, 1.0], held_out=300)
    table: dict[str, dict[str, Any]] = {name: {} for name in YARDSTICKS}
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for system in given.systems:
        for seed in given.seeds:
            checkpoint = place(given.output, system, seed)
            trained(recipe(system, given.base, given.steps, seed), files, checkpoint, evidence=False)
            count = given.slow_lists if system in SLOW else given.lists
            for name, path in YARDSTICKS.items():
                own, groups = ranks(checkpoint, given.data / path, count, device)
                found.setdefault((name, system), []).append(own)
                table[name][system] = {"groups": groups}
    for name, systems in table.items():
        for system in systems:
            own, groups = found[name, system], systems[system]["groups"]
            reference = found.get((name, REFERENCE), []) if system != REFERENCE else []
            seeds = [float(np.mean(each == 1)) for each in own]
            systems[system] = {"lists": len(own[0]), "seeds": seeds, **row(own, reference, groups)}
    if given.json:
        print(orjson.dumps(table).decode())
    else:
        print_table(table)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, or in one line why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS)[:9], choices=SYSTEMS)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--slow-lists", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    try:
        compare(parser.parse_args(given))
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
