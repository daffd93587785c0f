"""How far the scores of each back-end and precision are from those of torch in float32, and what that does to rankings.

    python benchmarks/parity.py --data examples/support/conversations.jsonl [F ...] --pool examples/support/pool.jsonl

Prints for each model and runner: the 99th percentile and the largest of the differences of scores, of every context
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
from polyrank.model.inference.names import Runner
from polyrank.model.search.topk import scores_of
from polyrank.model.text.dialogues import Dialogue, read_dialogues

CROSS = "cross"
REFERENCE = Runner("torch", "float32")
RUNNERS = ("openvino float32", "openvino float16", "openvino bfloat16", "openvino-int8 auto")
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
    parser.add_argument("--runners", nargs="+", default=RUNNERS, metavar="'BACKEND PRECISION'")
    arguments = parser.parse_args()
    files = {
        f"{path.parent.name}/{path.stem}": list(islice(read_dialogues(path), arguments.limit))
        for path in arguments.data
    }
    texts = [row.text for row in islice(read_pool(arguments.pool), TEXTS) if isinstance(row, Candidate)]
    print("| model | back-end | score p99 | largest | same ten best | " + " | ".join(f"R@1 {f}" for f in files) + " |")
    print("| --- " * (5 + len(files)) + "|")
    for name in arguments.models:
        reference = measured(name, REFERENCE, files, texts, arguments.contexts)
        row(name, REFERENCE, reference, reference)
        for runner in (Runner(*each.split()) for each in arguments.runners):
            try:
                row(name, runner, measured(name, runner, files, texts, arguments.contexts), reference)
            except InvalidInput as error:
                print(f"| {name} | {' '.join(runner)} | {error} |")


def measured(
    name: str, runner: Runner, files: dict[str, list[Dialogue]], texts: Sequence[str], contexts: int
) -> Scores:
    gc.collect()
    chosen = [each for dialogues in files.values() for each in dialogues[:contexts]]
    ranker = loaded(name, runner)
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


def loaded(name: str, runner: Runner) -> Any:
    if name != CROSS:
        return polyrank.load(name, "cpu", *runner)
    torch.manual_seed(0)
    return polyrank.from_base(MINILM, polyrank.ModelConfig(architecture="cross", base_name="", weights="base"), *runner)


def row(name: str, runner: Runner, found: Scores, reference: Scores) -> None:
    apart = np.abs(found.scores - reference.scores)
    best, others = (np.argsort(-each.scores, axis=1, kind="stable")[:, :10] for each in (found, reference))
    same = np.mean([set(one) == set(other) for one, other in zip(best.tolist(), others.tolist(), strict=True)])
    first = [f"{found.first[f]:.4f} ({100 * (found.first[f] - reference.first[f]):+.2f})" for f in found.first]
    cells = [name, " ".join(runner), f"{np.quantile(apart, 0.99):.5f}", f"{apart.max():.5f}", f"{same:.3f}", *first]
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
