"""Put everything that the other scripts need into one folder that is small enough to send.

    python -m benchmarks.gpu.prepare --train DIR --data DIR --base MODEL --words MODEL \
        --output build/gpu

`--train` is what `checkpoints/real_chat.py` wrote, `--data` holds the converted sets, one folder each
(`pack.EVALUATION`), `--words` is a checkpoint with evidence. Dialogues are compressed already and copied unchanged.
Weights do not compress; half precision makes them smaller.
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.gpu.pack import BASE, EVALUATION, MOST_BYTES, TRAINING, WORDS, halved

from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from polyrank.model.checkpoint.lookup import resolve_base
from polyrank.model.errors import InvalidInput, RankingError


def prepare(train: Path, data: Path, base_name: str, words: Path, output: Path) -> int:
    """Write the folder; returns its size in bytes.

    Raises:
        InvalidInput: a file is missing, the folder is not empty, or the result would be too large.
        ModelNotFound, CheckpointInvalid: there is no such base model.
    """
    if output.exists() and any(output.iterdir()):
        raise InvalidInput(f"{output} is not empty; give a new folder")
    sources = {output / name: train / name for name in TRAINING} | {output / name: data / name for name in EVALUATION}
    sources[output / WORDS / CONFIG_FILE] = words / CONFIG_FILE
    missing = [str(source) for source in sources.values() if not source.is_file()]
    if missing:
        raise InvalidInput(f"{', '.join(missing)}: no such file")
    base = resolve_base(base_name)
    weights = halved(base.directory / WEIGHTS_FILE)
    sources |= {output / BASE / name: base.directory / name for name in (BASE_BACKBONE_FILE, TOKENIZER_FILE)}
    size = len(weights) + sum(source.stat().st_size for source in sources.values())
    if size > MOST_BYTES:
        raise InvalidInput(f"all of it is {size} bytes, more than {MOST_BYTES}; use a smaller base model")
    for target, source in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    (output / BASE / WEIGHTS_FILE).write_bytes(weights)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="the folder that real_chat.py wrote")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the converted sets")
    parser.add_argument("--base", required=True, help="base model's directory or name")
    parser.add_argument("--words", type=Path, required=True, help="the checkpoint whose words count in the loss")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        size = prepare(arguments.train, arguments.data, arguments.base, arguments.words, arguments.output)
    except RankingError as error:
        parser.exit(1, f"{error}\n")
    print(f"{arguments.output}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
