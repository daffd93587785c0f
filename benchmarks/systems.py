"""All architectures on conversations: same base, data, steps and seeds; no words beside them.

    python -m benchmarks.systems --data DATA --output FOLDER [--systems bi poly …] [--steps 150] [--seeds 0]
        [--lists 1000] [--slow-lists 300] [--light] [--base MODEL] [--json]

DATA holds the converted sets: training is on persona chat and Ubuntu IRC. FOLDER keeps checkpoints and the figures of
each list: finished runs are not trained again, interrupted runs go on. Of each set `--lists` lists are ranked, drawn
with one seed; systems that read every pair through layers of a transformer rank the first `--slow-lists` of them. The
table has R@1 and MRR, and what both are more than the Bi-encoder's over the same lists: means over the seeds, 95 %
intervals over whole dialogues.

`--light` is for a processor without bfloat16: float32, adapters on the last three layers alone, two turns and 64 tokens
of a context, and half a batch where every pair goes through layers of a transformer.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

import polyrank
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.measures import intervals
from polyrank.model.training.config import STATE_FILE, Data, TrainConfig
from polyrank.model.training.run import train
from polyrank.service.cli.tasks import ListsTask

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
HELD_OUT = 300  # examples of each file to select by
LIGHT: dict[str, Any] = {
    "precision": "no",
    "tune": "top-3",
    "max_turns": 2,
    "max_context_tokens": 64,
    "max_candidate_tokens": 24,
}
LIGHT_HELD_OUT = 24


def trained(config: TrainConfig, files: Data, output: Path) -> None:
    """Train the run's checkpoint unless it exists, without words.

    Raises:
        InvalidInput: the folder holds a run with other settings, or one that was cut short too early to be resumed.
        RankingError: a model or a file cannot be used.
    """
    resume = (output / STATE_FILE).is_file()
    if resume or not (output / CONFIG_FILE).is_file():
        train(config, files, output, resume=resume, evidence=False, on_survey=lambda *_: None, watch=lambda *_: None)
        return
    summary = read_config(output / CONFIG_FILE).training
    if "steps" not in summary:  # added at the end of a run, while a checkpoint is saved before the first step
        raise InvalidInput(f"{output} holds a run that was cut short and cannot be resumed; remove it")
    if differing := config.differences(summary["settings"]):
        raise InvalidInput(f"{output} was trained with another {', '.join(differing)}; give another --output")


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


def light_config_of(system: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the same recipe for a slower processor."""
    batch: dict[str, Any] = {"batch_size": 8} if system in SLOW else {}
    return replace(config_of(system, base, steps, seed), **LIGHT, **batch)


def place(output: Path, system: str, seed: int) -> Path:
    """Return the folder of a run's checkpoint."""
    return output / f"{system.replace(', ', '-').replace(' ', '-')}-{seed}"


def drawn(source: Path, output: Path) -> Path:
    """Write the lists of a set in an order drawn with one seed: neighbours in the file are of one dialogue."""
    if output.is_file():
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    with zstandard.open(source, "rb") as file:
        lines = file.read().splitlines()
    random.Random(0).shuffle(lines)
    output.write_bytes(b"\n".join(lines) + b"\n")
    return output


def figures(checkpoint: Path, data: Path, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return R@1 and 1 / rank of each of the first lists, (2, L), and the dialogue of each; kept beside it."""
    task, kept = ListsTask(data, count), checkpoint / f"figures-{data.parent.name}.json"
    if kept.is_file() and len((found := orjson.loads(kept.read_bytes()))[0]) == len(task.groups):
        return np.array(found), task.groups
    values = task.measure(polyrank.load(checkpoint), lambda *_: None).values
    found = np.array([values["recall@1"], values["mrr"]])
    kept.write_bytes(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))
    print(f"{checkpoint.name}, {data.parent.name}: {found[0].mean():.3f}", file=sys.stderr, flush=True)
    return found, task.groups


def row(
    own: Sequence[NDArray[np.float64]], reference: Sequence[NDArray[np.float64]], groups: NDArray[np.int64]
) -> dict[str, list[float]]:
    """Return R@1, MRR and what both are more than the reference's, each as mean and both ends of its interval.

    Figures of each seed, (2, L); the reference may have more lists and other seeds.
    """
    columns = dict(zip(("R@1", "MRR"), np.mean(own, axis=0), strict=True))
    if reference:
        others = np.mean(reference, axis=0)[:, : own[0].shape[1]]
        columns["more"], columns["more MRR"] = columns["R@1"] - others[0], columns["MRR"] - others[1]
    values = np.column_stack(list(columns.values()))
    ends = zip(values.mean(axis=0), *intervals(values, groups[: len(values)]), strict=True)
    return {name: [float(each) for each in found] for name, found in zip(columns, ends, strict=True)}


def print_table(table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print a row for each set and system."""
    print("| set | system | lists | R@1 | MRR | R@1 more than bi | MRR more than bi | R@1 of each seed |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, systems in table.items():
        for system, told in systems.items():
            mean, low, high = told["R@1"]
            more = [_signed(told[each]) if each in told else "" for each in ("more", "more MRR")]
            seeds = ", ".join(f"{each:.3f}" for each in told["seeds"])
            first = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
            cells = (name, system, str(told["lists"]), first, f"{told['MRR'][0]:.3f}", *more, seeds)
            print(f"| {' | '.join(cells)} |")


def _signed(figures: Sequence[float]) -> str:
    """Write a difference and both ends of its interval."""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*figures)


def compare(given: argparse.Namespace) -> None:
    """Train and rank what is missing, then print the table."""
    recipe, held_out = (light_config_of, LIGHT_HELD_OUT) if given.light else (config_of, HELD_OUT)
    files = Data([given.data / name for name in TRAIN], [1.0, 1.0], held_out=held_out)
    lists = {
        name: drawn(given.data / path, given.output / "lists" / Path(path).parent / "valid.jsonl")
        for name, path in YARDSTICKS.items()
    }
    table: dict[str, dict[str, Any]] = {name: {} for name in YARDSTICKS}
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for system in given.systems:
        for seed in given.seeds:
            checkpoint = place(given.output, system, seed)
            trained(recipe(system, given.base, given.steps, seed), files, checkpoint)
            for name, path in lists.items():
                own, groups = figures(checkpoint, path, given.slow_lists if system in SLOW else given.lists)
                found.setdefault((name, system), []).append(own)
                table[name][system] = {"groups": groups}
    for name, systems in table.items():
        for system in systems:
            owns, groups = found[name, system], systems[system]["groups"]
            reference = found.get((name, REFERENCE), []) if system != REFERENCE else []
            seeds = [float(each[0].mean()) for each in owns]
            systems[system] = {"lists": owns[0].shape[1], "seeds": seeds, **row(owns, reference, groups)}
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
    parser.add_argument("--lists", type=int, default=1000, help="of each set")
    parser.add_argument("--slow-lists", type=int, default=300, help="the same for slow systems")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    try:
        compare(arguments)
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
