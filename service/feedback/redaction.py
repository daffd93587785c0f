"""Takes out of texts what tells who somebody is, before they are recorded.

Mail addresses; of a URL who is named before its host, parameters of its path, and what follows its `?` or `#`; IBANs;
and six digits and more of any script, however cards and telephone numbers are written. Rather too much than too little:
dates and large amounts go as well. It is no guarantee: who spells a number in words is not understood.

It looks at a copy of the text, as a reader sees it: without what nobody sees, with one kind of digits and signs, and
with `@` for `&#64;`, `%40` and `(at)`. What it finds there it takes out of the text.
"""

import html
import re
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Final
from unicodedata import category, normalize, numeric
from urllib.parse import unquote

import regex

from polyrank.service.errors import SettingsError

# So much is recorded of a context, and of a reply; no encoder reads as much.
MOST_CHARACTERS: Final = 20_000
REPLY_CHARACTERS: Final = 4_000
# Where a longer text is cut before it is read, so many characters are not recorded: they may be half of an address.
_BESIDE_A_CUT = 200

_UNSEEN, _DIGIT = regex.compile(r"[\p{DI}\p{M}\p{Cf}]"), regex.compile(r"\p{Nd}")
_MOST_FOR_ONE = 4  # letters of the copy; a ligature of 18 would make it long
_MOST_KNOWN = 20_000  # a text may hold every letter that there is


class _Copies(dict[int, str]):
    """What stands in the copy for a letter, by its code."""

    def __missing__(self, code: int) -> str:
        copy = _copy(chr(code))
        if len(self) < _MOST_KNOWN:
            self[code] = copy
        return copy


def _copy(letter: str) -> str:
    if letter.isspace() or letter == "\u2800":  # a braille letter without dots
        return " "
    if _UNSEEN.match(letter):
        return ""
    if letter in "\u30fc\uff70":  # letters of Japanese that are written for a hyphen
        return "-"
    is_digit = _DIGIT.match(letter) is not None
    if is_digit or category(letter) in ("No", "Nl", "Lo"):  # among the last, Chinese numerals
        number = numeric(letter, 0 if is_digit else -1)  # a digit may be newer than Python
        if number in range(10):
            return str(int(number))
    plain = normalize("NFKD", letter)
    return letter if plain == letter or len(plain) > _MOST_FOR_ONE else "".join(map(_copy, plain))


_COPIES = _Copies((code, chr(code)) for code in range(128))
# Signs that are spelt: in HTML, in URLs, and by people for `@` and `.`.
_SPELT = re.compile(
    r"&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]{2,8});?"
    r"|%(?:[0-7][\da-f]|[cd][\da-f]%[89ab][\da-f]|e[\da-f](?:%[89ab][\da-f]){2}|f[0-7](?:%[89ab][\da-f]){3})"
    r"|[<(\[{]\s{0,2}at\s{0,2}[>)\]}]|\s{0,2}[<(\[{]\s{0,2}dot\s{0,2}[>)\]}]\s{0,2}",
    re.IGNORECASE,
)
_SPELLING = re.compile(r"[&%<(\[{]")
_TIMES_SPELT = 2  # `%2540` is `%40`, and that is `@`


def _sign(spelt: re.Match[str]) -> str:
    spelling = spelt[0]
    if "&" in spelling:
        sign = html.unescape(spelling)
    elif "%" in spelling:
        sign = unquote(spelling)
    else:
        sign = "@" if "a" in spelling.lower() else "."
    return sign if len(sign) == 1 else spelling


def _copied(text: str) -> str:
    copy = text if text.isascii() else text.translate(_COPIES)
    for _ in range(_TIMES_SPELT):
        if _SPELLING.search(copy):
            copy = _SPELT.sub(_sign, copy).translate(_COPIES)
    return copy


