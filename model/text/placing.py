"""Where the ids of a context or a candidate are from: which turn, and which of its characters.

A context is put together of segments: special tokens, markers, and texts. The ids of a text are the first ones of all
that it has, or the last ones. So its tokens are found again by tokenising it whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from polyrank.model.text.steps import Steps, pause_after
from polyrank.model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Segment:
    """Some of the ids of a context or a candidate, which follow each other.

    Attributes:
        text: whose tokens they are; empty: special tokens, or a marker that the model's config names.
        turn, persona: the number of the turn, or of the sentence of the persona, that the text is.
        from_end: they are the last ones of the text; else they are the first ones.
        unshown: so many letters at the beginning of the text are a prompt of the model, and not of the turn.
    """

    ids: list[int]
    text: str = ""
    turn: int | None = None
    persona: int | None = None
    from_end: bool = False
    unshown: int = 0


class PlacedToken(NamedTuple):
    """A token, and where it is from.

    Attributes:
        text: the characters that it stands for; of a token without a place its name in the vocabulary.
        turn, persona: the number of the turn, or of the sentence of the persona, that has the token; None: it is of
            none, such as a separator.
        start, end: its characters there; None: it stands for none.
        word: the number of its word, counted through the context; None: it belongs to none.
    """

    id: int
    text: str
    turn: int | None = None
    persona: int | None = None
    start: int | None = None
    end: int | None = None
    word: int | None = None


def ids_of(segments: Sequence[Segment]) -> list[int]:
    """Return the ids of all segments, one behind the other."""
    return [id_ for segment in segments for id_ in segment.ids]


def first_ids(segments: Sequence[Segment], count: int) -> list[Segment]:
    """Cut segments behind so many ids.

    >>> [each.ids for each in first_ids([Segment([1, 2]), Segment([3, 4])], 3)]
    [[1, 2], [3]]
    """
    kept = []
    for segment in segments:
        kept.append(replace(segment, ids=segment.ids[: max(0, count)]))
        count -= len(segment.ids)
    return kept


def last_ids(segments: Sequence[Segment], count: int) -> list[Segment]:
    """Cut segments before their last ids, so many of them.

    >>> [each.ids for each in last_ids([Segment([1, 2]), Segment([3, 4])], 3)]
    [[2], [3, 4]]
    """
    kept = []
    for segment in reversed(segments):
        kept.append(replace(segment, ids=segment.ids[max(0, len(segment.ids) - count) :]))
        count = max(0, count - len(segment.ids))
    return kept[::-1]


def placed(tokenizer: Tokenizer, segments: Sequence[Segment]) -> Steps[list[PlacedToken]]:
    """Tell where each id of the segments is from, in steps, a text at a time."""
    found: list[PlacedToken] = []
    words = 0
    for segment in segments:
        if not segment.text:
            found += (PlacedToken(id_, tokenizer.name_of(id_)) for id_ in segment.ids)
            continue
        own = _of_text(tokenizer, segment, words)
        words = max([words, *(token.word + 1 for token in own if token.word is not None)])
        found += own
        yield from pause_after([segment.text])
    return found


def _of_text(tokenizer: Tokenizer, segment: Segment, words: int) -> list[PlacedToken]:
    """Place the tokens of a text, its words counted from `words`."""
    spans = tokenizer.spans(segment.text)
    first = len(spans) - len(segment.ids) if segment.from_end else 0
    kept = spans[max(0, first) : first + len(segment.ids)]
    turn, persona = segment.turn, segment.persona
    if [span.id for span in kept] != segment.ids:  # overlapping added tokens: polyrank.model.text.reading
        return [PlacedToken(id_, tokenizer.name_of(id_), turn, persona) for id_ in segment.ids]
    tokens, shown = [], segment.unshown
    for span in kept:
        if span.end <= shown:
            tokens.append(PlacedToken(span.id, segment.text[span.start : span.end]))  # of the prompt
            continue
        start = max(span.start, shown)
        own = segment.text[start : span.end]
        tokens.append(PlacedToken(span.id, own, turn, persona, start - shown, span.end - shown, words + span.word))
    return tokens
