"""From a text to its words, to the form by which texts count as the same, and to counts of words in a pool."""

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import add
from typing import Any, NamedTuple
from unicodedata import decimal

import numpy as np
import regex
from numpy.typing import NDArray

from polyrank.model.text.folding import digest64, folded, folded_line
from polyrank.model.text.letters import NearAndFar, is_far

_TOKEN = re.compile(r"\w+(?:[.\-']\w+)*")  # of a plain text
_DIGIT = re.compile(r"\d")
_IN_PARTS = re.compile("['._\\-\"\u00b7\u05f3\u05f4]")  # for which a token may have to be split or cleaned
_JOINTS = re.compile(r"[._\-]+")

# What people write for the same thing; and what would run into the word or the number before it when it is folded.
_ALIKE = {
    **dict.fromkeys("\u2019\u02bb\u02bc", "'"),
    **dict.fromkeys("\u2010\u2011", "-"),
    **dict.fromkeys("\u2122\u2120\u2116", " "),  # TM, SM and No
    **{each: f" {each}" for each in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅟↉"},
}
_ALIKE_SIGN = re.compile(f"[{''.join(_ALIKE)}]")
# Arabic and Persian vowels and the stroke that only widens a word (tatweel), Hebrew vowels and accents: seldom written.
_OPTIONAL = NearAndFar(
    "{optional}",
    optional=r"[[\u0640\u0610-\u061A\u064B-\u065F\u0670\u06D6-\u06ED\u0591-\u05BD\u05BF-\u05C7]&&[\p{Mn}\u0640]]",
)
_OTHER_DIGITS = NearAndFar("{digit}", digit=r"[\p{Nd}--0-9]")  # of other scripts; Python does not know the newest
_UNSPACED = (  # letters of scripts without spaces between words, and of Korean, which writes particles onto words
    r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Hangul}\p{LB=SA}\u3006\u30FC]&&[\p{L}\p{M}\u3007]]"
)
_SPACED = rf"[[\p{{L}}\p{{Mn}}\p{{Mc}}\p{{N}}_]--{_UNSPACED}]"
# As Unicode bounds words (UAX 29), Hebrew abbreviations and Catalan's l·l among them. A mark without a letter is none.
_ANY_TOKEN = NearAndFar(
    r"(?=[^\0-/:-@\[-^`{{-\x7f\u3001\u3002])"  # most letters between words are told from emoji soonest by this
    r"(?:{first}{spaced}*(?:(?:[.\-']|(?<={hebrew})[\"\u05F3\u05F4](?={hebrew})|(?<=l)\u00B7(?=l)){spaced}+)*"
    r"|{first_unspaced}{unspaced}*"
    r"|{emoji}{tone}*(?:\u200D{emoji}{tone}*)*"
    r"|{flag}{{1,2}})",
    first=rf"[{_SPACED}--\p{{M}}]",
    spaced=_SPACED,
    hebrew=r"\p{Hebrew}",
    first_unspaced=rf"[{_UNSPACED}--\p{{M}}]",
    unspaced=rf"[{_UNSPACED}\p{{M}}]",
    emoji=r"[[\p{ExtPict}&&\p{So}]--[\u00A9\u00AE]]",
    tone=r"\p{EMod}",
    flag=r"\p{RI}",
)
_IN_RUN = NearAndFar("{unspaced}", unspaced=_UNSPACED)
_FIRST_UNSPACED = "\u0e00"  # they all come behind it
_KOREAN = NearAndFar("{hangul}+", hangul=r"\p{Hangul}")
_IDEOGRAPHS = NearAndFar("{ideograph}+", ideograph=r"[[\p{Han}\u3006]--\p{M}]")
_LETTER = NearAndFar(".{mark}*", mark=r"\p{M}")
_TELLS_ALONE = NearAndFar("{ideograph}{mark}*|.{mark}+", ideograph=r"[\p{Han}\u3006]", mark=r"\p{M}")

# Latin, Greek and Cyrillic letters and signs that only lose their case when folded: their texts go the fast way.
_SPECIAL = regex.compile(r"[\p{M}\u00B7\p{ExtPict}--\p{ASCII}]", regex.V1)
_PLAIN_LETTERS = "".join(
    letter
    for letter in map(chr, range(0x530))
    if folded(letter) == letter.casefold() and letter not in _ALIKE and not _SPECIAL.match(letter)
)
_PLAIN = re.compile(f"[{re.escape(_PLAIN_LETTERS)}\u2018\u201c-\u201e\u2013\u2014\u20ac]*")

# Apostrophes that stand between words: of Romance articles before a vowel, and before Turkish endings of names.
_ENGLISH_ENDINGS = frozenset(("s", "t", "ll", "re", "ve", "d", "m"))
_APART = re.compile(
    r"(?<!\w)(?:(?:jus|lors|puis|quoi)?qu|[cdjlmnst]|(?:[ads]e|ne|[ad]?a|[ns]u|co|que|be)ll|un|sant|quest|tutt|anch)'"
    r"(?=[aeiouhàáâèéêëìíîïòóôöùúûüœæ])"
    r"|(?:(?<=\w\w)|(?<=\d))'"
    r"(?=(?:l[ae]r|[yns]?[aeiuü]n?|n?[dt][ae]n?|y?l[ae]|l[iuü]k?|[dt][iuü]r|[yns]?[iuü]m|c[ae]|ki){1,3}(?!['\w]))"
)


