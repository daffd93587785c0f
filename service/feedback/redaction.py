"""Takes out of texts what tells who somebody is, before they are recorded.

Mail addresses; of a URL who is named before its host, parameters of its path, and what follows its `?` or `#`; IBANs;
and six digits and more of any script, however cards and telephone numbers are written. Rather too much than too little:
dates and large amounts go as well.
"""

import re
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Final

from polyrank.service.errors import SettingsError

# So much is recorded of a context, and of a reply; no encoder reads as much.
MOST_CHARACTERS: Final = 20_000
REPLY_CHARACTERS: Final = 4_000

# Between digits and letters of a number: spaces, hyphens, dots, slashes, brackets, those that go with full-width
# digits, and characters that nobody sees.
_SEEN = r"\s.,/()_+~\-\u00b7\u2010-\u2015\u2022\u2043\u2044\u2212\u2215"
_WIDE = r"\u3001\u301c\u30fb\u30fc\ufe63\uff08\uff09\uff0b-\uff0f\uff3f\uff5e\uff65\uff70"
_UNSEEN = r"\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20e3\ufe0e\ufe0f\ufeff"
_BETWEEN = rf"[{_SEEN}{_WIDE}{_UNSEEN}]{{0,3}}"
# Those of all scripts; raised, lowered, circled and bracketed ones; Chinese numerals.
_DIGIT = r"[\d²³¹⁰⁴-⁹₀-₉①-⑨⓪⑴-⑼⒈-⒐❶-❾➀-➈➊-➒〇零一二三四五六七八九]"
# Each begins at a place where no match could have begun before, or by a mark, and goes on or back only so far: the time
# that it takes grows with the length of a text, not with its square.
_AT = "@\uff20\ufe6b"  # the last two are those of full-width and of small letters
_IN_MAIL = (*_AT, "%40")
_NO_MAIL = r"\s<>()\[\]{},;:\"'=&?"
_IN_NAME = rf"[^{_NO_MAIL}{_AT}]+"
_NAME = rf"""(?<![^{_NO_MAIL}]){_IN_NAME}(?:'{_IN_NAME}){{0,3}}|"(?:[^"\\\n]|\\.){{1,64}}\""""
_MAIL = re.compile(rf"(?:{_NAME})(?:[{_AT}]|%40)(?:[^{_NO_MAIL}]+|\[(?:IPv6:)?[\da-fA-F:.]{{2,45}}\]?)")
# A password may hold what should be written as %2F: then a port is no password.
_USER = re.compile(rf"://(?:[^\s/?#]*[{_AT}]|[^\s/?#:]*:(?!\d*(?:[/?#\s]|$))[^\s{_AT}]{{0,100}}[{_AT}])")
_QUERY = re.compile(
    r"((?:://|\bwww\.)[^\s?#;]*+(?:;(?![\w.-]*=)[^\s?#;]*+)*+)(?:[?#;]\S*)?"
    r"|[?#][^\s?#=]*=\S*|;[a-z]{0,9}sess[a-z_]{0,9}=\S*",
    re.IGNORECASE,
)
_CHECK_DIGITS = rf"{_BETWEEN}\d{_BETWEEN}\d"
_IBAN = re.compile(rf"(?<![^\W_])[A-Za-z]{{2}}{_CHECK_DIGITS}(?:{_BETWEEN}[A-Za-z\d]){{11,30}}(?:{_BETWEEN}\d)*")
_DIGITS = re.compile(rf"{_DIGIT}(?:{_BETWEEN}{_DIGIT}){{5,}}[\ufe0f\u20e3]*")
_OF_IBAN = re.compile(r"[A-Za-z\d]")
_LEAST_IBAN, _MOST_IBAN = 15, 34
_MORE_DIGITS = re.compile(rf"(?:{_BETWEEN}\d)*")
_ANY_DIGIT = re.compile(_DIGIT)


class RedactionFailed(Exception):
    """The function that the setting names failed, or returned no text; the text must not be recorded."""


class Redaction:
    """What is done to a text before it is recorded.

    Args:
        more: is given each text after that, and returns what may be recorded; None: there is no more to do.
    """

    def __init__(self, more: Callable[[str], object] | None = None) -> None:
        self._more = more

    def beginning(self, text: str) -> str:
        """Return what may be recorded of a reply: its first characters; raises RedactionFailed."""
        return self._redacted(text[: 2 * REPLY_CHARACTERS])[:REPLY_CHARACTERS]  # nothing is cut in two and kept

    def end(self, text: str) -> str:
        """Return what may be recorded of a turn: its last characters; raises RedactionFailed."""
        return self._redacted(text[-2 * MOST_CHARACTERS :])[-MOST_CHARACTERS:]

    def _redacted(self, text: str) -> str:
        known = redacted(text)
        if self._more is None:
            return known
        try:
            left = self._more(known)
        except Exception as error:
            raise RedactionFailed(f"it raised {type(error).__name__}") from error
        if not isinstance(left, str):
            raise RedactionFailed(f"it returned {type(left).__name__}, not a text")
        return left


def redacted(text: str) -> str:
    """Return the text with words in brackets in place of what tells who somebody is.

    >>> redacted("I am jo@x.example, DE89 3704 0044 0532 0130 00; see https://x.example/a?user=jo, order 12 34 56")
    'I am [mail], [iban]; see https://x.example/a[query] order [number]'
    """
    # Most texts hold nothing of the kind, and to look for a character is a hundred times quicker than a pattern.
    if any(mark in text for mark in _IN_MAIL):
        text = _MAIL.sub("[mail]", _USER.sub("://[user]@", text))
    if any(mark in text for mark in "?#;") and ("=" in text or "://" in text or "www." in text.lower()):
        text = _QUERY.sub(_without_query, text)
    if any(digit in text for digit in "0123456789") if text.isascii() else _ANY_DIGIT.search(text):
        text = _IBAN.sub(_without_iban, text)
        text = _DIGITS.sub("[number]", text)
    return text


def _without_query(found: re.Match[str]) -> str:
    before = found[1] or ""
    return found[0] if before == found[0] else f"{before}[query]"


def _without_iban(found: re.Match[str]) -> str:
    """Replace the longest beginning that is an IBAN by its check digits (ISO 7064, mod 97-10); words may follow it.

    Of "in 14 days I want it back" one beginning in five would pass by chance, so half of an IBAN must be digits.
    """
    text = found[0]
    places = [letter.start() for letter in _OF_IBAN.finditer(text)][:_MOST_IBAN]
    numbers = [int(text[at], 36) for at in places]  # A is 10, Z is 35
    first = "".join(map(str, numbers[:4]))  # the check looks at these last
    rest, end, digits = 0, 0, 2
    for count, number in enumerate(numbers[4:], 5):
        is_digit = number < 10
        digits += is_digit
        rest = (rest * (10 if is_digit else 100) + number) % 97
        if count >= _LEAST_IBAN and 2 * digits >= count and (rest * 10 ** len(first) + int(first)) % 97 == 1:
            end = places[count - 1] + 1
    if not end:
        return text
    return f"[iban]{_MORE_DIGITS.sub('', text[end:], count=1)}"  # a longer number may begin like an IBAN


def named(hook: str) -> Callable[[str], object]:
    """Return the function that `package:function` names; raises SettingsError if it does not turn a text into one."""
    try:
        function: Callable[[str], object] = resolve_name(hook)
        answer = function("Hello.")
    except Exception as error:
        raise SettingsError(f"feedback_redact: {hook!r} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(answer, str):
        raise SettingsError(f"feedback_redact: {hook!r} returned {type(answer).__name__} for a text; return a text")
    return function
