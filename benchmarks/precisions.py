"""How much faster a model runs in lower precisions than in float32, by OpenVINO on one thread.

    python -m benchmarks.precisions [--model checkpoints/chat-poly] [--pool examples/support/pool.jsonl]

Precisions are timed in turns, by the processor time of this process, so other work on the machine hardly counts. Prints
the median milliseconds in float32, and for each other precision the factor by which it is faster, with the first and
third quartile over rounds. int8 takes a checkpoint that was quantised.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.encode import texts_of
from benchmarks.timing import in_turns, processor_seconds

import polyrank
from polyrank.model import threads
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.networks import CrossRanker, LateRanker, NetworkRanker
from polyrank.model.text.assembly import Conversation

PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="checkpoints/chat-poly")
    parser.add_argument("--pool", type=Path, default=Path("examples/support/pool.jsonl"))
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    threads.choose(1)
    rankers = {name: ranker for name in PRECISIONS if (ranker := loaded(arguments.model, name)) is not None}
    texts = texts_of(arguments.pool)
    for what in work(next(iter(rankers.values())), texts):
        calls = {name: work(ranker, texts)[what] for name, ranker in rankers.items()}
        took = {name: np.array(each) for name, each in in_turns(calls, arguments.rounds, 0, processor_seconds).items()}
        cells = [what, f"float32 {np.median(took['float32']) * 1e3:.1f} ms"]
        for name in list(took)[1:]:
            low, middle, high = np.percentile(took["float32"] / took[name], [25, 50, 75])
            cells.append(f"{name} {middle:.2f} [{low:.2f}, {high:.2f}]")
        print(" | ".join(cells), flush=True)


def loaded(model: str, precision: str) -> NetworkRanker | None:
    """Load the model; None where the processor or the checkpoint has no such precision."""
    try:
        ranker = polyrank.load(model, backend="openvino", precision=precision)
    except InvalidInput as error:
        print(f"{precision} is left out: {error}")
        return None
    assert isinstance(ranker, LateRanker | CrossRanker)
    return ranker


def work(ranker: NetworkRanker, texts: list[str]) -> dict[str, Callable[[], object]]:
    """What is timed, by its name."""
    conversations = [Conversation.of(texts[at : at + 1 + at % 6]) for at in range(32)]
    if isinstance(ranker, CrossRanker):
        pairs, _ = ranker.tokenize_pairs(conversations[2], texts[:50])
        return {"50 pairs": partial(ranker.score_pairs, pairs)}
    contexts = [ranker.tokenize_context(each)[0] for each in conversations]
    candidates, _ = ranker.tokenize_candidates(texts[:200])
    return {
        "one context": partial(ranker.encode_contexts, contexts[2:3]),
        "32 contexts": partial(ranker.encode_contexts, contexts),
        "200 candidates of a build": partial(ranker.encode_candidates, candidates),
    }


if __name__ == "__main__":
    main()
