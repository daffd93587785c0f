"""What a second stage costs: bytes on disk, and milliseconds over stored candidates beside the forward passes.

    python -m benchmarks.second_stage [--architectures colbert] [--candidates 200] [--pool 20000] [--context 128]
        [--backend torch] [--precision float32] [--threads 1] [--seconds 2] [--json]

The models have MiniLM's shape and random weights. A pool of random words, of 6 to 24 tokens, is built into a store.
"context" is one forward pass over a context of so many tokens; "fetch" takes the candidates' rows from the maps of the
store; "late" scores them; "cross" reads as many pairs with a Cross-encoder, "uni" with a Uni-Encoder that has not read
the context yet, "uni again" with one that has. Each is timed in turns with the others: median and quartiles. "price" is
what admission takes "late" for, in tokens.
"""

import argparse
import json
import tempfile
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.random_models import MINILM, loaded, token_ids, write_base
from benchmarks.timing import quartiles_ms

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.inference.runners import BACKENDS, FLOAT32, PRECISIONS, TORCH, Runner
from polyrank.model.text.sequences import Pairs

SHORTEST, LONGEST = 4, 22  # words of a candidate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", nargs="+", default=["colbert"])
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--pool", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--backend", default=TORCH, choices=BACKENDS)
    parser.add_argument("--precision", default=FLOAT32, choices=PRECISIONS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        base = write_base(Path(directory, "base"), MINILM)
        found = {name: measured(base, name, arguments) for name in arguments.architectures}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for what, figure in figures.items():
            print(f"  {what}: {figure}")


def measured(base: Path, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build a store with a model of this architecture, and time its second stage."""
    runner, rng = Runner(arguments.backend, arguments.precision), np.random.default_rng(0)
    ranker = loaded(base, name, "cpu", runner, architecture=name)
    cross, uni = (loaded(base, each, "cpu", runner, architecture=each) for each in ("cross", "uni"))
    root = base.parent / f"store-{name}"
    build(ranker, _candidates(rng, arguments.pool), root, BuildOptions(index="exact"))
    [generation], _ = GenerationStore(root).open_to_serve()
    sizes = {each.name: each.stat().st_size / arguments.pool for each in generation.path.glob("*.bin")}
    sizes |= {each.name: each.stat().st_size / arguments.pool for each in generation.path.glob("late.offsets")}
    [context] = token_ids(rng, np.array([arguments.context]), MINILM)
    [encoded] = ranker.represent_contexts([context])
    rows = rng.choice(arguments.pool, arguments.candidates, replace=False)
    stored = generation.embeddings.representations(rows)
    texts = [each.text for each in generation.candidates.rows(rows)]
    pairs = Pairs([context], [ids[1:] for ids in ranker.tokenize_candidates(texts)[0]], [0] * len(texts))
    new = (pairs._replace(contexts=[[*context[:-1], token]]) for token in cycle(range(MINILM.vocabulary)))
    took = quartiles_ms(
        {
            "context": partial(ranker.represent_contexts, [context]),
            "fetch": partial(generation.embeddings.representations, rows),
            "late": partial(ranker.late_scores, encoded, stored),
            "cross": partial(cross.score_pairs, pairs),
            "uni": lambda: uni.score_pairs(next(new)),
            "uni again": partial(uni.score_pairs, pairs),
        },
        arguments.seconds,
    )
    assert stored.counts is not None
    stage = took["fetch"][0] + took["late"][0]
    return {
        "bytes a candidate": {file: round(size, 1) for file, size in sizes.items()},
        "rows a candidate": round(float(stored.counts.mean()), 2),
        "ms": took,
        "fetch and late, of a context's pass": round(stage / took["context"][0], 3),
        "cross, of fetch and late": round(took["cross"][0] / stage, 1),
        "cross, of uni": round(took["cross"][0] / took["uni"][0], 1),
        "cross, of uni again": round(took["cross"][0] / took["uni again"][0], 1),
        "price": ranker.late_tokens(len(context), stored.counts),
    }


def _candidates(rng: np.random.Generator, count: int) -> list[Candidate]:
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    words = rng.integers(0, MINILM.vocabulary - 10, lengths.sum())
    return [
        Candidate(f"c{at}", " ".join(f"w{word}" for word in own))
        for at, own in enumerate(np.split(words, np.cumsum(lengths)[:-1]))
    ]


if __name__ == "__main__":
    main()
