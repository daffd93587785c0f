"""What a forward pass costs by the number of its tokens; gives the constants of model/architectures/batching.py.

    python -m benchmarks.forward_cost --model checkpoints/chat-poly [--threads 2]

Prints milliseconds of torch in float32 for batches of equal lengths, the shortest of several runs, and the line fitted
through them: seconds = (tokens + overhead) * seconds a token. The constant FORWARD_TOKENS is this `overhead`.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.timing import wall_seconds

import polyrank

LENGTHS = (12, 40, 120)
COUNTS = tuple(2**n for n in range(11))
RUNS = 9
MOST_TOKENS = 2048  # of a batch


def forwards(ranker: Any, most_tokens: int, vocabulary: int = 20_000) -> Iterator[tuple[int, int, float]]:
    """Yield the tokens of a sequence, the sequences of a batch, and the least seconds of several runs."""
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        for count in (each for each in COUNTS if each * length <= most_tokens):
            contexts = rng.integers(vocabulary // 20, vocabulary, (count, length)).tolist()
            yield length, count, min(wall_seconds(partial(ranker.encode_contexts, contexts)) for _ in range(RUNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ranker = polyrank.load(arguments.model)
    measured = []
    print("| tokens | batch | ms | ms a sequence | µs a token |\n| --- | --- | --- | --- | --- |")
    for length, count, seconds in forwards(ranker, MOST_TOKENS):
        measured.append((length * count, seconds))
        columns = (seconds * 1e3, seconds / count * 1e3, seconds / (length * count) * 1e6)
        print(f"| {length} | {count} | " + " | ".join(f"{each:.1f}" for each in columns) + " |")
    tokens, times = np.array(measured).T
    # Fit relative errors: a pass over few tokens is as important as one over many.
    terms = np.stack([tokens, np.ones_like(tokens)], 1) / times[:, None]
    a_token, fixed = np.linalg.lstsq(terms, np.ones(len(times)))[0]
    print(f"\n{arguments.threads} threads: {a_token * 1e6:.0f} µs a token, overhead {fixed / a_token:.0f} tokens")


if __name__ == "__main__":
    main()
