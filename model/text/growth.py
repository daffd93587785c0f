"""How far the steps of a tokenizer.json may make a text grow.

The library tokenizers takes what memory it is asked for, and where there is none it ends the process. So what a file
asks for is judged before the library reads it.
"""

import base64
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor")
_MOST_STEPS = 1024  # objects in these sections, tokens of templates among them
_MOST_TIMES = 256  # of a text's length, by all steps together
_MOST_ADDED = 256  # letters or tokens that a step puts around a text
_USUAL_BYTES = 64  # the longest that Unicode's own tables make of a letter are 33
_LONGEST_WORD = 1000  # letters; WordPiece takes the square of it in time


def require_bounded(raw: object) -> None:
    """Raise ValueError where the content of a tokenizer.json makes texts too long, or would end the process."""
    if not isinstance(raw, dict):
        raise ValueError("it is no JSON object")
    times = 1
    for number, step in enumerate(step for name in _SECTIONS for step in _steps(raw.get(name))):
        if number == _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS} steps")
        times *= _times(step)
        if times > _MOST_TIMES:
            raise ValueError(f"its steps make a text more than {_MOST_TIMES} times as long")
    model = raw.get("model")
    longest = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(longest, int) and longest > _LONGEST_WORD:
        raise ValueError(f"its words may have {longest:.6g} letters, more than {_LONGEST_WORD}")


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a section: steps may be nested, and the library knows some without their type."""
    left = [section]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value


def _times(step: Mapping[str, Any]) -> int:
    """Return how many times as long a step makes a text, at most; raises ValueError where it adds too much to it."""
    match step:
        case {"pattern": {"String": str(found)}, "content": str(content)} if found:
            return max(1, ceil(len(content) / len(found)))
        case {"content": str(content)}:
            return 1 + len(content)  # a regular expression may find nothing between any two letters
        case {"prepend": str(added)} if len(added) > _MOST_ADDED:
            raise ValueError(f"it puts {len(added)} letters before each text")
        case {"precompiled_charsmap": str(table)}:
            return ceil(_longest_in(table) / _USUAL_BYTES)
        case {"single": list(single), "pair": list(pair), "special_tokens": dict(tokens)}:
            return max(_times_in_template(single, tokens), ceil(_times_in_template(pair, tokens) / 2))
        case {"type": "ByteLevel"} | {"use_regex": _}:
            return 4  # the bytes of a letter
        case {"type": "Metaspace"} | {"replacement": _}:
            return 2
    return 1


def _longest_in(table: str) -> int:
    """Return how many bytes a table makes of a letter, at most 1: the size of a trie, the trie, and texts behind it."""
    content = base64.b64decode(table)
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or not 4 <= size <= len(content) - 4:
        raise ValueError("its precompiled_charsmap is damaged")
    return max(1, *map(len, content[4 + size :].split(b"\0")))


def _times_in_template(pieces: list[Any], tokens: Mapping[str, Any]) -> int:
    """Return how many texts a template joins."""
    named = [each for piece in pieces if isinstance(piece, dict) for each in piece.values() if isinstance(each, dict)]
    special = [found for each in named if isinstance(found := tokens.get(str(each.get("id"))), dict)]
    added = sum(len(ids) for each in special if isinstance(ids := each.get("ids"), list))
    if max(len(pieces), added) > _MOST_ADDED:
        raise ValueError(f"it puts more than {_MOST_ADDED} tokens around each text")
    return max(1, sum("Sequence" in piece for piece in pieces if isinstance(piece, dict)))
