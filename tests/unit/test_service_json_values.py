"""Values are counted as a parser would meet them, wherever the blocks end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.bodies import PER_LIST, count_values, marks, most_fields

STRINGS = st.text(st.sampled_from('a"\\,[{}]: \n'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """As many as `PER_LIST` for each opening bracket, and one for each comma."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else PER_LIST + max(len(inner) - 1, 0) + sum(map(counted, inner))


@given(value=VALUES, block=st.integers(1, 7))
def test_the_count_is_a_parsers(value: Any, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bodies, "BLOCK_BYTES", block)
        assert count_values(marks(json.dumps(value).encode())) == counted(value)


def largest(value: Any) -> int:
    """How many fields the largest object has; an empty one counts as one of one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max([max(len(value), 1) if isinstance(value, dict) else 0, *map(largest, inner)])


@given(value=VALUES)
def test_the_largest_object_is_found_wherever_it_stands(value: Any) -> None:
    assert most_fields(marks(json.dumps(value).encode())) == largest(value)


@pytest.mark.parametrize("body", [b"", b'"', b"\\", b'"\\', b"\xff\x00", b'"a", "b', b"}}]{", b"]]]"])
def test_what_is_no_json_has_a_count_too(body: bytes) -> None:
    assert count_values(marks(body)) <= PER_LIST
    assert most_fields(marks(body)) <= 1
