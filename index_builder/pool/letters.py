"""What the letters of a text say: nothing, HTML, true or false; and in which encoding they seem to be."""

import re
from collections.abc import Collection
from functools import lru_cache

from polyrank.model.text.folding import folded_line
from polyrank.model.text.language import count_languages

# Not <Enter> or <your name>, as people write; what a tag of another name begins, one with a stroke ends.
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
_SAID = [folded_line(pair).split() for said in _PAIRS.split(",") for pair in (said, said.replace("\u0131", "i"))]
_FALSE = frozenset(false for _, false in _SAID) | {"0", "0.0", "f", "n"}
_BOTH = frozenset(map(frozenset, _SAID))
LONGEST_ANSWER = 12  # letters of a word for true or false

LOOKED_BYTES = 4 << 20  # the beginning of a file, which tells its encoding
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
    language = next(iter(count_languages([shared])), "") if len(shared) >= _FEWEST_SHARED else ""
    return next((f"windows-{page}" for page, spoken in _PAGES.items() if language in spoken), "windows-1252")
