"""What a text says by its letters: when it is, nothing, HTML, true or false; and in which encoding a file may be."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from polyrank.model.text.folding import folded_line
from polyrank.model.text.language import count_languages

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ISO = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:({_TIME})(?: ?([Zz]|UTC|[+-]\d\d(?::?\d\d)?))?)?")
_UTC = ("Z", "z", "UTC")
_LONGEST = 60
_NOW = re.compile(r"now(?:([+-])(\d{1,6})([smhdw]))?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds

_NUMBERS = r"(?:\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d\d)|\d{4}([./-])\d{1,2}\2\d{1,2}|\d{4}年\d{1,2}月\d{1,2}日)"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?(?: ?(?:[A-Z]{1,4}|[+-]\d\d:?\d\d))?"
_MONTH_IN_WORDS = r"(?:\d{1,2}\.? (?:de )?[^\W\d_]{3,10}\.?,? (?:de )?\d{4}|[^\W\d_]{3,10}\.? \d{1,2},? \d{4})"
_DATE = re.compile(rf"(?:[^\W\d_]{{2,10}}\.?, )?(?:{_NUMBERS}|{_MONTH_IN_WORDS})(?:,?[T ]{_CLOCK})?")


class Instant(NamedTuple):
    """From when to when a date or a time lasts: microseconds since 1970 in UTC, the last one not included.

    A time lasts a microsecond, a day without a time 24 hours.
    """

    begin: int
    end: int


def instant(text: str) -> Instant | None:
    """Return when a date or a time of ISO 8601 is; None: the text is none. Without a zone it is in UTC.

    >>> instant("1970-01-01T01:00:00.5+01:00"), instant("1970-01-02").begin, instant("1.2.1970")
    (Instant(begin=500000, end=500001), 86400000000, None)
    """
    if not 10 <= len(text) <= _LONGEST or text[4] != "-" or (match := _ISO.fullmatch(text)) is None:
        return None
    day, clock, zone = match.groups()
    try:
        time = datetime.fromisoformat(day + (clock or "") + ("+00" if zone in _UTC else zone or ""))
    except ValueError:
        return None
    lasts = _MICROSECOND if clock else _DAY
    begin = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _BEGINNING
    return Instant(begin // _MICROSECOND, (begin + lasts) // _MICROSECOND)


def bound(text: str, now: datetime) -> str:
    """Return the bound of a range: for `now`, `now-7d` or `now+90m` the time that it means, else the text as it is.

    Units are s, m, h, d and w. Raises ValueError where that is no year of four digits.
    """
    if (match := _NOW.fullmatch(text)) is None:
        return text
    sign, number, unit = match.groups()
    away = timedelta(seconds=int(number) * _UNITS[unit]) if number else timedelta()
    try:
        return (now - away if sign == "-" else now + away).astimezone(UTC).isoformat()
    except OverflowError:
        raise ValueError(f"{text} is before the year 1 or after 9999") from None


def seems_a_date(text: str) -> bool:
    """Whether a text is a date, in this form or another, so far as its letters tell.

    >>> [seems_a_date(each) for each in ("31.10.2026", "Oct 31, 2026 5:00 PM", "2026-10-31", "1.2.3", "v 10-31")]
    [True, True, True, False, False]
    """
    return len(text) <= _LONGEST and _DATE.fullmatch(text.strip()) is not None


# Not <Enter> or <your name>, as people write: a tag of another name counts where it is closed.
_TAG = re.compile(
    r"</[a-z][a-z0-9]*\s*>|<[a-z][a-z0-9]*\s*/>|<!--|<!doctype"
    r"|<(?:p|br|hr|div|span|img|a|b|i|u|em|strong|font|ul|ol|li|table|tr|td|h[1-6]|html|body|head|meta|style|script|pre"
    r"|blockquote)(?:\s+[a-z:-]+(?:\s*=[^<>]*)?)?/?>",
    re.IGNORECASE,
)
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
_NOTHING = frozenset(["nan", "none", "null", "<na>", "\\n", "undefined"])

# True and false, as spreadsheets of many languages write it, and as people do.
_PAIRS = """
true false, wahr falsch, vrai faux, verdadero falso, vero falso, verdadeiro falso, waar onwaar, prawda fałsz,
истина ложь, sant falskt, sand falsk, sann usann, tosi epätosi, pravda nepravda, igaz hamis, doğru yanlış,
yes no, ja nein, oui non, sí no, si no, sì no, sim não, sim nao, ja nee, ja nej, ja nei, tak nie, так ні, да нет, да не,
da ne, da nu, ano ne, áno nie, kyllä ei, igen nem, evet hayır, ναι οχι, כן לא, نعم لا, có không, ya tidak, はい いいえ,
是 否, 예 아니오, 예 아니요
"""  # noqa: RUF001  # letters of other scripts that look like Latin ones
# Turkish letters without case are others than in English.
_ANSWERS = [folded_line(pair).split() for words in _PAIRS.split(",") for pair in (words, words.replace("\u0131", "i"))]
_FALSE = frozenset(false for _, false in _ANSWERS) | {"0", "0.0", "f", "n"}
_BOTH = frozenset(map(frozenset, _ANSWERS))
LONGEST_ANSWER = 12  # letters of a word for true or false

SAMPLE_BYTES = 4 << 20  # the beginning of a file, which tells its encoding
_GUESSED_BYTES = 1 << 16
_PAGES = {1250: ("cs", "hr", "hu", "pl", "ro", "sk", "sl"), 1254: ("tr",), 1257: ("et", "lt", "lv"), 1258: ("vi",)}
_FEWEST_GUESSED, _FEWEST_SHARED = 12, 40  # bytes beside ASCII, and of it; less tells nothing
_NO_UTF_8, _OTHER = re.compile("[\udc80-\udcff]"), re.compile("[\u0370-\u1dff\u2e80-\uffef]")  # no Latin letters


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


def are_true_and_false(cells: Collection[str]) -> bool:
    """Whether two cells are true and false in a language.

    >>> are_true_and_false({"WAHR", "FALSCH"}), are_true_and_false({"NO", "SE"})
    (True, False)
    """
    return frozenset(map(folded_line, cells)) in _BOTH


def is_false(cell: str) -> bool:
    """Whether a cell is false or a no in any language, or 0.

    >>> is_false("FALSCH"), is_false(" no"), is_false("VRAI"), is_false("maybe")
    (True, True, False, False)
    """
    return folded_line(cell) in _FALSE


@lru_cache(maxsize=1)  # telling a kind, then reading, ask for the same file
def guessed(start: bytes) -> str | None:
    """Return the encoding of a text that begins so; None: it is in UTF-8, but for some letters perhaps.

    A library tells scripts apart. Encodings of Latin letters are too alike for that: there the language tells, by the
    letters that all of them share.
    """
    text = start.decode(errors="surrogateescape")
    wrong = len(_NO_UTF_8.findall(text[:-3]))  # the last letter may be cut
    if not wrong or 2 * wrong < sum(letter > "\x7f" for letter in text):
        return None
    from charset_normalizer import from_bytes

    lines = b"".join(line for line in start.splitlines(keepends=True) if not line.isascii())[:_GUESSED_BYTES]
    lines = lines[: lines.rfind(b"\n") + 1] or lines
    best = from_bytes(lines).best()
    beside, others = sum(byte > 127 for byte in lines), len(_OTHER.findall(str(best or "")))
    if best and beside >= _FEWEST_GUESSED and 4 * others > beside:
        return best.encoding
    shared = lines.decode("ascii", "ignore")
    language = next(iter(count_languages([shared], sure=0.0)), "") if len(shared) >= _FEWEST_SHARED else ""
    return next((f"windows-{page}" for page, spoken in _PAGES.items() if language in spoken), "windows-1252")
