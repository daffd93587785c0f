"""How far the scores of each back-end are from torch's, and what that does to rankings.

    python benchmarks/parity.py --data examples/support/conversations.jsonl [F ...] --pool examples/support/pool.jsonl

Prints for each model and back-end: the 99th percentile and the largest of the differences of scores, of every context
with every text of the pool (for a Cross-encoder: with some texts drawn from it); the share of contexts whose ten best
texts are the same set; and, except for Cross-encoders, R@1 on each file over its own candidates with the points gained
or lost. The model "cross" is a base model with a seeded random head.
"""

import argparse
import gc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import polyrank
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.checkpoint.base import MINILM
from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.lists import rank_lists
from polyrank.model.inference.names import AUTO, BACKENDS, TORCH
from polyrank.model.search.topk import scores_of
from polyrank.model.text.dialogues import Dialogue, read_dialogues

CROSS = "cross"
TEXTS = 5000
PAIRS_OF = 20  # contexts that a Cross-encoder reads
PAIRS = 50  # texts that it reads with each of them


class Scores(NamedTuple):
    """Scores (contexts, texts), and R@1 of each file."""

    scores: np.ndarray
    first: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=[f"checkpoints/chat-{each}" for each in ("poly", "bi", "cross")] + [CROSS]
    )
    parser.add_argument("--data", nargs="+", type=Path, required=True)
    parser.add_argument("--pool", nargs="+", type=Path, required=True)
    parser.add_argument("--contexts", type=int, default=200, help="of each file, that are scored against the pool")
    parser.add_argument("--limit", type=int, help="of each file, for R@1")
    parser.add_argument("--backends", nargs="+", default=[each for each in BACKENDS if each not in (AUTO, TORCH)])
    arguments = parser.parse_args()
    files = {
        f"{path.parent.name}/{path.stem}": list(islice(read_dialogues(path), arguments.limit))
        for path in arguments.data
    }
    texts = [row.text for row in islice(read_pool(arguments.pool), TEXTS) if isinstance(row, Candidate)]
    print("| model | back-end | score p99 | largest | same ten best | " + " | ".join(f"R@1 {f}" for f in files) + " |")
    print("| --- " * (5 + len(files)) + "|")
    for name in arguments.models:
        reference = measured(name, TORCH, files, texts, arguments.contexts)
        row(name, TORCH, reference, reference)
        for backend in arguments.backends:
            try:
                row(name, backend, measured(name, backend, files, texts, arguments.contexts), reference)
            except InvalidInput as error:
                print(f"| {name} | {backend} | {error} |")


def measured(name: str, backend: str, files: dict[str, list[Dialogue]], texts: Sequence[str], contexts: int) -> Scores:
    gc.collect()
    chosen = [each for dialogues in files.values() for each in dialogues[:contexts]]
    ranker = loaded(name, backend)
    if not ranker.retrieves:
        rng = np.random.default_rng(0)
        drawn = [[texts[at] for at in rng.choice(len(texts), PAIRS, replace=False)] for _ in range(PAIRS_OF)]
        read = zip(chosen[:: max(1, len(chosen) // PAIRS_OF)], drawn, strict=False)
        return Scores(np.stack([ranker.score_pairs(ranker.tokenize_pairs(d.conversation, t)[0]) for d, t in read]), {})
    candidates = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    codes = ranker.encode_contexts([ranker.tokenize_context(each.conversation)[0] for each in chosen])
    scores = np.stack([scores_of(candidates, each) for each in codes])
    first = {
        each: float((rank_lists(ranker, listed, lambda *_: None).ranks == 1).mean()) for each, listed in files.items()
    }
    return Scores(scores, first)


def loaded(name: str, backend: str) -> Any:
    if name != CROSS:
        return polyrank.load(name, backend=backend)
    torch.manual_seed(0)
    return polyrank.from_base(MINILM, polyrank.ModelConfig(architecture="cross", base_name="", weights="base"), backend)


def row(name: str, backend: str, found: Scores, reference: Scores) -> None:
    apart = np.abs(found.scores - reference.scores)
    best, others = (np.argsort(-each.scores, axis=1, kind="stable")[:, :10] for each in (found, reference))
    same = np.mean([set(one) == set(other) for one, other in zip(best.tolist(), others.tolist(), strict=True)])
    first = [f"{found.first[f]:.4f} ({100 * (found.first[f] - reference.first[f]):+.2f})" for f in found.first]
    cells = [name, backend, f"{np.quantile(apart, 0.99):.5f}", f"{apart.max():.5f}", f"{same:.3f}", *first]
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
