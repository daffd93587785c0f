"""What the letters of a text show: nothing, what programs write for nothing, or marks of HTML."""

import re

_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>|<!--|<!doctype", re.IGNORECASE)
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
_NOTHING = frozenset(["nan", "none", "null", "<na>", "\\n", "undefined"])


def shown(text: str) -> str:
    """Return a text without white space and letters that nobody sees at its ends; "" where nothing else is there.

    >>> shown(" hi "), shown("\\u200b \\ufeff")
    ('hi', '')
    """
    text = text.strip()
    return text.strip(_INVISIBLE).strip() if text[:1] in _INVISIBLE or text[-1:] in _INVISIBLE else text


def says_nothing(text: str) -> bool:
    """Whether a text is what programs write where there is none, such as NaN, None, NULL or \\N."""
    return len(text) <= len("undefined") and text.strip().lower() in _NOTHING


def has_tags(text: str) -> bool:
    """Whether a text seems to be HTML."""
    return "<" in text and _TAG.search(text) is not None
