"""Whether tokens matter as explanations say: what a reply loses where tokens are removed in the order of each claim.

    python -m benchmarks.faithfulness [--model checkpoints/chat-poly] [--count 100] [--seed 0]

For each bundled conversation the model scores the right reply and seven others. A share of the context's tokens is
removed, those first that are claimed to speak for the right reply; the table has the mean loss of its score against
the mean of the others. Vectors are in float32, and words do not count.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.explanation import Explanation, relative, without
from polyrank.model.rankers.load import load_late
from polyrank.model.rankers.networks import LateRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import finish

CONVERSATIONS = Path(__file__).parents[1] / "examples" / "support" / "conversations.jsonl"
REPLIES = 8
SHARES = {"an eighth": 8, "a quarter": 4, "half": 2}

Order = NDArray[np.int64]


def orders(places: Order, told: list[Explanation], right: int, rng: np.random.Generator) -> dict[str, Order]:
    """Return the context's tokens, by their places, in the order of each claim about the reply `right`."""
    tokens = np.stack([each.tokens for each in told if each.tokens is not None])
    beside, codes = relative(tokens, None)[right][places], told[right].codes
    assert codes is not None, "it has context vectors"
    claims = {
        "relative": beside,
        "tokens": tokens[right][places],
        "attention": (codes.weights @ codes.attention)[places],
        "random": rng.permutation(len(places)),
        "relative, shuffled": rng.permutation(beside),
    }
    return {name: places[np.argsort(-claim)] for name, claim in claims.items()}


def losses(
    ranker: LateRanker, row: dict[str, Any], rng: np.random.Generator
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what the right reply loses, by claim and share."""
    explainer, conversation = ranker.explainer, Conversation.of(row["context"], row.get("persona", ()))
    placed, _ = finish(explainer.context_steps(conversation))
    ids, replies = [token.id for token in placed], row["candidates"][:REPLIES]
    if row["response"] not in replies:
        replies = [row["response"], *replies[1:]]
    right = replies.index(row["response"])
    made = ranker.represent_candidates(ranker.tokenize_candidates(replies)[0])
    [sums], [context] = explainer.context_sums([ids]), ranker.represent_contexts([ids])
    told = [explainer.explain(context, sums, made.take([at]), None, []) for at in range(len(replies))]
    places = np.array([at for at, token in enumerate(placed) if token.start is not None])
    found = {
        (claim, share): without(ids, order[: max(1, round(len(places) / parts))].tolist())
        for claim, order in orders(places, told, right, rng).items()
        for share, parts in SHARES.items()
    }
    whole = margin(ranker.late_scores(context, made), right)
    for key, other in zip(found, ranker.represent_contexts([*found.values()]), strict=True):
        yield key, whole - margin(ranker.late_scores(other, made), right)


def margin(scores: NDArray[np.float32], right: int) -> float:
    """Return a score less the mean of the others."""
    return float(scores[right] - np.delete(scores, right).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="checkpoints/chat-poly")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    ranker, rng = load_late(arguments.model), np.random.default_rng(arguments.seed)
    lost: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()[: arguments.count]:
        for key, loss in losses(ranker, json.loads(line), rng):
            lost[key].append(loss)
    for share in SHARES:
        chance = float(np.mean(lost["random", share]))
        print(f"{share} removed:")
        for (claim, of), values in lost.items():
            if of == share:
                error = np.std(values) / np.sqrt(len(values))
                print(
                    f"  {claim:20} {np.mean(values):6.2f} ± {error:.2f}  {np.mean(values) / chance:5.1f} times random"
                )


if __name__ == "__main__":
    main()
