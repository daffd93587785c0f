"""What `auto` chooses on a GPU, and why: a line of JSON for each model and for each precision of each of its parts.

    python -m benchmarks.gpu.precision [--device cuda] [--models checkpoints/chat-poly checkpoints/chat-cross]

`choice` holds the milliseconds of a usual batch and what was refused. `refused` of a precision is null where it passes
the trials of `auto`: near to float32, and the same to the last bit in any batch.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import polyrank
from polyrank.model.inference import trials
from polyrank.model.inference.parts import CandidatePart, ContextPart, NetworkPart, PairPart
from polyrank.model.inference.runners import AUTO, BFLOAT16, FLOAT16, FLOAT32
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.inference.trials import sequences
from polyrank.model.text.assembly import Conversation


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=["checkpoints/chat-poly", "checkpoints/chat-cross"])
    given = parser.parse_args(argv)
    for model in given.models:
        for row in measure(model, given.device):
            print(json.dumps({"model": model, "device": given.device, **row}), flush=True)


def measure(model: str, device: str) -> Iterator[dict[str, Any]]:
    """Load a model as `auto` would run it, then try each precision of each part."""
    ranker = polyrank.load(model, device, AUTO, AUTO)
    if ranker.retrieves:
        ranker.encode_contexts([ranker.tokenize_context(Conversation.of("hi"))[0]])
    yield {"precision": ranker.precision, "choice": asdict(ranker.choice) if ranker.choice else None}
    parts: list[NetworkPart] = (
        [ContextPart(ranker.encoder), CandidatePart(ranker.encoder)] if ranker.retrieves else [PairPart(ranker.encoder)]
    )
    for part in parts:
        reference, given = TorchBackend(device).compile(part), sequences(part, ranker._assembler)
        for precision in (FLOAT32, BFLOAT16, FLOAT16):
            forward = TorchBackend(device, precision).compile(part)
            why = trials.why_refused(forward, reference, given, part.backbone().pad_id)
            yield {"part": part.reads, "tried": precision, "refused": why}


if __name__ == "__main__":
    main()
