"""What `auto` chooses on a GPU, and why: a line of JSON for each model and for each precision of each of its parts.

    python -m benchmarks.gpu.precision [--models CHECKPOINT ...] [--base build/gpu/base | --random | --tiny]

`choice` holds the milliseconds of a usual batch and what was refused. `refused` of a precision is null where it passes
the trials of `auto`: near to float32, and the same to the last bit in any batch. `--base` runs adapters over these
weights, which `prepare.py` has rounded, in place of their own base's, `--random` over random
ones. `--tiny` tries small models with random weights.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.random_models import MINILM, TINY, loaded, write_base

import polyrank
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.lookup import resolve_base
from polyrank.model.errors import RankingError
from polyrank.model.inference import trials
from polyrank.model.inference.parts import PARTS, NetworkPart
from polyrank.model.inference.runners import AUTO, BFLOAT16, FLOAT16, FLOAT32, TORCH, PartName, Runner
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.inference.trials import sequences
from polyrank.model.rankers.lexical import LexicalRanker
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.assembly import Conversation

KINDS: dict[str, dict[str, Any]] = {"poly": {"architecture": "poly", "n_codes": 4}, "uni": {"architecture": "uni"}}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--models", nargs="+", type=Path, default=[Path("checkpoints", f"chat-{kind}") for kind in KINDS]
    )
    parser.add_argument("--base", type=Path)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    given = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        try:
            if given.tiny:
                models = _tiny(Path(folder))
            else:
                base = write_base(Path(folder) / "base", MINILM) if given.random else given.base
                models = [rebased(model, base, Path(folder)) if base else model for model in given.models]
            for model in models:
                for row in measure(model, given.device):
                    print(json.dumps({"model": model.name, "device": given.device, **row}), flush=True)
        except RankingError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _tiny(folder: Path) -> list[Path]:
    base = write_base(folder / "base", TINY)
    for name, fields in KINDS.items():
        loaded(base, name, "cpu", Runner(TORCH, FLOAT32), **fields)
    return [folder / name for name in KINDS]


def rebased(checkpoint: Path, base: Path, folder: Path) -> Path:
    """Copy a checkpoint into a folder, and let the copy refer to another base model.

    Raises:
        ModelNotFound, CheckpointInvalid: the checkpoint or the base cannot be used.
    """
    copy = Path(shutil.copytree(checkpoint, folder / checkpoint.name))
    found = resolve_base(str(base))
    config = replace(read_config(copy / CONFIG_FILE), base_name=found.name, base_sha256=found.sha256, base_forms=())
    write_config(copy / CONFIG_FILE, config)
    return copy


def measure(model: Path, device: str) -> Iterator[dict[str, Any]]:
    """Load a model as `auto` would run it, then try each precision of each part."""
    ranker = polyrank.load(model, device, AUTO, AUTO)
    assert not isinstance(ranker, LexicalRanker)
    if ranker.retrieves:
        ranker.encode_contexts([ranker.tokenize_context(Conversation.of("hi"))[0]])
    yield {"precision": ranker.precision, "choice": asdict(ranker.choice) if ranker.choice else None}
    once = ARCHITECTURES[ranker.architecture].reads_once
    names: tuple[PartName, ...] = ("known", "beside") if once else ("pairs",)
    parts: list[NetworkPart] = [
        PARTS[name](ranker.encoder) for name in (("contexts", "candidates") if ranker.retrieves else names)
    ]
    for part in parts:
        reference, given = TorchBackend(device).compile(part), sequences(part, ranker._assembler)
        for precision in (FLOAT32, BFLOAT16, FLOAT16):
            forward = TorchBackend(device, precision).compile(part)
            why = trials.why_refused(forward, reference, given, part)
            yield {"part": part.reads, "tried": precision, "refused": why or None}


if __name__ == "__main__":
    sys.exit(main())
