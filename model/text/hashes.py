"""64-bit hashes that stand for words and texts: the same on every machine and in every process."""

from collections.abc import Iterable
from hashlib import blake2b


def hash64(content: bytes) -> int:
    """Hash bytes to 64 bits with BLAKE2b (RFC 7693); of a billion contents, two have one hash with a chance of 3 %.

    >>> hash64(b"hello")
    9022087748821825191
    """
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def drawn_order(names: Iterable[str]) -> list[str]:
    """Put names, each a text or an id, into an order that looks drawn: always the same, whatever theirs was.

    >>> drawn_order(["a", "b", "c"]) == drawn_order(["c", "a", "b"])
    True
    """
    return sorted(names, key=lambda name: (hash64(name.encode(errors="surrogatepass")), name))
