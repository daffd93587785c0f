"""Work on texts that can be done a step at a time, so that other work has its turn between the steps."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

# The slowest letters ever found are Cyrillic words of 100 letters that WordPiece knows letter by letter. They take more
# than ten times as long as usual ones. One text alone may be longer than a part: the newest turn and a fact are read in
# steps of 32,768 letters or more.
LETTERS_A_PART = 16_384
TEXTS_A_PART = 256

# Letters that are tokenised in one or two milliseconds.
FEW_LETTERS = 2048

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
        except StopIteration as done:
            result: T = done.value
            return result


def step(steps: Steps[T]) -> tuple[bool, T | None]:
    """Do one step; returns whether it was the last one, and then the result."""
    try:
        next(steps)
    except StopIteration as done:
        return True, done.value
    return False, None


def letters_worth(texts: Sequence[str]) -> int:
    """Return what it costs to tokenise texts, in letters."""
    return sum(map(len, texts)) + LETTERS_FOR_A_TEXT * len(texts)


def one_by_one(work: Callable[[str], T], texts: Sequence[str]) -> Steps[list[T]]:
    """Call a function for each text, and pause after every few letters."""
    found, letters = [], 0
    for text in texts:
        found.append(work(text))
        letters += letters_worth([text])
        if letters > FEW_LETTERS:
            yield
            letters = 0
    return found


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


def pause_after(texts: Sequence[str]) -> Steps[None]:
    """Pause if the texts, which were tokenised just now, have many letters."""
    if sum(map(len, texts)) > FEW_LETTERS:
        yield
