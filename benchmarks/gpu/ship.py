"""Train one of the published chat models in a single run of ten minutes, and measure it.

    python -m benchmarks.gpu.ship chat-poly --pack build/gpu --output OUT [--steps N] [--batch-size N]

The recipe is that of the models trained on a CPU, with larger batches and as many passes over the data as fit. OUT gets
the checkpoint (an adapter of a few MB) and NAME.json with its figures. The figures are written after training and again
after each evaluation, so a run that is cut off keeps those it had. Only sets that allow commercial use are used.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.measured import CHUNK_TOKENS, READING, evaluated, trained
from benchmarks.gpu.pack import BASE, EVALUATION, MULTIWOZ, PERSONA_CHAT, TASKMASTER, UBUNTU

from polyrank.model.errors import RankingError
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.run import Data

WEIGHT_OF = {PERSONA_CHAT: 5.0, UBUNTU: 5.0, MULTIWOZ: 1.0, TASKMASTER: 0.3}
RECIPE: dict[str, Any] = {
    "lora_rank": 32,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 50,
    "dropout": 0.0,
    "looks": 0.6,
    "precision": "bf16",
    "chunk_tokens": CHUNK_TOKENS,
    **READING,
}
MODELS: dict[str, dict[str, Any]] = {
    "chat-bi": {"architecture": "bi", "steps": 1000, "batch_size": 512},
    "chat-poly": {
        "architecture": "poly",
        "context_vectors": "codes",
        "n_codes": 64,
        "code_learning_rate": 5e-3,
        "steps": 1000,
        "batch_size": 512,
    },
    "chat-cross": {"architecture": "cross", "steps": 1500, "batch_size": 32, "negatives": 15},
}


def config_of(name: str, base: Path, **changed: Any) -> TrainConfig:
    """Return the settings of a published model's run; raises InvalidInput if a changed one makes no sense."""
    return TrainConfig.of(**{"base": str(base), **RECIPE, **MODELS[name], **changed})


def ship(name: str, config: TrainConfig, pack: Path, output: Path) -> None:
    """Train and measure; writes the checkpoint and the figures."""
    paths, weights = [pack / each for each in WEIGHT_OF], list(WEIGHT_OF.values())
    ranker, figures = trained(config, Data(paths, weights), output / name)
    record: dict[str, Any] = {"model": name, "settings": config.to_dict(), **figures, "evaluation": {}}
    _write(output / f"{name}.json", record)
    for each in EVALUATION:
        record["evaluation"] |= evaluated(ranker, pack, [each])
        _write(output / f"{name}.json", record)


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in record.items() if name != "settings"}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--pack", type=Path, required=True, help="the folder that prepare.py wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch-size", type=int)
    arguments = parser.parse_args()
    given = {"steps": arguments.steps, "batch_size": arguments.batch_size}
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        config = config_of(arguments.model, arguments.pack / BASE, **changed)
        ship(arguments.model, config, arguments.pack, arguments.output)
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
