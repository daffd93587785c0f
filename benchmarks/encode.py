"""What encoding costs: candidates a second offline, contexts online, pairs of a Cross-encoder."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.timing import medians_ms

from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.text.assembly import Conversation

_TURNS = 3
_PAIRS = 50
_MOST_TURNS = 10
_TOGETHER = 32


def texts_of(pool: Path, limit: int = 2000) -> list[str]:
    """Read the first texts of a pool."""
    rows = (row.text for row in read_pool([pool]) if isinstance(row, Candidate))
    return [text for text, _ in zip(rows, range(limit), strict=False)]


def measure_encode(ranker: VectorRanker, texts: list[str]) -> list[dict[str, Any]]:
    """Measure candidates a second, and milliseconds for a context of one turn, one of ten, and 32 of mixed length.

    Raises:
        InvalidInput: there are too few texts.
    """
    _require(texts, _MOST_TURNS)
    tokens, _ = ranker.tokenize_candidates(texts)
    ranker.encode_candidates(tokens[:64])
    began = time.perf_counter()
    ranker.encode_candidates(tokens)
    rate = len(texts) / (time.perf_counter() - began)
    rows: list[dict[str, Any]] = [{"what": "candidates", "count": len(texts), "per_second": round(rate, 1)}]
    contexts = [ranker.tokenize_context(Conversation.of(texts[:turns]))[0] for turns in range(1, _MOST_TURNS + 1)]
    mixed = [contexts[number % _MOST_TURNS] for number in range(_TOGETHER)]
    for what, given in (
        ("context of 1 turn", contexts[:1]),
        (f"context of {_MOST_TURNS} turns", contexts[-1:]),
        (f"{_TOGETHER} contexts of 1 to {_MOST_TURNS} turns", mixed),
    ):
        took = medians_ms({"ms": partial(ranker.encode_contexts, given)}, 3.0)
        rows.append({"what": what, "tokens": sum(map(len, given)), "ms": round(took["ms"], 2)})
    return rows


def measure_rerank(ranker: CrossRanker, texts: list[str]) -> list[dict[str, Any]]:
    """Measure how many milliseconds a Cross-encoder takes for fifty candidates with a context of three turns.

    Raises:
        InvalidInput: there are too few texts.
    """
    _require(texts, _TURNS + _PAIRS)
    pairs, _ = ranker.tokenize_pairs(Conversation.of(texts[:_TURNS]), texts[_TURNS : _TURNS + _PAIRS])
    took = medians_ms({"ms": partial(ranker.score_pairs, pairs)}, 5.0)
    longest = len(pairs.contexts[0]) + max(len(ids) for ids in pairs.candidates)
    return [{"pairs": len(pairs.owners), "longest_tokens": longest, "ms": round(took["ms"], 2)}]


def _require(texts: list[str], count: int) -> None:
    if len(texts) < count:
        raise InvalidInput(f"the pool holds {len(texts)} texts; {count} are needed")
