"""When texts are the same: the one form in which they are compared, and the hashes that stand for them."""

from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from unicodedata import normalize

from polyrank.model.text.letters import NearAndFar, is_far

# Default-ignorable characters (soft hyphens, zero-width spaces and joiners, byte order marks, selectors of variants,
# marks of direction): they change how a text is broken or drawn. Only a joiner between two emoji makes another emoji.
_IGNORED = NearAndFar(
    r"{ignorable}(?!(?<={emoji}\u200D){picture})(?!(?<={emoji}\uFE0F\u200D){picture})",
    ignorable=r"\p{DI}",
    emoji=r"[\p{ExtPict}\p{EMod}]",
    picture=r"\p{ExtPict}",
)
# Normalising sorts the marks of a letter, in squared time. Unicode's stream-safe format (UAX 15) has 30 at most.
_TOO_MANY_MARKS = NearAndFar("({mark}{mark}{{29}}){mark}+", mark=r"[\p{M}\uFF9E\uFF9F]")
# NFKC takes ten times as long for a whole text that has one of these, and they are everywhere in Chinese.
_WIDE_SIGNS = "\uff0c\uff01\uff1f\uff1a\uff1b\uff08\uff09\uff5e\u3000\u2026\u00a0"
_NARROW_SIGNS = [(sign, normalize("NFKC", sign)) for sign in _WIDE_SIGNS]


def folded(text: str) -> str:
    """Return a text without case, ignorable characters and differences of encoding; folding it again changes nothing.

    It is Unicode's NFKC_Casefold, in which i is one letter, with a dot and without: a Turkish "I" is a small one
    without, and nothing says that it is Turkish. Of a letter with more than 30 marks the first 30 count. Takes time in
    proportion to the text.

    >>> folded("STRASSE") == folded("stra\u00dfe"), folded("Mu\u0308ll\u00ad\uff2d\uff2c")
    (True, 'müllml')
    """
    if text.isascii():
        return text.lower()
    for sign, narrow in _NARROW_SIGNS:
        text = text.replace(sign, narrow)
    far = is_far(text)
    text = normalize("NFKC", _TOO_MANY_MARKS[far].sub(itemgetter(1), _IGNORED[far].sub("", text)))
    caseless = text.casefold().replace("i\u0307", "i").replace("\u0131", "i")
    return text if caseless == text else normalize("NFKC", caseless)


def folded_line(text: str) -> str:
    """Return the folded text in which any white space is one space, and none at its ends.

    >>> folded_line(" Yes,\u00a0 PLEASE ")
    'yes, please'
    """
    return " ".join(folded(text).split())


digest64 = partial(blake2b, digest_size=8)  # of `hash64`, before it is a number


def hash64(content: bytes) -> int:
    """Hash bytes to 64 bits with BLAKE2b (RFC 7693); of a billion contents, two have one hash with a chance of 3 %.

    >>> hash64(b"hello")
    9022087748821825191
    """
    return int.from_bytes(digest64(content).digest(), "little")


def drawn_order(names: Iterable[str]) -> list[str]:
    """Put names, each a text or an id, into an order that looks drawn: always the same, whatever theirs was.

    >>> drawn_order(["a", "b", "c"]) == drawn_order(["c", "a", "b"])
    True
    """
    return sorted(names, key=lambda name: (hash64(name.encode(errors="surrogatepass")), name))


def text_key(text: str) -> int:
    """Hash a text to 64 bits; texts that are equal but for case, white space and encoding have the same hash.

    >>> text_key("Yes,  please ") == text_key("yes, PLEASE")
    True
    >>> text_key("yesplease") == text_key("yes please")
    False
    """
    return hash64(folded_line(text).encode(errors="surrogatepass"))
