"""What is wrong with a request, in words."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from polyrank.service.api import findings
from polyrank.service.api.findings import MAX_ERRORS, MAX_FOUND, findings_in, refusal
from polyrank.service.api.pool_requests import IndexIn, ListIn, UpsertIn
from polyrank.service.api.requests import RankIn
from polyrank.service.errors import BodyInvalid, BodyMalformed


def refused(body: bytes, model: type[BaseModel] = RankIn) -> BodyInvalid | BodyMalformed:
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(body)
    return refusal(caught.value, model)


def said(body: bytes, model: type[BaseModel] = RankIn) -> list[str]:
    found = refused(body, model)
    assert isinstance(found, BodyInvalid)
    return [f"{where}: {what}" for where, what in found.found]


@pytest.mark.parametrize(("fields", "findings"), [
    ('"Top-K": 5', ["Top-K: unknown field; did you mean top_k?"]),
    ('"expect": {"zzz": 1}', ["expect.zzz: unknown field; there are fingerprint, generation"]),
    ('"rerank": {"top_n": 0}', ["rerank.top_n: must be 1 or more"]),
    ('"exclude_ids": [""]', ["exclude_ids.0: must not be empty"]),
    (
        '"filter": {"n": {"like": 1}}',
        ["filter: n.like: is not one of gt, gte, lt, lte, exists; for the field like inside it write n.like"],
    ),
    ('"top_k": 0, "retrieve_k": 0', ["top_k: must be 1 or more", "retrieve_k: must be 1 or more"]),
])  # fmt: skip
def test_each_mistake_has_one_finding(fields: str, findings: list[str]) -> None:
    assert said(b'{"context": "a", %s}' % fields.encode()) == findings


@pytest.mark.parametrize(("context", "finding"), [
    ("[]", "context: must not be empty"),
    ("[[1]]", "context.0: must be a string or an object, not a list"),
    ('[{"text": 5}]', "context.0.text: must be a string or a list, not a number"),
    ('[{"role": "user", "text": "a", "content": "a"}]', "context.0: give either `text` or `content`"),
    ('[{"role": "user", "contents": "a"}]', "context.0.contents: unknown field; did you mean content?"),
    ('[{"content": [{"type": "image_url", "image_url": {}}]}]', ": context: at least one turn must have text"),
    ('[{"content": [{"type": "text", "text": 5}]}]', "context.0.content: part 0: text must be a string"),
    ('[{"content": [5]}]', "context.0.content.0: must be a string or an object, not a number"),
    ('[{"content": 5}]', "context.0.content: must be a string or a list, not a number"),
    ('[{"text": null}]', "context.0: give either `text` or `content`"),
    ("null", "context: is required"),
    ('["", {"content": " "}]', ": context: at least one turn must have text"),
])  # fmt: skip
def test_only_the_branch_of_a_union_that_was_meant_is_explained(context: str, finding: str) -> None:
    assert said(b'{"context": %s}' % context.encode()) == [finding]


def test_a_required_field_under_a_wrong_name_is_one_mistake() -> None:
    assert said(b'{"contxt": "a"}') == ["contxt: unknown field; did you mean context?"]
    assert said(b'{"top_k": 5}') == ["context: is required"]


def test_the_whole_body_may_be_wrong() -> None:
    assert said(b"[]") == [": the body must be an object, not a list"]
    assert said(b"5", UpsertIn) == [": the body must be a list or an object, not a number"]
    assert said(b"[]", UpsertIn) == [": the body must not be empty"]
    assert said(b"{}", IndexIn) == [": give either `pool` or `candidates`"]
    assert said(b'{"candidate": []}', UpsertIn) == ["candidate: unknown field; did you mean candidates?"]


def test_places_within_a_list_that_is_the_body_are_named() -> None:
    assert said(b'[{"text": "a", "metadata": 5}]', UpsertIn) == ["0.metadata: must be an object, not a number"]
    assert said(b'{"candidates": [{"txt": "a"}]}', UpsertIn) == ["candidates.0.txt: unknown field; did you mean text?"]


def test_findings_never_hold_the_values_sent() -> None:
    body = b'{"context": [{"text": 123456789}], "top_k": "sesame", "unknown_field": "sesame", "persona": "sesame"}'
    found = said(body)
    assert len(found) == 4
    assert "sesame" not in str(found)
    assert "123456789" not in str(found)


def test_a_flood_of_errors_is_cut() -> None:
    def unknown(count: int) -> bytes:
        return b'{"context": "a", %s}' % ",".join(f'"field{n}": 1' for n in range(count)).encode()

    assert len(said(unknown(MAX_FOUND))) == MAX_ERRORS
    assert "too many to name" in said(unknown(MAX_FOUND + 1))[0]


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names for which a meant one was looked for, which takes far longer than all else."""
    names: list[str] = []
    guess = findings.get_close_matches

    def counted(name: str, *arguments: Any, **options: Any) -> list[str]:
        names.append(name)
        return guess(name, *arguments, **options)

    monkeypatch.setattr(findings, "get_close_matches", counted)
    return names


@pytest.mark.parametrize("count", [MAX_ERRORS, MAX_FOUND, MAX_FOUND + 1, 990, 100_000])
def test_meant_names_are_looked_for_only_where_they_are_shown(count: int, guessed: list[str]) -> None:
    shown = said(b'{"context": "hi", %s}' % b",".join(b'"x%d": 1' % n for n in range(count)))
    assert len(guessed) <= len(shown) <= MAX_ERRORS


def test_parameters_are_no_more_work_than_fields(guessed: list[str]) -> None:
    errors = [{"type": "extra_forbidden", "loc": ("query", str(n)), "input": ""} for n in range(1000, 6000)]
    assert findings_in(errors, ListIn) == [("", "5000 things are wrong with the request: too many to name")]
    assert len(findings_in(errors[:MAX_FOUND], ListIn)) == len(guessed) == MAX_ERRORS


def test_a_meant_name_that_is_shown_is_looked_for_behind_any_number_of_other_mistakes(guessed: list[str]) -> None:
    unknown = b",".join(b'"x%d": 1' % n for n in range(50))
    shown = said(b'{"context": [{"role": "user", "txt": "a", %s}], "topk": 5}' % unknown)
    assert shown[0] == "context.0.txt: unknown field; did you mean text?"
    assert len(shown) == len(guessed) == MAX_ERRORS


def test_a_long_unknown_name_is_cut() -> None:
    assert len(said(b'{"context": "a", "%s": 1}' % (b"x" * 100_000))[0]) < 320


@pytest.mark.parametrize(("body", "hint"), [
    (b'{"context": ', "EOF"), (b"{'context': 1}", "names and strings stand in double quotes"),
    (b'{"context": "a",}', "remove it"),
])  # fmt: skip
def test_what_is_no_json_is_another_error(body: bytes, hint: str) -> None:
    found = refused(body)
    assert isinstance(found, BodyMalformed)
    assert hint in str(found)
