"""From a text to its words, and to the form by which texts count as the same."""

import re

from polyrank.model.text.hashes import hash64

_TOKEN = re.compile(r"\w+(?:[.\-'\u2019]\w+)*")
_DIGIT = re.compile(r"\d")
_JOINTS = re.compile(r"[._\-]+")


def words(text: str) -> list[str]:
    """Split a text into words: runs of letters and digits, without case, in the order of the text.

    A name with a digit stays whole with its dots, hyphens and underscores; one without is as many words as it has
    parts. Apostrophes are dropped. Takes time in proportion to the text, whatever it holds.

    >>> words("Don't use ORD-123-x: v2.3.1 fails with 0x80070057.")
    ['dont', 'use', 'ord-123-x', 'v2.3.1', 'fails', 'with', '0x80070057']
    >>> words("sudo apt-get remove MY_file.txt")
    ['sudo', 'apt', 'get', 'remove', 'my', 'file', 'txt']
    """
    found = []
    for token in _TOKEN.findall(text.casefold()):
        if token.isalpha():
            found.append(token)
        elif _DIGIT.search(token):
            found.append(_plain(token))
        else:
            found += [part for part in _JOINTS.split(_plain(token)) if part]
    return found


def _plain(token: str) -> str:
    return token.replace("'", "").replace("\u2019", "")


def normalised(text: str) -> str:
    """Return the form by which two texts count as the same: their words, or the text itself where it has none.

    >>> normalised("Yes,  PLEASE!") == normalised("yes please")
    True
    >>> normalised(" :-) ")
    ':-)'
    """
    return " ".join(words(text)) or " ".join(text.casefold().split())


def key_of(text: str) -> int:
    """Hash a word, or a normalised text, to 64 bits, by which tables know it.

    >>> key_of("lamp") == key_of("lamp"), key_of("lamp") == key_of("lamps")
    (True, False)
    """
    return hash64(text.encode(errors="surrogatepass"))
