"""Counts the values of a JSON body before it is parsed.

A small body can hold very many values, and parsing it would hold the interpreter lock all that time. Here NumPy looks
at the bytes without the lock, a block at a time, so that other threads go on.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
_QUOTE, _BACKSLASH = b'"\\'
_COMMA, _BRACKET, _BRACE = b",[{"


def count_values(body: bytes) -> int:
    """Count the commas and opening brackets outside strings; a JSON text has at most one value more than that.

    A key counts together with its value. After the first syntax error the count means nothing, because no parser reads
    on there.

    >>> count_values(b'{"a, b": [1, 2, "\\\\","], "c": {}}')
    6
    """
    data = np.frombuffer(body, np.uint8)
    count, inside, escaping = 0, np.uint8(0), False
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        quotes = block == _QUOTE
        escaped = _escaped(np.flatnonzero(block == _BACKSLASH), escaping)
        escaping = bool(len(escaped)) and int(escaped[-1]) == len(block)
        quotes[escaped[: len(escaped) - escaping]] = False
        within = np.bitwise_xor.accumulate(quotes.view(np.uint8)) ^ inside  # 1 from a string's first quote to its last
        inside = within[-1]
        marks = (block == _COMMA) | (block == _BRACKET) | (block == _BRACE)
        count += int(np.count_nonzero(marks & (within == 0)))
    return count


def _escaped(backslashes: NDArray[np.intp], escaping: bool) -> NDArray[np.intp]:
    """Return the positions of the bytes that a backslash escapes: behind every run of an odd number of backslashes.

    `escaping`: the block before ends with a backslash that escapes this block's first byte.
    """
    if escaping:
        backslashes = np.concatenate([[-1], backslashes])
    firsts = np.flatnonzero(np.diff(backslashes, prepend=-3) != 1)
    lengths = np.diff(firsts, append=len(backslashes))
    escaped: NDArray[np.intp] = (backslashes[firsts] + lengths)[lengths % 2 == 1]
    return escaped
