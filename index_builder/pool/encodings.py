"""In which encoding a text seems to be that is not in UTF-8."""

import re

LOOKED_BYTES = 4 << 20  # the beginning of a file, which tells its encoding
_GUESSED_BYTES = 1 << 16
_FEWEST_GUESSED = 12  # bytes beside ASCII; less tells nothing
_NO_UTF_8, _OTHER = re.compile("[\udc80-\udcff]"), re.compile("[\u0370-\u1dff\u2e80-\uffef]")  # no Latin letters


def guessed(start: bytes) -> str | None:
    """Return the encoding of a text that begins so; None: it is in UTF-8, but for some letters perhaps.

    A library tells scripts apart. Languages in Latin letters are too alike: they are taken for windows-1252.
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
    return best.encoding if best and beside >= _FEWEST_GUESSED and 4 * others > beside else "windows-1252"
