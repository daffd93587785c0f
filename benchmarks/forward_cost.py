"""What a forward costs by the tokens it reads: for the constants of model/architectures/batching.py.

    python benchmarks/forward_cost.py --model checkpoints/chat-poly [--threads 2] [--device cpu] [--backend torch]
        [--most-tokens 2048]

Prints milliseconds for batches of equal lengths, the least of several runs, and the line fitted through them: seconds =
(tokens + overhead) * seconds a token. `overhead` is what FORWARD_TOKENS says.
"""

import argparse
import time

import numpy as np
import torch

import polyrank
from polyrank.model.inference.names import BACKENDS, TORCH

LENGTHS = (12, 40, 120)
COUNTS = tuple(2**n for n in range(11))
RUNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default=TORCH, choices=BACKENDS)
    parser.add_argument("--most-tokens", type=int, default=2048, help="of a batch; a GPU takes far more")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ranker = polyrank.load(arguments.model, device=arguments.device, backend=arguments.backend)
    rng = np.random.default_rng(0)
    measured = []
    print("| tokens | batch | ms | ms a sequence | µs a token |\n| --- | --- | --- | --- | --- |")
    for length in LENGTHS:
        for count in (each for each in COUNTS if each * length <= arguments.most_tokens):
            contexts = [rng.integers(1000, 20_000, length).tolist() for _ in range(count)]
            seconds = min(_timed(ranker, contexts) for _ in range(RUNS))
            measured.append((length * count, seconds))
            columns = (seconds * 1e3, seconds / count * 1e3, seconds / (length * count) * 1e6)
            print(f"| {length} | {count} | " + " | ".join(f"{each:.1f}" for each in columns) + " |")
    tokens, times = np.array(measured).T
    # Relative errors count: a forward over few tokens is as important as one over many.
    terms = np.stack([tokens, np.ones_like(tokens)], 1) / times[:, None]
    a_token, fixed = np.linalg.lstsq(terms, np.ones(len(times)))[0]
    where = f"{ranker.backend}, {arguments.threads} threads" if arguments.device == "cpu" else arguments.device
    print(f"\n{where}: {a_token * 1e6:.0f} µs a token, overhead {fixed / a_token:.0f} tokens")


def _timed(ranker: polyrank.LateRanker, contexts: list[list[int]]) -> float:
    began = time.perf_counter()
    ranker.encode_contexts(contexts)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
