"""Train one of the published chat models in a single run of a few minutes, and measure it.

    python -m benchmarks.gpu.ship chat-poly --pack build/gpu --output OUT --seconds 420 [--no-words] [--seed 11]

It learns from the dialogues of `checkpoints/real_chat.py`. A trial of a few steps tells how many fit into the
seconds of training. OUT gets the checkpoint (an adapter of 6 to 11 MB) and NAME.json with its figures. The figures are
written after training and again after each evaluation, so a run that is cut off keeps those it had. Only sets that
allow commercial use are trained on.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.measured import READING, evaluated, trained
from benchmarks.gpu.pack import BASE, CONVAI2, EVALUATION, MULTIWOZ, PARTNERS, PERSONA_CHAT, TASKMASTER, UBUNTU, WORDS

from polyrank.model.errors import RankingError
from polyrank.model.training.config import Data, TrainConfig

WEIGHT_OF = {CONVAI2: 6.0, PARTNERS: 2.0, UBUNTU: 3.5, MULTIWOZ: 2.0, PERSONA_CHAT: 1.0, TASKMASTER: 0.3}
HELD_OUT = 300
RECIPE: dict[str, Any] = {
    "lora_rank": 64,
    "schedule": "cosine",
    "warmup_steps": 100,
    "looks": 5,
    "dropout": 0.1,
    "precision": "bf16",
    "chunk_tokens": 500_000,  # all contexts at once, and all candidates: a GPU runs few large batches best
    "reduction": "mean",  # the base's own, which the folder does not say
    **READING,
}
LATE: dict[str, Any] = {"batch_size": 256, "extra_replies": 256, "learning_rate": 8e-4, "code_learning_rate": 5e-3}
MODELS: dict[str, dict[str, Any]] = {
    "chat-bi": {"architecture": "bi", **LATE},
    "chat-poly": {"architecture": "poly", "context_vectors": "codes", "n_codes": 64, **LATE},
    "chat-cross": {"architecture": "cross", "batch_size": 32, "negatives": 15, "learning_rate": 4e-4},
    "chat-uni": {"architecture": "uni", "batch_size": 32, "negatives": 31, "learning_rate": 4e-4},
}
TRIAL_STEPS = 30
_SPARE = 0.9  # of the seconds: looks take some


def config_of(name: str, base: Path, words: Path | None = None, **changed: Any) -> TrainConfig:
    """Return the settings of a published model's run; raises InvalidInput if a changed one makes no sense.

    words: the model whose words count in the loss of a Bi- or Poly-encoder.
    """
    counted = {"words": str(words)} if words is not None and name in ("chat-bi", "chat-poly") else {}
    return TrainConfig.of(**{"base": str(base), **RECIPE, **MODELS[name], **counted, **changed})


def data_of(pack: Path) -> Data:
    """Return the files to train on, with their weights."""
    return Data([pack / each for each in WEIGHT_OF], list(WEIGHT_OF.values()), held_out=HELD_OUT)


def steps_in(seconds: float, config: TrainConfig, data: Data) -> int:
    """Return how many steps fit into these seconds, of which a trial takes its part."""
    began = time.perf_counter()
    with TemporaryDirectory() as directory:
        figures = trained(replace(config, steps=TRIAL_STEPS, warmup_steps=1), data, Path(directory) / "trial")
    trial = time.perf_counter() - began
    left = _SPARE * (seconds - 2 * trial)  # the run itself reads files and weighs words, as the trial did
    return max(TRIAL_STEPS, int(left * figures["examples_per_second"] / config.batch_size))


def ship(name: str, config: TrainConfig, pack: Path, output: Path) -> None:
    """Train and measure; writes the checkpoint and the figures."""
    figures = trained(config, data_of(pack), output / name)
    record: dict[str, Any] = {"model": name, "settings": config.to_dict(), **figures, "evaluation": {}}
    _write(output / f"{name}.json", record)
    for each in EVALUATION:
        record["evaluation"] |= evaluated(output / name, pack, [each])
        _write(output / f"{name}.json", record)


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in record.items() if name != "settings"}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--pack", type=Path, required=True, help="the folder that prepare.py wrote")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training, the trial included")
    parser.add_argument("--words", action=argparse.BooleanOptionalAction, default=True, help="count in the loss")
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    try:
        words = arguments.pack / WORDS if arguments.words else None
        config = config_of(arguments.model, arguments.pack / BASE, words, seed=arguments.seed, steps=TRIAL_STEPS)
        config = replace(config, steps=steps_in(arguments.seconds, config, data_of(arguments.pack)))
        ship(arguments.model, config, arguments.pack, arguments.output)
    except RankingError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
