"""The tables of Humeau et al. with our training: what each choice is worth, one line of JSON a run.

    python -m benchmarks.gpu.matrix --pack build/gpu --results matrix.jsonl [--runs bi poly-64 ...] [--dry-run]

Every run sees the same number of examples of the same files, with the same seed and rates, and tunes the weights
themselves. It differs from `bi` only in what its name says; with another batch size also in the number of steps. A run
that RESULTS already has is skipped, so that several short calls make one table.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.measured import CHUNK_TOKENS, READING, evaluated, trained
from benchmarks.gpu.pack import BASE, CONVAI2, UBUNTU

from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.training.config import Data, TrainConfig

EXAMPLES = 131_072  # of each run; the batch size gives the number of steps
WARM_UP = 0.1  # share of the steps
SHARED: dict[str, Any] = {
    "batch_size": 512,
    "learning_rate": 2e-4,
    "code_learning_rate": 5e-3,
    "schedule": "cosine",
    "looks": 0.5,
    "precision": "bf16",
    "chunk_tokens": CHUNK_TOKENS,
    "seed": 0,
    **READING,
}
# Each run with the tables of the paper that it has a row in; the quickest and most important runs come first.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "bi": ("2 3 4 6 7", {"architecture": "bi"}),
    "poly-64": ("4 6 8", {"architecture": "poly", "n_codes": 64}),
    "poly-16": ("4 6 8", {"architecture": "poly", "n_codes": 16}),
    "poly-64-first": ("8", {"architecture": "poly", "n_codes": 64, "context_vectors": "first"}),
    "poly-360": ("4 6 8", {"architecture": "poly", "n_codes": 360}),
    "bi-top-1": ("3", {"architecture": "bi", "tune": "top-1"}),
    "bi-top-3": ("3", {"architecture": "bi", "tune": "top-3"}),
    "bi-all": ("3", {"architecture": "bi", "tune": "all"}),
    "bi-shared": ("-", {"architecture": "bi", "shared_encoder": True}),
    "bi-first-output": ("7", {"architecture": "bi", "reduction": "first"}),
    "bi-128": ("2", {"architecture": "bi", "batch_size": 128}),
    "bi-32": ("2", {"architecture": "bi", "batch_size": 32}),
}


def config_of(name: str, base: Path, examples: int = EXAMPLES) -> TrainConfig:
    """Return the settings of a run; raises InvalidInput if they make no sense."""
    settings = {**SHARED, **RUNS[name][1]}
    steps = max(1, examples // settings["batch_size"])
    return TrainConfig.of(base=str(base), steps=steps, warmup_steps=round(WARM_UP * steps), **settings)


def left_to_do(names: list[str], results: Path, pack: Path, examples: int) -> dict[str, TrainConfig]:
    """Return the settings of the runs that have no result yet.

    Raises InvalidInput if a run has a result with other settings: they could not be compared in one table.
    """
    configs = {name: config_of(name, pack / BASE, examples) for name in names}
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    done = {record["run"]: record["settings"] for record in map(json.loads, lines)}
    for name in configs.keys() & done.keys():
        differing = set(configs[name].differences(done[name])) - {"base"}  # the folder may lie elsewhere now
        if differing:
            raise InvalidInput(f"{results} has {name} with another {', '.join(sorted(differing))}; give another file")
    return {name: config for name, config in configs.items() if name not in done}


def run(name: str, config: TrainConfig, pack: Path) -> dict[str, Any]:
    """Train and measure; the checkpoint is not kept."""
    with TemporaryDirectory() as directory:
        data = Data([pack / CONVAI2, pack / UBUNTU], [1.0, 1.0])
        figures = trained(config, data, Path(directory) / name)
        return {
            "run": name,
            "tables": RUNS[name][0],
            "settings": config.to_dict(),
            **figures,
            "evaluation": evaluated(Path(directory) / name, pack),
        }


def print_plan(configs: dict[str, TrainConfig]) -> None:
    for name, config in configs.items():
        print(f"{name:16}table {RUNS[name][0]:10}{config.steps:5} steps of {config.batch_size:3}  {RUNS[name][1]}")


def run_all(configs: dict[str, TrainConfig], pack: Path, results: Path) -> bool:
    """Append a line for each run; returns whether all succeeded. A run that fails does not end the others."""
    failed = False
    for name, config in configs.items():
        print(name, file=sys.stderr, flush=True)
        try:
            line = json.dumps(run(name, config, pack))
        except RankingError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        with results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", type=Path, required=True, help="the folder that prepare.py wrote")
    parser.add_argument("--results", type=Path, required=True, help="lines of JSON, added to")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--examples", type=int, default=EXAMPLES, help=f"a run; default: {EXAMPLES}")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run")
    arguments = parser.parse_args()
    try:
        configs = left_to_do(arguments.runs, arguments.results, arguments.pack, arguments.examples)
    except RankingError as error:
        parser.exit(2, f"{error}\n")
    if arguments.dry_run:
        print_plan(configs)
    elif not run_all(configs, arguments.pack, arguments.results):
        sys.exit(1)


if __name__ == "__main__":
    main()