def _places(text: str) -> list[int]:
    """Return where each letter of the copy begins in the text, and the end of the text."""
    copy, places = _translated(text, range(len(text) + 1))
    for _ in range(_TIMES_SPELT):
        pieces, starts, end = [""][:0], [0][:0], 0
        for spelt in _SPELT.finditer(copy):
            begin, sign = spelt.start(), _sign(spelt)
            if sign != spelt[0]:
                pieces += copy[end:begin], sign
                starts += places[end : begin + 1]
                end = spelt.end()
        copy, places = _translated("".join([*pieces, copy[end:]]), [*starts, *places[end:]])
    return places


def _translated(text: str, places: Sequence[int]) -> tuple[str, list[int]]:
    copies = [_COPIES[ord(letter)] for letter in text]
    starts = [place for copy, place in zip(copies, places, strict=False) for _ in copy]
    return "".join(copies), [*starts, places[-1]]


# What was found is masked by a letter that no copy holds, because it is two there.
_MASK = "\u00c4"
# Between digits, and in an IBAN: whatever is no letter and no digit.
_BETWEEN, _IN_IBAN = r"[\W_]{0,5}", r"[\W_]{0,3}"
# Each begins at a place where no match could have begun before, or by a mark, and goes on or back only so far: the time
# that it takes grows with the length of a text, not with its square.
_MARKS = re.compile(r"\[(?:mail|user|query|iban|number)\]")
# Sentences of Chinese and Japanese have no spaces: these end what stands in an address, or else the rest would go, too.
_ENDS = "、。「」『』【】"
_NO_MAIL = rf"{_ENDS}\s<>()\[\]{{}},;:\"'=&?{_MASK}"
_IN_NAME = rf"[^{_NO_MAIL}@]++"
_NAME = rf"""(?<![^{_NO_MAIL}]){_IN_NAME}(?:'{_IN_NAME}){{0,3}}|"(?:[^"\\\n]|\\.){{1,64}}\""""
_ADDRESS = rf"\[(?:IPv6:)?[\da-fA-F:.]{{2,45}}\]?|[<(\[{{\"']{{0,2}}[^{_NO_MAIL}]+"
_HOST = rf"[<(\[{{\"']{{0,2}}(?:[^{_NO_MAIL}@.]++\.)+[^\W\d_]{{2,}}"
_MAIL = re.compile(rf"(?:{_NAME})[>)\]}}\"']{{0,3}}(?:@(?:{_ADDRESS})|\s{{0,3}}@\s{{0,3}}{_HOST})")
# A password may hold what should be written as %2F: then a port is no password.
_USER = re.compile(r"://((?:[^\s/?#]*(?=@)|[^\s/?#:]*:(?!\d*(?:[/?#\s]|$))[^\s@]{0,100}(?=@)))@")
_IN_QUERY = rf"(?:[^\s{_ENDS}]|[{_ENDS}](?=\S{{0,100}}[&=]))"  # a value of a query may hold them, too
_BEFORE_QUERY = re.compile(r"[?#;]\S")
_QUERY = re.compile(
    rf"(?:://|\bwww\.)[^\s?#;]*+(?:;(?![\w.-]*=)[^\s?#;]*+)*+([?#;]{_IN_QUERY}+)?"
    rf"|(?<![\w./-])[\w-]++(?:\.[\w-]++)++(?:/[^\s?#]{{0,200}}+([?#]{_IN_QUERY}+)"
    rf"|([?#](?={_IN_QUERY}{{0,40}}\d){_IN_QUERY}{{6,}}))"
    rf"|([?#][^\s?#=]*={_IN_QUERY}*|;[a-z]{{0,9}}sess[a-z_]{{0,9}}={_IN_QUERY}*)",
    re.IGNORECASE,
)
_IBAN = re.compile(
    rf"(?<![^\W_])[A-Za-z]{{2}}{_IN_IBAN}\d{_IN_IBAN}\d(?:{_IN_IBAN}[A-Za-z\d]){{11,30}}(?:{_IN_IBAN}\d)*"
)
_OF_IBAN = re.compile(r"[A-Za-z\d]")
_LEAST_IBAN, _MOST_IBAN = 15, 34
_MORE_DIGITS = re.compile(rf"(?:{_IN_IBAN}\d)*")
_ANY_DIGIT = re.compile("[0-9]")
_DIGITS = re.compile(rf"\d(?:{_BETWEEN}\d){{5,}}")


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
        part = text[: 2 * REPLY_CHARACTERS]
        until = len(text) if part == text else len(part) - _BESIDE_A_CUT
        return self._more_redacted(redacted(part, until=until))[:REPLY_CHARACTERS]

    def end(self, text: str) -> str:
        """Return what may be recorded of a turn: its last characters; raises RedactionFailed."""
        part = text[-2 * MOST_CHARACTERS :]
        since = 0 if part == text else _BESIDE_A_CUT
        return self._more_redacted(redacted(part, since=since))[-MOST_CHARACTERS:]

    def _more_redacted(self, text: str) -> str:
        if self._more is None:
            return text
        try:
            rest = self._more(text)
        except Exception as error:
            raise RedactionFailed(f"it raised {type(error).__name__}") from error
        if not isinstance(rest, str):
            raise RedactionFailed(f"it returned {type(rest).__name__}, not a text")
        return rest


