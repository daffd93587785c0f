"""Put everything that the other scripts need into one folder that is small enough to send.

    python -m benchmarks.gpu.prepare --data DIR --base MODEL --output build/gpu

`--data` holds the converted sets, one folder each (`pack.FILES`). They are compressed already and copied unchanged.
Weights do not compress; half precision makes them smaller.
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.gpu.pack import BASE, FILES, MOST_BYTES, halved

from polyrank.model.checkpoint.base import resolve_base
from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from polyrank.model.errors import InvalidInput, RankingError


def prepare(data: Path, base_name: str, output: Path) -> int:
    """Write the folder; returns its size in bytes.

    Raises:
        InvalidInput: a file is missing, the folder is not empty, or the result would be too large.
        ModelNotFound, CheckpointInvalid: there is no such base model.
    """
    if output.exists() and any(output.iterdir()):
        raise InvalidInput(f"{output} is not empty; give a new folder")
    missing = [name for name in FILES if not (data / name).is_file()]
    if missing:
        raise InvalidInput(f"{data} lacks {', '.join(missing)}")
    base = resolve_base(base_name)
    weights = halved(base.directory / WEIGHTS_FILE)
    sources = {output / name: data / name for name in FILES}
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
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", required=True, help="base model's directory or name")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        size = prepare(arguments.data, arguments.base, arguments.output)
    except RankingError as error:
        parser.exit(1, f"{error}\n")
    print(f"{arguments.output}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
