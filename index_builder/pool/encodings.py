"""In which encoding a text seems to be that is not in UTF-8."""

import re
from functools import lru_cache

from polyrank.model.text.language import count_languages

LOOKED_BYTES = 4 << 20  # the beginning of a file, which tells its encoding
_GUESSED_BYTES = 1 << 16
_PAGES = {1250: ("cs", "hr", "hu", "pl", "ro", "sk", "sl"), 1254: ("tr",), 1257: ("et", "lt", "lv"), 1258: ("vi",)}
_FEWEST_GUESSED, _FEWEST_SHARED = 12, 40  # bytes beside ASCII, and of it; less tells nothing
_NO_UTF_8, _OTHER = re.compile("[\udc80-\udcff]"), re.compile("[\u0370-\u1dff\u2e80-\uffef]")  # no Latin letters


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