def words(text: str) -> list[str]:
    """Split a text into words: runs of letters, their marks and digits, without case, in the order of the text.

    A name with a digit stays whole with its dots, hyphens and underscores; one without is as many words as it has
    parts. Apostrophes are dropped, or part a word from its article or its ending. Scripts without spaces, and Korean,
    give short pieces of each run, which overlap (`_pieces_of_run`). Marks that Arabic, Persian and Hebrew may leave out
    are left out. An emoji is a word. Takes time in proportion to the text, whatever it holds.

    >>> words("Don't use ORD-123-x: v2.3.1 fails with 0x80070057.")
    ['dont', 'use', 'ord-123-x', 'v2.3.1', 'fails', 'with', '0x80070057']
    >>> words("sudo apt-get remove MY_file.txt")
    ['sudo', 'apt', 'get', 'remove', 'my', 'file', 'txt']
    >>> words("L'été à \u0130zmir'e 👍🏽"), words("订单A-1到了")
    (['l', 'été', 'à', 'izmir', 'e', '👍🏽'], ['订', '单', '订单', 'a-1', '到', '了', '到了'])
    """
    tokens = _tokens(text)
    if text.isascii():
        return tokens
    whole = "".join(tokens)
    far = is_far(whole)
    if not _IN_RUN[far].search(whole):
        return tokens
    has_korean = _KOREAN[far].search(whole)
    pieces = []
    for token in tokens:
        if has_korean and _KOREAN[far].fullmatch(token):
            # Every two syllables, and the word without its last, a particle's.
            pieces += [*map(add, token, token[1:]), token[:-1] or token]
        elif token > _FIRST_UNSPACED and _IN_RUN[far].match(token):
            pieces += _pieces_of_run(token, far)
        else:
            pieces.append(token)
    return pieces


def normalised(text: str) -> str:
    """Return the form by which two texts count as the same: their words, or the text itself where it has none.

    >>> normalised("Yes,  PLEASE!") == normalised("yes please")
    True
    >>> normalised(" :-) ")
    ':-)'
    """
    return " ".join(_tokens(text)) or folded_line(text)


