"""polyrank's side: the shipped chat-poly, or a Poly-encoder of as many codes, or a Cross-encoder, over a base model.

python -m benchmarks.peers.polyrank_worker encode|encode-base|rerank --models DIR --threads N [--precision auto]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.models import CHAT_POLY, cross_in, poly_in
from benchmarks.peers.worker import answer

from polyrank.model.inference.runners import Runner
from polyrank.model.rankers.load import load_cross, load_vector_ranker
from polyrank.model.text.assembly import Conversation

Calls = dict[str, Callable[[Sequence[Any]], Any]]


def encode(model: Path, runner: Runner) -> tuple[Calls, Runner]:
    """Return calls from texts to context vectors (N, M, D) and to candidate embeddings (N, D)."""
    ranker = load_vector_ranker(model, *runner)

    def contexts(texts: Sequence[str]) -> Any:
        tokens = [ranker.tokenize_context(Conversation.of(text))[0] for text in texts]
        return np.stack(ranker.encode_contexts(tokens))

    def candidates(texts: Sequence[str]) -> Any:
        return ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])

    return {"contexts": contexts, "candidates": candidates}, Runner(ranker.backend, ranker.precision)


def rerank(model: Path, runner: Runner) -> tuple[Calls, Runner]:
    """Return the call from pairs of one context to scores (N,)."""
    ranker = load_cross(model, "cpu", *runner)

    def pairs(given: Sequence[tuple[str, str]]) -> Any:
        conversation = Conversation.of(given[0][0])
        return ranker.score_pairs(ranker.tokenize_pairs(conversation, [text for _, text in given])[0])

    return {"pairs": pairs}, Runner(ranker.backend, ranker.precision)


WORKS = {
    "encode": lambda models, runner: encode(CHAT_POLY, runner),
    "encode-base": lambda models, runner: encode(poly_in(models), runner),
    "rerank": lambda models, runner: rerank(cross_in(models), runner),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    calls, runner = WORKS[arguments.work](arguments.models, Runner("auto", arguments.precision))
    answer(calls, {**runner._asdict(), "versions": {"torch": torch.__version__}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
