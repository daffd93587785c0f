"""Reads no more of a long text than the tokens that are needed from it.

A tokenizer reads a text from end to end, and 20,000 letters made for it take a tenth of a second. An encoder sees the
first or the last few dozen tokens. So of a long text a part is tokenised, and a longer part if that gives too few.

The tokens are those of the whole text, for tokenizers that separate words (WordPiece, and BPE or Unigram with a
pre-tokenizer): where the text was cut, the words that may be others without the cut are left out.

* A word's tokens depend on that word alone, and where a word ends depends on what stands there. So the last word of a
  part is left out. A part at the end of a text begins at a single space between two letters, where a word begins.
* Normalisation changes a letter together with the combining marks behind it. So no part is cut before such a mark.
* A token that was added to the vocabulary may join several words, but no more of them than it has letters. So as many
  more words are left out. There is one exception: where added tokens overlap ("no no" in "no no no no"), the end of a
  text may give other tokens than the whole text, because the cut decides which words are joined.

Other tokenizers read a text as one word. There a part has so many letters that what depends on the cut is far behind
the tokens that are kept.

A part that gives too few tokens is doubled. So a word of millions of letters, or a letter with millions of marks, is
read whole in one step.

Work on texts is done a step at a time, so that other work has its turn between the steps.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar
from unicodedata import combining

from polyrank.model.text.tokenizer import FEW_LETTERS, Tokenizer

# The slowest letters ever found are Cyrillic words of 100 letters that WordPiece knows letter by letter. They take more
# than ten times as long as usual ones. One text alone may be longer than a part: the newest turn and a fact are read in
# steps of 32,768 letters or more.
LETTERS_A_PART = 16_384
TEXTS_A_PART = 256

# What a text costs beside its letters is as much as so many letters.
LETTERS_FOR_A_TEXT = 16

T = TypeVar("T")

# A generator that pauses after each step, and returns the result.
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Do all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def step(steps: Steps[T]) -> tuple[bool, T | None]:
    """Do one step; returns whether it was the last one, and then the result."""
    try:
        next(steps)
    except StopIteration as stop:
        return True, stop.value
    return False, None


def letters_worth(texts: Sequence[str]) -> int:
    """Return what it costs to tokenise texts, in letters."""
    return sum(map(len, texts)) + LETTERS_FOR_A_TEXT * len(texts)


def one_by_one(work: Callable[[str], T], texts: Sequence[str]) -> Steps[list[T]]:
    """Call a function for each text, and pause after every few letters."""
    results, letters = [], 0
    for text in texts:
        results.append(work(text))
        letters += letters_worth([text])
        if letters > FEW_LETTERS:
            yield
            letters = 0
    return results


def in_parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list of texts into parts of a bounded number of texts and letters; one text alone may have more letters.

    >>> [len(part) for part in in_parts(["x" * 10_000] * 3 + ["x"] * 400)]
    [1, 1, 256, 145]
    """
    start = letters = 0
    for at, text in enumerate(texts):
        letters += len(text)
        if at > start and (letters > LETTERS_A_PART or at - start == TEXTS_A_PART):
            yield texts[start:at]
            start, letters = at, len(text)
    if start < len(texts):
        yield texts[start:]


# Texts of so many letters are read whole. It is enough for most models' candidates, at five letters a token.
_SHORT_LETTERS = 1024
_LETTERS_A_TOKEN = 16
_LETTERS_A_TOKEN_WITHOUT_WORDS = 64

_SINGLE_SPACE = re.compile(r"(?<=\S) (?=\S)")


class Reader:
    """Reads the beginnings and ends of texts by a tokenizer; thread-safe.

    All methods raise InvalidInput as `Tokenizer.encode` does, and pause where others should have their turn.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._separates, self._joined = tokenizer.separates_words, tokenizer.longest_added
        self._letters_a_token = _LETTERS_A_TOKEN if self._separates else _LETTERS_A_TOKEN_WITHOUT_WORDS

    def beginnings(self, texts: Sequence[str], tokens: int, letters: int = 0) -> Steps[list[list[int]]]:
        """Read so many tokens of each text from its beginning, or more; all if it has no more.

        Texts of up to `letters` are read whole, and those of a usual length for so many tokens.
        """
        letters = max(letters, _SHORT_LETTERS, tokens * self._letters_a_token)
        ids: list[list[int]] = []
        for part in in_parts(texts):
            if ids:
                yield
            part_ids = self._tokenizer.encode([text if len(text) <= letters else "" for text in part])
            for at, text in enumerate(part):
                if len(text) > letters:
                    part_ids[at] = yield from self._beginning(text, tokens, letters)
            ids += part_ids
        return ids

    def _beginning(self, text: str, tokens: int, letters: int) -> Steps[list[int]]:
        while (cut := _end_of_part(text, letters)) < len(text):
            ids, words = self._tokenizer.words(text[:cut])
            certain = bisect_left(words, words[-1] - self._joined) if words and self._separates else len(ids)
            if certain >= tokens:
                return ids[:certain]
            letters *= 2
            yield
        return self._tokenizer.encode([text])[0]

    def end(self, text: str, tokens: int, letters: int) -> Steps[list[int]]:
        """Read so many tokens of a text up to its end, or more; all if it has no more.

        Texts of up to `letters` are read whole, and those of a usual length for so many tokens.
        """
        letters = max(letters, tokens * self._letters_a_token)
        while (cut := _beginning_of_part(text, letters)) > 0:
            ids, words = self._tokenizer.words(text[cut:])
            uncertain = bisect_right(words, self._joined) if self._separates else 0
            if len(ids) - uncertain >= tokens:
                return ids[uncertain:]
            letters *= 2
            yield
        return self._tokenizer.encode([text])[0]


def _end_of_part(text: str, letters: int) -> int:
    """Return where a part of about so many letters ends: before a space if there is one, never before a mark."""
    if len(text) <= letters:
        return len(text)
    space = text.rfind(" ", letters // 2, letters)
    cut = letters if space < 0 else space
    while cut < len(text) and combining(text[cut]):
        cut += 1
    return cut


def _beginning_of_part(text: str, letters: int) -> int:
    """Return where a part of at most so many letters up to the end begins, at a single space; 0: there is none."""
    if len(text) <= letters:
        return 0
    space = _SINGLE_SPACE.search(text, len(text) - letters, len(text) - letters // 2)
    return space.start() if space else 0
