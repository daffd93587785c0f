"""From a text to its words, and to the form by which texts count as the same."""

import re

import regex

from polyrank.model.text.folding import folded, folded_line
from polyrank.model.text.hashes import hash64

_TOKEN = re.compile(r"\w+(?:[.\-']\w+)*")  # of a plain text
_DIGIT = re.compile(r"\d")
_JOINTS = re.compile(r"[._\-]+")

# What people write for the same thing; and what would run into the word or the number before it when it is folded.
_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2019\u02bb\u02bc", "'"),
        **dict.fromkeys("\u2010\u2011", "-"),
        **dict.fromkeys("\u2122\u2120\u2116", " "),  # TM, SM and No
        **{each: f" {each}" for each in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅟↉"},
    }
)
_UNSPACED = (  # letters of scripts without spaces between words, and of Korean, which writes particles onto words
    r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Hangul}\p{LB=SA}\u3006\u30FC]&&[\p{L}\p{M}\u3007]]"
)
_SPACED = rf"[[\p{{L}}\p{{Mn}}\p{{Mc}}\p{{N}}_]--{_UNSPACED}]"
_EMOJI = r"[[\p{ExtPict}&&\p{So}]--[\u00A9\u00AE]]\p{EMod}*"
# As Unicode bounds words (UAX 29), Hebrew abbreviations and Catalan's l·l among them. A mark without a letter is none.
_ANY_TOKEN = regex.compile(
    rf"(?!\p{{M}}){_SPACED}+"
    rf"(?:(?:[.\-']|(?<=\p{{Hebrew}})[\"\u05F3\u05F4](?=\p{{Hebrew}})|(?<=l)\u00B7(?=l)){_SPACED}+)*"
    rf"|(?!\p{{M}}){_UNSPACED}[{_UNSPACED}\p{{M}}]*"
    rf"|{_EMOJI}(?:\u200D{_EMOJI})*"
    rf"|\p{{RI}}{{1,2}}",
    regex.V1,
)
_IN_RUN = regex.compile(_UNSPACED, regex.V1)
_FIRST_UNSPACED = "\u0e00"  # they all come behind it
_KOREAN = regex.compile(r"\p{Hangul}+")
_LETTER = regex.compile(r"\P{M}\p{M}*")
_TELLS_ALONE = regex.compile(r"[\p{Han}\u3006]|.\p{M}", regex.V1)

# Latin, Greek and Cyrillic letters and signs that only lose their case when folded: their texts go the fast way.
_SPECIAL = regex.compile(r"[\p{M}\u00B7\p{ExtPict}--\p{ASCII}]", regex.V1)
_PLAIN_LETTERS = "".join(
    letter
    for letter in map(chr, range(0x530))
    if folded(letter) == letter.casefold() and ord(letter) not in _ALIKE and not _SPECIAL.match(letter)
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
    give short pieces of each run (`_pieces_of_run`), which overlap. An emoji is a word. Takes time in proportion to the
    text, whatever it holds.

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
    found = []
    for token in tokens:
        if token > _FIRST_UNSPACED and _IN_RUN.match(token):
            found += _pieces_of_run(token)
        else:
            found.append(token)
    return found


def normalised(text: str) -> str:
    """Return the form by which two texts count as the same: their words, or the text itself where it has none.

    >>> normalised("Yes,  PLEASE!") == normalised("yes please")
    True
    >>> normalised(" :-) ")
    ':-)'
    """
    return " ".join(_tokens(text)) or folded_line(text)


def key_of(text: str) -> int:
    """Hash a word, or a normalised text, to 64 bits, by which tables know it.

    >>> key_of("lamp") == key_of("lamp"), key_of("lamp") == key_of("lamps")
    (True, False)
    """
    return hash64(text.encode(errors="surrogatepass"))


def _tokens(text: str) -> list[str]:
    """Split a text into words, and runs of letters that have no spaces between them."""
    text = text.replace("\u2019", "'")  # most English texts are in ASCII otherwise
    if text.isascii() or _PLAIN.fullmatch(text):
        tokens = _TOKEN.findall(text.casefold())
    else:
        tokens = _ANY_TOKEN.findall(folded(text.translate(_ALIKE)))
    found: list[str] = []
    for token in tokens:
        if token.isalpha():
            found.append(token)
        else:
            found += _parts(token)
    return found


def _parts(token: str) -> list[str]:
    head, apostrophe, ending = token.partition("'")
    if not apostrophe:
        return _without_joints(token)
    if ending in _ENGLISH_ENDINGS and head.isalpha():
        return [head + ending]
    apart = _APART.sub(lambda found: found.group()[:-1] + " ", token).replace("'", "")
    return [part for each in apart.split(" ") for part in _without_joints(each)]


def _without_joints(token: str) -> list[str]:
    if not token.isascii():
        token = re.sub('["·\u05f3\u05f4]', "", token)
    return [token] if _DIGIT.search(token) else [part for part in _JOINTS.split(token) if part]


def _pieces_of_run(run: str) -> list[str]:
    """Return what stands for the words of a run without spaces; benchmarks/words/languages.py compares rules.

    Two letters that follow each other (as Lucene's CJKAnalyzer has them) and three, and one that tells something alone:
    an ideograph, or a letter with marks. Of Korean: two syllables, and the word without its last, a particle's.
    """
    if _KOREAN.fullmatch(run):
        return [run[at : at + 2] for at in range(len(run) - 1)] + [run[: max(1, len(run) - 1)]]
    letters = _LETTER.findall(run)
    alone = [letter for letter in letters if _TELLS_ALONE.match(letter)]
    several = ["".join(letters[at : at + size]) for size in (2, 3) for at in range(len(letters) - size + 1)]
    return alone + several or [run]
