"""Looks at the values of a JSON body before it is parsed.

A small body can hold very many values, and parsing it would hold the interpreter lock all that time. Here NumPy looks
at the bytes without the lock, a block at a time, so that other threads go on.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
PER_LIST = 3  # Python looks for garbage among lists and objects alone, and nothing else goes on meanwhile
_QUOTE, _COMMA, _BRACE, _CLOSING = b'",{}'
_CASE = np.uint8(0x20)  # by this bit "[" differs from "{", and "]" from "}"


def marks(body: bytes) -> NDArray[np.uint8]:
    """Return the commas and brackets outside strings, as they follow each other.

    After the first syntax error they mean nothing, because no parser reads on there.
    """
    found, inside, escaped = [np.empty(0, np.uint8)], np.uint8(0), False
    for start in range(0, len(body), BLOCK_BYTES):
        text = body[start + escaped : start + BLOCK_BYTES].replace(rb"\\", b"").replace(rb"\"", b"")
        escaped = text.endswith(b"\\")
        block = np.frombuffer(text, np.uint8)
        within = np.bitwise_xor.accumulate((block == _QUOTE).view(np.uint8)) ^ inside  # 1 from a string's first quote
        inside = within[-1] if len(within) else inside
        kinds = block | _CASE
        found.append(block[((block == _COMMA) | (kinds == _BRACE) | (kinds == _CLOSING)) & (within == 0)])
    return np.concatenate(found)


def count_values(marks: NDArray[np.uint8]) -> int:
    """Count the commas, and each list or object `PER_LIST` times; a key counts with its value.

    >>> count_values(marks(b'{"a, b": [1, 2, "\\\\","], "c": {}}'))
    12
    """
    return int(np.count_nonzero(marks == _COMMA) + PER_LIST * np.count_nonzero(marks | _CASE == _BRACE))


def most_fields(marks: NDArray[np.uint8]) -> int:
    """Return how many fields the largest object has.

    >>> most_fields(marks(b'[{"a": [1, 2, 3, 4], "b": {}}, {"c": 5}, 6, 7]'))
    2
    """
    kinds = marks | _CASE
    depths = np.cumsum((kinds == _BRACE).view(np.int8) - (kinds == _CLOSING).view(np.int8), dtype=np.int32)
    inside = np.flatnonzero(kinds != _CLOSING)
    # At each depth, a list or an object begins by its bracket, and its commas follow before the next one begins.
    members = marks[inside[np.argsort(depths[inside], kind="stable")]]
    begins = np.flatnonzero(members != _COMMA)
    sizes = np.diff(begins, append=len(members))
    return int(sizes[members[begins] == _BRACE].max(initial=0))
