"""One bound for candidates, whichever way they come: a pool file, an update, a build by HTTP."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.service.http.native.requests import IndexIn, UpsertIn


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
