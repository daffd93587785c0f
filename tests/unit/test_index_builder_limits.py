"""One bound for candidates, whichever way they come: a pool file, an update, a build by HTTP."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from polyrank.index_builder.pool.limits import checked_id
from polyrank.index_builder.pool.rows import Candidate, Rejected, read_pool
from polyrank.service.api.pool_requests import DeleteIn, IndexIn, UpsertIn


def _nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


def _taken(tmp_path: Path, row: bytes) -> list[bool]:
    """Whether a pool, an update and a build by HTTP take the row."""
    (tmp_path / "pool.jsonl").write_bytes(row)
    [read] = read_pool([tmp_path / "pool.jsonl"])
    found = [isinstance(read, Candidate)]
    for kind, body in ((UpsertIn, b"[" + row + b"]"), (IndexIn, b'{"candidates":[' + row + b"]}")):
        try:
            kind.model_validate_json(body)
        except ValidationError:
            found.append(False)
        else:
            found.append(True)
    return found


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        (_nested(100), True),
        (_nested(102), False),
        (_nested(254), False),
        (_nested(301), False),
        (b'{"a":' + _nested(301, b"[", b"]") + b"}", False),
        (b'{"a": 9223372036854775807, "b": -9223372036854775808}', True),
        (b'{"a": 9223372036854775808}', False),
        (b'{"a": 18446744073709551616}', False),
        (b'{"a": [{"b": -9223372036854775809}]}', False),
        (b'{"a": 1e300, "b": 0.12345678901234567890}', True),
        (b'{"a": "' + b"1" * 30 + b'"}', True),
        (b'{"a": [' + b"1," * 32_000 + b"1]}", True),
        (b'{"a": [' + b"1," * 33_000 + b"1]}", False),
        (b'{"a": "' + b"x" * 65_600 + b'"}', False),
        (b"{" + b",".join(b'"%d":1' % n for n in range(4096)) + b"}", True),
        (b"{" + b",".join(b'"%d":1' % n for n in range(4097)) + b"}", False),
        (b'{"$a": 1}', False),
        (b'{"a": {"$a": 1}}', True),
    ],
    ids=[
        "100-levels",
        "102-levels",
        "254-levels",
        "301-levels",
        "301-lists",
        "64-bits",
        "65-bits",
        "66-bits",
        "65-bits-inside",
        "floats",
        "digits-in-text",
        "64-kB",
        "66-kB",
        "66-kB-of-text",
        "4096-fields",
        "4097-fields",
        "operator",
        "operator-inside",
    ],
)
def test_metadata_has_the_same_bounds_everywhere(tmp_path: Path, metadata: bytes, taken: bool) -> None:
    assert _taken(tmp_path, b'{"id": "a", "text": "x", "metadata": ' + metadata + b"}") == [taken] * 3


@pytest.mark.parametrize(("length", "taken"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_ids_have_the_same_bounds_everywhere(tmp_path: Path, length: int, taken: bool) -> None:
    assert _taken(tmp_path, b'{"text": "x", "id": "' + b"i" * length + b'"}') == [taken] * 3


@pytest.mark.parametrize(
    "taken", ["%2F", "a/../b", "/", "//x", "...", " ", "\u00a0", "a\u200db", "\ufeff", "\U0001f600"]
)
def test_an_id_may_hold_whatever_a_path_can(tmp_path: Path, taken: str) -> None:
    assert _taken(tmp_path, json.dumps({"text": "x", "id": taken}).encode()) == [True] * 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("two\nlines", "must not hold control characters or line separators, as U+000A at character 4 is"),
        ("\x00", "as U+0000 at character 1 is"),
        ("end\r", "as U+000D at character 4 is"),
        ("\x7f", "as U+007F"),
        ("\x85", "as U+0085"),
        ("\u2028", "as U+2028"),
        ("\u2029", "as U+2029"),
        (".", "must be another than . and .., which programs drop from a path"),
        ("..", "must be another than . and .."),
    ],
)
def test_an_id_that_no_path_holds_is_refused_with_the_same_words(tmp_path: Path, given: str, says: str) -> None:
    row = json.dumps({"text": "x", "id": given}).encode()
    assert _taken(tmp_path, row) == [False] * 3
    [rejected] = read_pool([tmp_path / "pool.jsonl"])
    assert isinstance(rejected, Rejected)
    assert says in rejected.reason
    with pytest.raises(ValidationError) as refused:
        UpsertIn.model_validate_json(b"[" + row + b"]")
    assert says in str(refused.value)
    with pytest.raises(ValidationError, match=r"control characters|another than"):
        DeleteIn.model_validate({"ids": ["good", given]})


def test_half_a_surrogate_pair_is_no_id() -> None:
    with pytest.raises(ValueError, match="U\\+D800 at character 2"):
        checked_id("a\ud800")
