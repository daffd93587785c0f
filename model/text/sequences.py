"""Token ids of contexts, candidates and pairs, and where they are from: which turn, and which of its characters.

A context is put together of segments: special tokens, markers, and texts. The ids of a text are the first ones of all
that it has, or the last ones. So its tokens are found again by tokenising it whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from polyrank.model.text.reading import Steps, pause_after
from polyrank.model.text.tokenizer import Tokenizer


class Pairs(NamedTuple):
    """Token ids of contexts and candidates, wrapped as the checkpoint's architecture expects (assembly.py).

    candidates: one for each pair. owners: for each pair, its context's place in `contexts`. prefix: how many ids a
    candidate begins with when it is wrapped alone; a joint sequence leaves them out.
    """

    contexts: list[list[int]]
    candidates: list[list[int]]
    owners: list[int]
    prefix: int = 0

    def take(self, positions: Sequence[int]) -> "Pairs":
        """Return the pairs at these positions, with the contexts that they need.

        >>> Pairs([[7], [8]], [[1], [2], [3]], [0, 1, 1]).take([2, 1])
        Pairs(contexts=[[8]], candidates=[[3], [2]], owners=[0, 0], prefix=0)
        """
        owners = [self.owners[position] for position in positions]
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        return Pairs(
            contexts=[self.contexts[owner] for owner in numbers],
            candidates=[self.candidates[position] for position in positions],
            owners=[numbers[owner] for owner in owners],
            prefix=self.prefix,
        )

    def by_context(self) -> dict[int, list[int]]:
        """Return the positions of the pairs of each context, by its place.

        >>> Pairs([[7], [8]], [[1], [2], [3]], [0, 1, 0]).by_context()
        {0: [0, 2], 1: [1]}
        """
        found: dict[int, list[int]] = {}
        for position, owner in enumerate(self.owners):
            found.setdefault(owner, []).append(position)
        return found

    @classmethod
    def join(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Return the pairs of all parts, in order; a context list that several parts share occurs once.

        >>> all_three = Pairs([[7]], [[1], [2], [3]], [0, 0, 0])
        >>> Pairs.join([all_three.take([2]), all_three.take([0])])
        Pairs(contexts=[[7]], candidates=[[3], [1]], owners=[0, 0], prefix=0)
        """
        contexts = {id(context): context for part in parts for context in part.contexts}
        numbers = {identity: number for number, identity in enumerate(contexts)}
        return cls(
            contexts=list(contexts.values()),
            candidates=[candidate for part in parts for candidate in part.candidates],
            owners=[numbers[id(part.contexts[owner])] for part in parts for owner in part.owners],
            prefix=parts[0].prefix,
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Some of the ids of a context or a candidate, which follow each other."""

    ids: list[int]
    text: str = ""  # whose tokens they are; empty: special tokens, or a marker that the model's config names
    # The number of the turn, or of the sentence of the persona, that the text is.
    turn: int | None = None
    persona: int | None = None
    from_end: bool = False  # they are the last ones of the text; else they are the first ones
    unshown: int = 0  # so many letters at the beginning of the text are a prompt of the model, and not of the turn


class PlacedToken(NamedTuple):
    """A token, and where it is from."""

    id: int
    text: str  # the characters that it stands for; of a token without a place its name in the vocabulary
    # The number of the turn, or of the sentence of the persona, that has the token; None: it is of none, such as a
    # separator.
    turn: int | None = None
    persona: int | None = None
    # Its characters there; None: it stands for none.
    start: int | None = None
    end: int | None = None
    word: int | None = None  # the number of its word, counted through the context; None: it belongs to none


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
