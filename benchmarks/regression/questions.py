"""The requests that `same_answers.py` sends: a fixed mixture over the sample conversations, and updates."""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]  # of conversations.jsonl or pool.jsonl
Body = dict[str, Any]  # of a request

ROLES = ("user", "agent")
UNKNOWN = "no-such-id"


def retrieval(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"]}


def one_text(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"][-1], "top_k": 3}


def roles(row: Row, pool: Sequence[Row]) -> Body:
    turns = [{"role": ROLES[at % 2], "text": turn} for at, turn in enumerate(row["context"])]
    return {"context": turns, "retrieve_k": 50, "top_k": 50}


def persona(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "persona": row.get("persona", ["The shop opens at 9 on weekdays."])}


def exact(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "exact": True, "top_k": 5}


def whole_pool(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "exact": True, "top_k": 1000}


def reranked(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "rerank": True}


def reranked_few(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "rerank": {"top_n": 4}, "top_k": 7}


def filtered(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "filter": {"topic": _metadata(row, pool)["topic"], "kind": "answer"}}


def filtered_by_some(row: Row, pool: Sequence[Row]) -> Body:
    topics = ["returns", "refunds", _metadata(row, pool)["topic"]]
    return {"context": row["context"], "filter": {"topic": topics}, "exclude_ids": [pool[0]["id"]], "rerank": True}


def filtered_by_logic(row: Row, pool: Sequence[Row]) -> Body:
    either = [{"kind": "question"}, {"topic": {"gte": "m", "lt": "s"}}]
    return {"context": row["context"], "filter": {"$or": either, "$not": {"added": {"exists": True}}}, "exact": True}


def without_some(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "exclude_ids": [each["id"] for each in pool[::3]] + [UNKNOWN]}


def given_texts(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": row["context"], "candidates": row["candidates"], "top_k": 20}


def given_ids(row: Row, pool: Sequence[Row]) -> Body:
    named = [{"id": each["id"]} for each in pool[5:40:3]]
    return {"context": row["context"], "candidates": [*named, {"id": UNKNOWN}], "exclude_ids": [pool[5]["id"]]}


def given_mixture(row: Row, pool: Sequence[Row]) -> Body:
    renamed = [{"id": pool[7]["id"], "text": "We open at nine."}, {"text": row["candidates"][0]}, {"id": pool[9]["id"]}]
    return {"context": row["context"], "candidates": [*renamed, *row["candidates"][1:6]], "rerank": {"top_n": 3}}


def long_context(row: Row, pool: Sequence[Row]) -> Body:
    return {"context": [each["text"] for each in pool[:30]] + row["context"], "top_k": 4}


MIXTURE: tuple[Callable[[Row, Sequence[Row]], Body], ...] = (
    retrieval,
    one_text,
    roles,
    persona,
    exact,
    whole_pool,
    reranked,
    reranked_few,
    filtered,
    filtered_by_some,
    filtered_by_logic,
    without_some,
    given_texts,
    given_ids,
    given_mixture,
    long_context,
)

# Refused, each for another reason.
REFUSED: tuple[Body, ...] = (
    {},
    {"context": " "},
    {"context": "hi", "top_k": 0},
    {"context": "hi", "colour": "red"},
    {"context": "hi", "candidates": ["a"], "exact": True},
    {"context": "hi", "candidates": [{"id": UNKNOWN}]},
    {"context": "hi", "filter": {"$nor": []}},
    {"context": "hi", "expect": {"generation": UNKNOWN}},
    {"context": "hi", "expect": {"fingerprint": "0" * 64}},
    {"context": "hi", "min_revision": 1_000_000, "timeout_ms": 50},
)


def mixture(conversations: Sequence[Row], pool: Sequence[Row]) -> list[Body]:
    """One request for each conversation, the kinds in turns; then those that are refused."""
    return [MIXTURE[at % len(MIXTURE)](row, pool) for at, row in enumerate(conversations)] + list(REFUSED)


def updates(pool: Sequence[Row]) -> list[tuple[str, str, Any]]:
    """Calls (method, path, body): new candidates, new texts, new metadata, deletions, one that comes back."""
    new = [{"text": f"Update {at}: {row['text']}", "metadata": {"added": at}} for at, row in enumerate(pool[:6])]
    named = [{"id": "added-1", "text": "Your parcel is with a neighbour.", "metadata": {"topic": "late_parcel"}}]
    texts = [{**row, "text": f"{row['text']} Sorry about that!"} for row in pool[10:14]]
    metadata = [{**row, "metadata": {**row["metadata"], "kind": "question"}} for row in pool[20:24]]
    gone = [row["id"] for row in pool[30:36]]
    return [
        ("PUT", "/index/candidates", [*new, *named]),
        ("PUT", "/index/candidates", texts),
        ("PUT", "/index/candidates", metadata),
        ("POST", "/index/candidates/delete", {"ids": [*gone, UNKNOWN]}),
        ("PUT", "/index/candidates", [{**pool[30], "text": "We are open again."}]),
        ("POST", "/index/candidates/delete", {"ids": ["added-1"]}),
    ]


def _metadata(row: Row, pool: Sequence[Row]) -> Row:
    """That of the conversation's reply."""
    metadata: Row = next(each["metadata"] for each in pool if each["text"] == row["response"])
    return metadata
