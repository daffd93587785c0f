"""Patterns over sets of letters by Unicode's properties: `re` is fast and knows none, `regex` knows all and is slow.

So a pattern is compiled twice. For *near* texts the sets are spelt out for `re`, which finds a letter of Unicode's
first plane in a table. Beyond it `re` tries each range of a set in turn, so only emoji count as near there. Texts with
other letters are *far*, and searched by `regex`.
"""

import re
from functools import cache
from typing import Any

import numpy as np
import regex

_NEAR = np.r_[:0xD800, 0xE000:0x10000, 0x1F000:0x20000].astype("<u4").tobytes().decode("utf-32-le")
# The first range is quick to look for. Some letters of the first plane fold to far ones.
_FAR = re.compile("[\ufa6c-\U0010ffff](?<=[\U00010000-\U0001efff\U00020000-\U0010ffff\ufa6c\ufacf-\ufad9])")


def is_far(text: str) -> bool:
    """Say which of the two patterns is for a text, and for what it folds to.

    >>> is_far("字 👍"), is_far("\U00020bb7")
    (False, True)
    """
    return _FAR.search(text) is not None


@cache
def spelt_out(letters: str) -> str:
    r"""Return the near letters of a set, which `regex` knows, as a set that `re` knows.

    >>> spelt_out(r"[\p{Nd}&&\p{ASCII}]")
    '[0-9]'
    """
    ranges = [match.group() for match in regex.finditer(f"{letters}+", _NEAR, regex.V1)]
    return f"[{''.join(f'{re.escape(each[0])}-{re.escape(each[-1])}' for each in ranges)}]"


class NearAndFar(dict[bool, Any]):
    """A pattern, in which names of sets stand in braces: [False] is that for near texts, [True] that for far ones.

    Each is compiled when it is first needed, because many processes need none.

    >>> digits = NearAndFar("{digit}", digit=r"\\p{Nd}")
    >>> digits[False].findall("a1\U0001e950"), digits[True].findall("a1\U0001e950")
    (['1'], ['1', '\U0001e950'])
    """

    def __init__(self, pattern: str, **sets: str) -> None:
        self._pattern, self._sets = pattern, sets

    def __missing__(self, far: bool) -> Any:
        if far:
            self[far] = regex.compile(self._pattern.format(**self._sets), regex.V1)
        else:
            self[far] = re.compile(self._pattern.format(**{name: spelt_out(own) for name, own in self._sets.items()}))
        return self[far]