def redacted(text: str, since: int = 0, until: int | None = None) -> str:
    """Return the text, or this part of it, with words in brackets in place of what tells who somebody is.

    >>> redacted("I am jo@x.example, DE89 3704 0044 0532 0130 00; see https://x.example/a?user=jo, order 12 34 56")
    'I am [mail], [iban]; see https://x.example/a[query] order [number]'
    """
    until = len(text) if until is None else until
    if not (spans := sorted(_spans(_copied(text)))):
        return text[since:until]
    places, pieces, end = _places(text), [""][:0], since
    for first, last, mark in spans:
        while places[last] == places[last - 1]:  # a letter goes as a whole
            last += 1
        if places[first] >= until:
            break
        if places[last] > end:
            pieces += text[end : places[first]], mark
            end = places[last]
    return "".join([*pieces, text[end:until]])


def _spans(copy: str) -> list[tuple[int, int, str]]:
    """Return what must go of the copy of a text: where it begins and ends, and what stands there instead."""
    spans: list[tuple[int, int, str]] = []

    def without(pattern: re.Pattern[str], mark: str, span_of: Callable[[re.Match[str]], tuple[int, int]]) -> str:
        def masked(match: re.Match[str]) -> str:
            begin, end = span_of(match)
            if begin == end:
                return match[0]
            spans.append((begin, end, mark))
            before, after = begin - match.start(), end - match.start()
            return f"{match[0][:before]}{_MASK * (end - begin)}{match[0][after:]}"

        return pattern.sub(masked, copy)

    if "[" in copy:
        copy = _MARKS.sub(lambda mark: _MASK * len(mark[0]), copy)
    # Most texts hold nothing of the kind, and to look for a character is a hundred times quicker than a pattern.
    if "@" in copy:
        copy = without(_USER, "[user]", lambda match: match.span(1))
        copy = without(_MAIL, "[mail]", re.Match.span)
    if _BEFORE_QUERY.search(copy):
        copy = without(_QUERY, "[query]", lambda match: match.span(match.lastindex) if match.lastindex else (0, 0))
    if _ANY_DIGIT.search(copy):
        copy = without(_IBAN, "[iban]", _iban)
        copy = without(_DIGITS, "[number]", re.Match.span)
    return spans


def _iban(match: re.Match[str]) -> tuple[int, int]:
    """Find the longest beginning that is an IBAN by its check digits (ISO 7064, mod 97-10); words may follow it.

    Of "in 14 days I want it back" one beginning in five would pass by chance, so half of an IBAN must be digits.
    """
    text, start = match[0], match.start()
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
        return start, start
    more = _MORE_DIGITS.match(text, end)  # a longer number may begin like an IBAN
    return start, start + (more.end() if more else end)


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
