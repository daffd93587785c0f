"""Poly-encoder against Bi-encoder: same data, steps and seeds; differences paired over the examples, with words and
without.

    python -m benchmarks.poly_against_bi --data DATA --output FOLDER [--steps 150] [--seeds 0 1 2] [--base MODEL]

DATA holds the converted sets of TRAIN and YARDSTICKS. A run is short, by a recipe of its own. FOLDER keeps the
checkpoints: finished runs are not trained again, interrupted runs go on, and runs with other settings are refused. The
tables are those of words/quality.py.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.words.quality import Yardstick, report

from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.training.config import STATE_FILE, Data, TrainConfig
from polyrank.model.training.run import train

TRAIN = {
    "synthetic_persona_chat/train.jsonl.zst": 5.0,
    "ubuntu_irc/train.jsonl.zst": 5.0,
    "multiwoz21/valid.jsonl.zst": 1.0,
    "taskmaster4/train.jsonl.zst": 0.3,
}
YARDSTICKS = ("convai2/valid_a.self_original.jsonl.zst", "ubuntu_irc/valid.jsonl.zst")
ARCHITECTURES = ("poly", "bi")  # the tables have the first minus the second


def config_of(architecture: str, base: str, steps: int, seed: int) -> TrainConfig:
    """Return the settings of a run."""
    return TrainConfig.of(
        architecture="poly" if architecture == "poly" else "bi",
        base=base,
        steps=steps,
        seed=seed,
        batch_size=64,
        learning_rate=1e-3,
        code_learning_rate=5e-3,
        warmup_steps=20,
        schedule="cosine",
        looks=0.1,
        lora_rank=32,
        dropout=0.0,
        precision="bf16",
        max_turns=6,
        max_context_tokens=128,
        max_candidate_tokens=48,
    )


def trained(config: TrainConfig, files: Data, output: Path, *, evidence: bool = True) -> Path:
    """Train the run's checkpoint unless it exists, with words beside it if `evidence`; returns its folder.

    Raises:
        InvalidInput: the folder holds a run with other settings, or one that was cut short too early to be resumed.
        RankingError: a model or a file cannot be used.
    """
    resume = (output / STATE_FILE).is_file()
    if resume or not (output / CONFIG_FILE).is_file():
        train(config, files, output, resume=resume, evidence=evidence, on_survey=lambda *_: None, watch=lambda *_: None)
        return output
    summary = read_config(output / CONFIG_FILE).training
    if "steps" not in summary:  # added at the end of a run, while a checkpoint is saved before the first step
        raise InvalidInput(f"{output} holds a run that was cut short and cannot be resumed; remove it")
    if differing := config.differences(summary["settings"]):
        raise InvalidInput(f"{output} was trained with another {', '.join(differing)}; give another --output")
    return output


def main() -> None:
    """Print the tables, or in one line why there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    try:
        compare(parser.parse_args())
    except RankingError as error:
        parser.exit(1, f"{error}\n")


def compare(given: argparse.Namespace) -> None:
    """Train what is missing, then print the tables."""
    yardsticks = [Yardstick(given.data / name) for name in YARDSTICKS]  # read first: a path may be wrong
    files = Data([given.data / name for name in TRAIN], list(TRAIN.values()), held_out=300)
    models: dict[str, list[Path | str]] = {kind: [] for kind in ARCHITECTURES}
    for seed in given.seeds:
        for kind in ARCHITECTURES:
            config = config_of(kind, given.base, given.steps, seed)
            models[kind].append(trained(config, files, given.output / f"{kind}-{seed}"))
            print(f"trained {kind}, seed {seed}", file=sys.stderr, flush=True)
    report(yardsticks, models)


if __name__ == "__main__":
    main()