def keys_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return by what tables know words or normalised texts, (n,): `hash64` of each, without a call for each."""
    hashed = (digest64(text.encode(errors="surrogatepass")).digest() for text in texts)
    return np.frombuffer(b"".join(hashed), "<u8").astype(np.uint64)


def _tokens(text: str) -> list[str]:
    """Split a text into words, and runs of letters that have no spaces between them."""
    text = text.replace("\u2019", "'")  # most English texts are in ASCII otherwise
    if text.isascii() or _PLAIN.fullmatch(text):
        tokens = _TOKEN.findall(text.casefold())
    else:
        text = folded(_ALIKE_SIGN.sub(lambda sign: _ALIKE[sign[0]], text))
        far = is_far(text)
        text = _OTHER_DIGITS[far].sub(lambda digit: str(decimal(digit[0], digit[0])), _OPTIONAL[far].sub("", text))
        tokens = _ANY_TOKEN[far].findall(text)
    if not _IN_PARTS.search("".join(tokens)):
        return tokens
    parts: list[str] = []
    for token in tokens:
        if token.isalpha() or not _IN_PARTS.search(token):
            parts.append(token)
        else:
            parts += _parts(token)
    return parts


def _parts(token: str) -> list[str]:
    head, apostrophe, ending = token.partition("'")
    if not apostrophe:
        return _without_joints(token)
    if ending in _ENGLISH_ENDINGS and head.isalpha():
        return [head + ending]
    apart = _APART.sub(lambda match: match.group()[:-1] + " ", token).replace("'", "")
    return [part for each in apart.split(" ") for part in _without_joints(each)]


def _without_joints(token: str) -> list[str]:
    if not token.isascii():
        token = re.sub('["·\u05f3\u05f4]', "", token)
    return [token] if _DIGIT.search(token) else [part for part in _JOINTS.split(token) if part]


def _pieces_of_run(run: str, far: bool) -> list[str]:
    """Return what stands for the words of a run without spaces.

    One letter that tells something alone: an ideograph, or a letter with marks. Two that follow each other (as Lucene's
    CJKAnalyzer has them), and three.
    """
    if _IDEOGRAPHS[far].fullmatch(run):
        letters = alone = list(run)
    elif run.isalpha():  # it has no marks
        letters, alone = list(run), list("".join(_IDEOGRAPHS[far].findall(run)))
    else:
        letters, alone = _LETTER[far].findall(run), _TELLS_ALONE[far].findall(run)
    pairs = [*map(add, letters, letters[1:])]
    return [*alone, *pairs, *map(add, pairs, letters[2:])] or [run]


class WordCounts(NamedTuple):
    """The words of N texts, as a sparse table of V distinct words, sorted by word and then by text."""

    keys: NDArray[np.uint64]  # the hash of each distinct word, (V,), ascending
    words: NDArray[np.int64]  # place of the word in `keys`, (entries,)
    rows: NDArray[np.int64]  # the text that it stands in, (entries,)
    times: NDArray[np.int64]  # how often it stands there, (entries,)
    lengths: NDArray[np.int64]  # words of each text, (N,)


def count_words(texts: Sequence[str]) -> WordCounts:
    """Count the words of each text."""
    place_of: dict[str, int] = {}
    places, lengths = array("q"), array("q")
    for text in texts:
        of_text = words(text)
        places.extend([place_of.setdefault(word, len(place_of)) for word in of_text])
        lengths.append(len(of_text))
    keys, rank = np.unique(keys_of(place_of), return_inverse=True)
    of_row = np.repeat(np.arange(len(texts)), np.array(lengths, np.int64))
    entries, times = np.unique(rank[np.array(places, np.int64)] * len(texts) + of_row, return_counts=True)
    by_word, rows = np.divmod(entries, max(1, len(texts)))
    return WordCounts(keys, by_word, rows, times, np.array(lengths, np.int64))


_TEXTS_AT_ONCE = 8192
_COMMON = 3.5  # the best of 0 to 5 on held-out training dialogues; words in more than 3 % of the texts count nothing
_LEFT = 1.5  # of the rarest word in a small pool; of 0.5 to 3 on pools of 5 to 150 replies (docs/measurements/words.md)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over a pool of texts, all of them whole numbers."""

    texts: int
    words: int
    keys: NDArray[np.uint64]  # the hash of each distinct word (`keys_of`), (V,), ascending
    frequencies: NDArray[np.int64]  # how many texts have the word, (V,)

    @classmethod
    def of(cls, pool: Iterable[str]) -> "Statistics":
        """Count a pool's words; memory grows with the distinct words, not with the texts."""
        total = cls(0, 0, np.empty(0, np.uint64), np.empty(0, np.int64))
        remaining = iter(pool)
        while chunk := list(islice(remaining, _TEXTS_AT_ONCE)):
            counts = count_words(chunk)
            frequencies = np.bincount(counts.words, minlength=len(counts.keys))
            total = total.plus(cls(len(chunk), int(counts.lengths.sum()), counts.keys, frequencies))
        return total

    def plus(self, other: "Statistics") -> "Statistics":
        keys, place = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        frequencies = np.zeros(len(keys), np.int64)
        np.add.at(frequencies, place, np.concatenate([self.frequencies, other.frequencies]))
        return Statistics(self.texts + other.texts, self.words + other.words, keys, frequencies)

    @property
    def average_length(self) -> float:
        """Words of an average text; 1 where there are none."""
        return self.words / self.texts if self.words else 1.0

    def rarity(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return how much a word tells that context and candidate share, (n,): 0 for common words, and never less.

        `max(0, idf(n) - min(3.5, max(0, idf(1) - 1.5)))` of N texts, n of which have the word, where
        `idf(n) = log(1 + (N - n + 0.5) / (n + 0.5))` is that of BM25, as Lucene computes it (Robertson and Zaragoza
        2009, "The Probabilistic Relevance Framework"). It takes for granted that half of all right replies repeat a
        word. Croft and Harper 1979 ("Using probabilistic models of document retrieval without relevance information")
        add the log odds of that: -3.5 for 3 %. In a pool of fewer than 222 texts that would leave little of any word,
        and below 50 nothing: there a word that one text has keeps 1.5, or all of its idf.

        >>> from polyrank.model.lexical.words import keys_of
        >>> pool = Statistics(1000, 9000, keys_of(["the"]), np.array([600]))
        >>> pool.rarity(keys_of(["the", "ord-1-x"])).round(3)
        array([0.   , 4.102])
        """
        if not self.texts:
            return np.zeros(len(keys))
        common = min(_COMMON, max(0.0, self._idf(1) - _LEFT))
        # One by one: NumPy's logarithm may differ between processors in the last bit.
        return np.array([max(0.0, self._idf(n) - common) for n in self.frequencies_of(keys).tolist()])

    def _idf(self, frequency: int) -> float:
        return math.log(1 + (self.texts - frequency + 0.5) / (frequency + 0.5))

    def frequencies_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many of the texts have each word, (n,)."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.frequencies[places], 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `from_arrays` wants, by name."""
        return {
            "totals": np.array([self.texts, self.words], np.int64),
            "keys": self.keys,
            "frequencies": self.frequencies,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Statistics":
        """Restore statistics from `arrays()`, which may be memory-mapped."""
        texts, words = arrays["totals"].tolist()
        return cls(texts, words, arrays["keys"], arrays["frequencies"])
