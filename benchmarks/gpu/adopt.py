"""Make an adapter that was trained on a copy of a base, as it is or in half precision, refer to the base itself.

    python -m benchmarks.gpu.adopt CHECKPOINT [CHECKPOINT ...] --base MODEL

A sha256 in the checkpoint names the weights that it was trained on. They must be those of MODEL, or those rounded to
half precision, which keeps about three digits of each number. After rounding measure the adopted checkpoint again: the
figures of its run belong to slightly different weights.
"""

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.pack import halved

from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE, read_config, write_config
from polyrank.model.checkpoint.lookup import BaseModel, resolve_base
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.rankers.load import load


def adopt(checkpoint: Path, base_name: str) -> str:
    """Set the checkpoint's reference to the base; returns its new fingerprint. Repeating it changes nothing.

    Raises:
        InvalidInput: the checkpoint holds no adapter, or was not trained on this base rounded.
        ModelNotFound, CheckpointInvalid: the checkpoint or the base cannot be used.
    """
    if not (checkpoint / CONFIG_FILE).is_file():
        raise InvalidInput(f"{checkpoint} is no checkpoint: it has no {CONFIG_FILE}")
    config = read_config(checkpoint / CONFIG_FILE)
    if config.weights != "adapter":
        raise InvalidInput(f"{checkpoint} holds {config.weights} weights; only an adapter refers to its base")
    base = resolve_base(base_name)
    if config.base_sha256 not in (base.sha256, _rounded_sha256(base)):
        raise InvalidInput(f"{checkpoint} was trained on other weights than {base_name}, in full or half precision")
    training = dict(config.training)
    if "settings" in training:
        training["settings"] = {
            **training["settings"],
            "base": base.name,
        }  # it was a folder of the machine with the GPU
    adopted = replace(
        config, base_name=base.name, base_sha256=base.sha256, base_forms=base.other_forms, training=training
    )
    write_config(checkpoint / CONFIG_FILE, adopted)
    return load(checkpoint).fingerprint


def _rounded_sha256(base: BaseModel) -> str:
    return hashlib.sha256(halved(base.directory / WEIGHTS_FILE)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--base", required=True, help="the base model whose rounded weights were trained on")
    arguments = parser.parse_args()
    for checkpoint in arguments.checkpoints:
        try:
            print(f"{checkpoint}: {adopt(checkpoint, arguments.base)}")
        except RankingError as error:
            parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
