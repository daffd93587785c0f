"""What requests may hold."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from polyrank.index_builder.pool.documents import MAX_ID_CHARS
from polyrank.service.api import requests
from polyrank.service.api.fields import Strict
from polyrank.service.api.pool_requests import DeleteIn, IndexIn, UpsertIn
from polyrank.service.api.requests import MAX_BATCH, MAX_PERSONA, MAX_TURNS, BatchIn, ClassifyIn, ExplainIn, RankIn
from polyrank.service.http.compat.openai import EmbeddingsIn
from polyrank.service.http.compat.reranked import CompatRerankIn
from polyrank.service.http.compat.tei import EmbedIn


def accepted(kind: type[Strict], **fields: object) -> Strict:
    return kind.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize("fields", [
    {"context": ""}, {"context": "  \n "}, {"context": []}, {"context": [{"text": "a", "who": "me"}]},
    {"context": "a", "candidates": [{"id": None}]}, {"context": "a", "candidates": [{"text": ""}]},
    {"context": "a", "candidates": ["b"], "exact": False}, {"context": "a", "candidates": ["b"], "retrieve_k": 5},
    {"context": "a", "top_k": -1}, {"context": "a", "top_k": 1001}, {"context": "a", "top_k": True},
    {"context": "a", "retrieve_k": 0}, {"context": "a", "rerank": 1}, {"context": "a", "rerank": {"top_n": 0}},
    {"context": "a", "rerank": {"top_n": 1001}}, {"context": "a", "filter": {"x": 2**63}},
    {"context": "a", "filter": {"$not": {"x": {"gte": 1, "lt": 2**80}}}},
    {"context": "a", "filter": {"x": [1, -(2**63) - 1]}}, {"context": "a", "timeout_ms": 0},
    {"context": "a", "timeout_ms": -1}, {"context": "a", "exclude_ids": [""]}, {"context": "a", "explain": False},
    {"context": "a", "min_revision": -1}, {"context": "a", "min_revision": True},
    {"context": "a", "expect": {"model": "x"}}, {"context": "a", "score_threshold": "0.5"},
    {"context": "a", "score_threshold": float("nan")},
    *({"context": "a", "answer_if": wrong} for wrong in (0, -0.5, 1.0001, 80, "0.8", True, float("nan"))),
    {"context": "a", "group_by": ""}, {"context": "a", "group_by": "topic", "limit_per_group": 0},
    {"context": "a", "group_by": "topic", "top_k": 501, "limit_per_group": 2},
])  # fmt: skip
def test_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        accepted(RankIn, **fields)


@pytest.mark.parametrize(("most", "one"), [
    (MAX_TURNS, lambda count: {"context": ["a"] * count}),
    (MAX_TURNS, lambda count: {"context": [{"text": "a"}] * count}),
    (MAX_PERSONA, lambda count: {"context": "a", "persona": ["p"] * count}),
    (10_000, lambda count: {"context": "a", "exclude_ids": ["i"] * count}),
    (MAX_ID_CHARS, lambda count: {"context": "a", "exclude_ids": ["i" * count]}),
    (MAX_ID_CHARS, lambda count: {"context": "a", "candidates": [{"id": "i" * count}]}),
    (64, lambda count: {"context": [{"text": "a", "role": "r" * count}]}),
], ids=["texts", "turns", "persona", "excluded", "excluded id", "candidate id", "role"])  # fmt: skip
def test_as_many_as_allowed_and_not_one_more(most: int, one: Callable[[int], dict[str, object]]) -> None:
    accepted(RankIn, **one(most))
    with pytest.raises(ValidationError):
        accepted(RankIn, **one(most + 1))


@pytest.mark.parametrize("fields", [
    {"context": "a\0b"},
    {"context": ["", "a"]},
    {"context": [{"role": "user", "text": "a"}, "b"]},
    {"context": "a", "candidates": ["b", {"id": "i"}, {"text": "t"}, {"id": "i", "text": "t"}]},
    {"context": "a", "filter": {"x": [1, True, None, "s", 1.5], "y": None, "$or": [{"z": {"gte": 1}}, {}]}},
    {"context": "a", "timeout_ms": 10**15},
    {"context": "a", "expect": {"fingerprint": "f"}},
    {"context": "a", "candidates": None, "exact": True},
    {"context": "a", "score_threshold": 1},
    *({"context": "a", "answer_if": share} for share in (1, 1e-300, 0.8)),
    {"context": "a", "group_by": "topic", "top_k": 500, "limit_per_group": 2},
    {"context": "a", "group_by": "topic", "candidates": ["b"]},
])  # fmt: skip
def test_accepted(fields: dict[str, object]) -> None:
    accepted(RankIn, **fields)


LINKED = ["See ", {"type": "link", "text": "https://a.example"}, "."]


def test_turns_may_have_the_shape_of_openai_and_of_this_server_together() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    body = accepted(
        RankIn,
        context=[
            "a", {"role": "user", "content": parts}, {"role": "assistant", "content": "d"},
            {"role": "user", "text": "e"}, {"role": "user", "content": LINKED}, {"role": "user", "text": LINKED},
        ],
    )  # fmt: skip
    assert isinstance(body, RankIn)
    turns = [(turn.text, turn.role) for turn in body.said().turns]
    assert turns == [
        ("a", None), ("b\nc", "user"), ("d", "assistant"), ("e", "user"), *[("See https://a.example.", "user")] * 2,
    ]  # fmt: skip


CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"order": 1234}'}}
UNSET = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}


def test_messages_are_taken_as_the_sdk_of_openai_dumps_them() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    sent = [
        {"role": "developer", "content": "be short", "name": "shop"},
        {"role": "user", "content": [image, {"type": "text", "text": "where is it?"}], "name": "ann"},
        {**UNSET, "role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
        {**UNSET, "role": "assistant", "content": "on its way", "parsed": None},
        {**UNSET, "role": "assistant", "content": None, "refusal": "no more"},
        {"role": "user", "text": "when?", "content": None},
        {"id": "m1", "type": "message", "status": "completed", "content": [{"type": "output_text", "text": "soon"}]},
    ]
    body = accepted(RankIn, context=sent)
    assert isinstance(body, RankIn)
    assert [(turn.role, turn.text) for turn in body.said().turns] == [
        ("developer", "be short"), ("user", "where is it?"), ("assistant", ""), ("assistant", ""),
        ("tool", "sent"), ("assistant", "on its way"), ("assistant", "no more"), ("user", "when?"), (None, "soon"),
    ]  # fmt: skip


@pytest.mark.parametrize("turn", [
    {"role": "user", "tool_calls": None},
    {"role": "user", "refusal": None, "name": "ann"},
    {"role": "user", "content": "a", "tool_call": [CALL]},
    {"role": "user", "content": "a", "text": "a"},
    {"role": "user", "content": ["a"] * (MAX_TURNS + 1)},
])  # fmt: skip
def test_what_is_no_message_is_refused(turn: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        accepted(RankIn, context=["a", turn])


def test_candidates_to_put_may_stand_under_their_name() -> None:
    rows = [{"id": "a", "text": "b", "metadata": {"n": 1}}]
    bare, named = (UpsertIn.model_validate_json(json.dumps(sent)) for sent in (rows, {"candidates": rows}))
    assert bare.rows == named.rows
    assert named.ids == ["a"]
    with pytest.raises(ValidationError, match="occurs 2 times"):
        UpsertIn.model_validate_json(json.dumps({"candidates": rows * 2}))


@pytest.mark.parametrize("fields", [
    {}, {"pool": "p", "candidates": [{"text": "a"}]}, {"candidates": []}, {"candidates": ["a"]},
    {"candidates": [{"id": "a"}]}, {"candidates": [{"text": "a", "metadata": {"$x": 1}}]},
    {"candidates": [{"text": "a", "metadata": {"x": 2**63}}]}, {"pool": "p", "activate": "yes"},
    {"pool": "p", "index": "flat"},
])  # fmt: skip
def test_refused_for_an_index(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        IndexIn.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b'[[1, {"a": 1e999}]]'])
def test_a_number_that_json_cannot_hold_is_refused_at_any_depth(number: bytes) -> None:
    with pytest.raises(ValidationError):
        IndexIn.model_validate_json(b'{"candidates": [{"text": "a", "metadata": {"x": %s}}]}' % number)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert RankIn.model_validate_json(b'{"context": "a", "context": "b"}').context == "b"


def test_what_was_said_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    turn_of = requests.turn_of
    monkeypatch.setattr(requests, "turn_of", lambda message: read.append(message) or turn_of(message))
    body = RankIn.model_validate({"context": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 60}] * 9})
    assert len(body.said().turns) == len(read) == 9


MANY = 500
PLAIN = {f"field{number}": number for number in range(5)}


@pytest.mark.parametrize(("kind", "body"), [
    (RankIn, {"context": [{"content": [{"type": "text", "text": "a"}]}] * MANY}),
    (RankIn, {"context": "a", "candidates": ["a"] * MANY}),
    (RankIn, {"context": "a", "candidates": [{"id": "a"}] * MANY}),
    (RankIn, {"context": "a", "exclude_ids": ["a"] * MANY}),
    (BatchIn, {"requests": [PLAIN] * MAX_BATCH}),
    (UpsertIn, [{"id": f"{number}", "text": "a", "metadata": PLAIN} for number in range(MANY)]),
    (IndexIn, {"candidates": [{"text": "a", "metadata": PLAIN}] * MANY}),
    (DeleteIn, {"ids": ["a"] * MANY}),
    (CompatRerankIn, {"query": "a", "documents": [{"text": "a", **PLAIN}] * MANY}),
], ids=["turns", "texts", "ids", "excluded", "rankings", "updates", "pool", "removed", "documents"])  # fmt: skip
def test_other_threads_may_go_on_at_each_member_of_a_list(kind: type[BaseModel], body: object) -> None:
    """They may where a function of Python begins; pydantic's own code lets nobody in."""
    begun: list[str] = []
    sent = json.dumps(body)
    sys.setprofile(lambda frame, event, _: begun.append(frame.f_code.co_name) if event == "call" else None)
    try:
        kind.model_validate_json(sent)
    finally:
        sys.setprofile(None)
    assert max(Counter(begun).values()) >= (MAX_BATCH if kind is BatchIn else MANY)


def unions_of(schema: object) -> Iterator[dict[str, Any]]:
    """The unions in a schema of pydantic's core."""
    if isinstance(schema, dict):
        yield from [schema] if schema.get("type") == "union" else []
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from unions_of(inner)


def holds_much(choice: object) -> bool:
    """Whether it is a list or an object of any fields, or checks one."""
    kind = choice[0] if isinstance(choice, tuple) else choice
    while isinstance(kind, dict) and kind["type"].startswith("function-"):
        kind = kind["schema"]
    return isinstance(kind, dict) and kind["type"] in ("list", "dict")


@pytest.mark.parametrize("kind", [RankIn, ExplainIn, ClassifyIn, UpsertIn, CompatRerankIn, EmbeddingsIn, EmbedIn])
def test_what_holds_much_is_tried_first(kind: type[BaseModel]) -> None:
    """Or pydantic copies all of it into an error that it is no string."""
    found = [each for each in unions_of(kind.__pydantic_core_schema__) if any(map(holds_much, each["choices"]))]
    assert found
    for each in found:
        assert holds_much(each["choices"][0]), each
        assert each.get("mode") == "left_to_right", each
