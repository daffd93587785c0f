"""How much a JSON body holds, counted before any of it is made into objects.

A body of few bytes can hold very many values, and parsing it would hold the interpreter's lock for all of that time.
Here NumPy looks at the bytes without the lock, a block at a time, so that whatever else runs goes on.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
_QUOTE, _BACKSLASH = b'"\\'
_COMMA, _BRACKET, _BRACE = b",[{"


def count_values(body: bytes) -> int:
    """Count the commas and opening brackets outside strings; a JSON text has at most one value more.

    Keys count with their values. What follows the first fault of a text that is no JSON is counted somehow: no parser
    reads on there.

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
    """Return where the bytes are that a backslash escapes: behind each run of an odd length.

    Args:
        backslashes: where the backslashes are in the block.
        escaping: the block before ended with one that escapes this block's first byte.
    """
    if escaping:
        backslashes = np.concatenate([[-1], backslashes])
    firsts = np.flatnonzero(np.diff(backslashes, prepend=-3) != 1)
    lengths = np.diff(firsts, append=len(backslashes))
    escaped: NDArray[np.intp] = (backslashes[firsts] + lengths)[lengths % 2 == 1]
    return escaped
