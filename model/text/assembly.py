"""From a conversation to token ids: what is kept, what is cut, and in which order.

Rules of assembly version 1. The persona comes first and takes at most half of the budget; then the turns, oldest
first. If they do not fit, whole turns are dropped, oldest first. The newest turn is never dropped: if it alone is too
long it loses tokens from its beginning, because a reply answers the end of what was said. Candidates lose their end.
Every cut is reported. Of a long text no more is read than these rules need (reading.py).

A context is put together of segments: special tokens, markers, and texts. The ids of a text are the first ones of all
that it has, or the last ones. So its tokens are found again by tokenising it whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.text.reading import Reader, Steps, finish, in_parts
from polyrank.model.text.sequences import Pairs, PlacedToken
from polyrank.model.text.tokenizer import FEW_LETTERS, Tokenizer

_FIRST_TURNS = 8  # most conversations keep no more turns, and take one call of the tokenizer
# Tokens that are cut are counted in so many letters of the newest turn, and in so many of the persona.
COUNTED_LETTERS = 32_768


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation; `role` names the speaker, if the caller knows it."""

    text: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A context: turns, oldest first, and facts about the replying side."""

    turns: tuple[Turn, ...]
    persona: tuple[str, ...] = ()

    @classmethod
    def of(cls, context: str | Sequence[str | Turn], persona: str | Sequence[str] = ()) -> "Conversation":
        """Build from one text, or from turns as strings or Turn objects; raises InvalidInput if no turn has text."""
        items = [context] if isinstance(context, str) else list(context)
        turns = tuple(Turn(turn) if isinstance(turn, str) else turn for turn in items)
        if not any(turn.text.strip() for turn in turns):
            raise InvalidInput("the context is empty; give at least one turn with text")
        return cls(turns=turns, persona=(persona,) if isinstance(persona, str) else tuple(persona))

    def followed_by(self, text: str) -> "Conversation":
        """Return it with one more turn."""
        return replace(self, turns=(*self.turns, Turn(text)))

    @property
    def letters(self) -> int:
        """How many letters all turns and the persona have."""
        return sum(len(turn.text) for turn in self.turns) + sum(map(len, self.persona))


@dataclass(frozen=True, slots=True)
class Truncation:
    """What did not fit: turns dropped, tokens cut from the turns and persona kept, candidates that lost their end.

    Tokens are counted in the last `COUNTED_LETTERS` letters of the newest turn, and in the first ones of the persona.
    """

    turns: int = 0
    tokens: int = 0
    candidates: int = 0


def require_positive(top_k: int | None) -> None:
    """Raise InvalidInput if `top_k` is less than 1; None, which means all, is allowed."""
    if top_k is not None and top_k < 1:
        raise InvalidInput(f"top_k is {top_k}; ask for at least 1")


def require_several(texts: Sequence[str]) -> None:
    """Raise InvalidInput if the texts are one string, which would be taken for as many texts as it has letters."""
    if isinstance(texts, str):
        raise InvalidInput("the texts must be a list, not one string; give [text]")


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


class Assembler:
    """Turns conversations and candidates into token ids by the rules of a checkpoint's config; thread-safe."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.tokenizer = tokenizer
        self._reader = Reader(tokenizer)
        self._config = config
        assembly = config.assembly
        self._turn_separator = tokenizer.marker(assembly.turn_separator)
        self._persona_separator = tokenizer.marker(assembly.persona_separator)
        self._context_prompt = tokenizer.marker(assembly.context_prompt)
        self._persona_marker = tokenizer.marker(assembly.persona_marker)
        self._role_markers = {role: tokenizer.marker(text) for role, text in assembly.role_markers.items()}

    def context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return the token ids of a context, special tokens included, and what was cut."""
        return finish(self.context_steps(conversation))

    def candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each candidate, special tokens included, and how many candidates were cut."""
        return finish(self._wrapped_candidates(texts))

    def pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return the input of a Cross-encoder, and what was cut.

        The ids of a context and of a candidate, one after the other, make one sequence. For a residual Cross-encoder
        both are wrapped as if alone, because its Poly-encoder reads them so.
        """
        return finish(self.pair_steps(conversation, texts))

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        """Do what `context` does, in steps."""
        segments, truncation = yield from self._prompted_context(conversation)
        return _ids_of(segments), truncation

    def placed_context_steps(self, conversation: Conversation) -> Steps[tuple[list[PlacedToken], Truncation]]:
        """Do what `context` does, in steps, and tell where each id is from."""
        segments, truncation = yield from self._prompted_context(conversation)
        return (yield from _placed(self.tokenizer, segments)), truncation

    def placed_pair_context_steps(self, conversation: Conversation) -> Steps[tuple[list[PlacedToken], Truncation]]:
        """Make the context of `pairs`, in steps, and tell where each id is from."""
        segments, truncation = yield from self._pair_context(conversation)
        return (yield from _placed(self.tokenizer, segments)), truncation

    def placed_candidate_steps(self, texts: Sequence[str]) -> Steps[list[list[PlacedToken]]]:
        """Do what `candidates` does, in steps, and tell where each id is from: a span of its own text."""
        prompt, tokens = self._config.assembly.candidate_prompt, []
        ids, _ = yield from self._wrapped_candidates(texts)
        before, behind = self.tokenizer.prefix, self.tokenizer.suffix
        for text, own in zip(texts, ids, strict=True):
            body = Segment(own[len(before) : len(own) - len(behind)], prompt + text, turn=0, unshown=len(prompt))
            tokens.append((yield from _placed(self.tokenizer, [Segment(before), body, Segment(behind)])))
        return tokens

    def pair_steps(self, conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        """Do what `pairs` does, in steps."""
        tokenizer, prefix = self.tokenizer, 0
        segments, truncation = yield from self._pair_context(conversation)
        context = _ids_of(segments)
        if self._config.residual:
            candidates, cut = yield from self._wrapped_candidates(texts)
            prefix = len(tokenizer.prefix)
        else:
            limit = self._config.max_candidate_tokens
            if self._config.head == "published":  # rerankers that bound only both together
                limit += self._config.max_context_tokens - len(context)
            candidates, cut = yield from self._candidates(texts, [], tokenizer.pair_suffix, limit)
        pairs = Pairs([context], candidates, [0] * len(candidates), prefix)
        return pairs, replace(truncation, candidates=cut)

    def _pair_context(self, conversation: Conversation) -> Steps[tuple[list[Segment], Truncation]]:
        if self._config.residual:
            return (yield from self._prompted_context(conversation))
        return (yield from self._context(conversation, self.tokenizer.pair_separator))

    def _wrapped_candidates(self, texts: Sequence[str]) -> Steps[tuple[list[list[int]], int]]:
        if prompt := self._config.assembly.candidate_prompt:
            texts = [prompt + text for text in texts]
        limit = self._config.max_candidate_tokens
        return self._candidates(texts, self.tokenizer.prefix, self.tokenizer.suffix, limit)

    def _prompted_context(self, conversation: Conversation) -> Steps[tuple[list[Segment], Truncation]]:
        """Make a context of the prompt, persona and turns.

        One turn alone is tokenised together with the prompt, as the base model was trained, if all of it fits.
        """
        suffix, prompt = self.tokenizer.suffix, self._config.assembly.context_prompt
        if prompt and len(conversation.turns) == 1 and not conversation.persona:
            [turn] = conversation.turns
            joined = Conversation((Turn(prompt + turn.text, turn.role),))
            segments, truncation = yield from self._context(joined, suffix)
            if truncation == Truncation():
                return [replace(each, unshown=len(prompt)) if each.text else each for each in segments], truncation
        return (yield from self._context(conversation, suffix, self._context_prompt))

    def _context(
        self, conversation: Conversation, suffix: list[int], prompt: Sequence[int] = ()
    ) -> Steps[tuple[list[Segment], Truncation]]:
        prefix = [*self.tokenizer.prefix, *prompt]
        budget = self._config.max_context_tokens - len(prefix) - len(suffix)
        persona, persona_cut = yield from self._persona(conversation.persona, budget // 2)
        room = budget - len(_ids_of(persona))
        turns, dropped, turns_cut = yield from self._turns(conversation.turns, room)
        return [Segment(prefix), *persona, *turns, Segment(suffix)], Truncation(dropped, persona_cut + turns_cut)

    def _candidates(
        self, texts: Sequence[str], prefix: list[int], suffix: list[int], limit: int
    ) -> Steps[tuple[list[list[int]], int]]:
        room = limit - len(prefix) - len(suffix)
        bodies = yield from self._reader.beginnings(texts, room + 1)
        return [[*prefix, *body[:room], *suffix] for body in bodies], sum(len(body) > room for body in bodies)

    def _persona(self, sentences: Sequence[str], budget: int) -> Steps[tuple[list[Segment], int]]:
        """Make the persona's ids, cut at the end to fit and ending in the separator; also returns how many were cut."""
        facts = {number: sentence for number, sentence in enumerate(sentences) if sentence.strip()}
        if not facts:
            return [], 0
        separator = Segment(self._persona_separator)
        segments, numbers = [Segment(self._persona_marker)], iter(facts)
        count, letters = len(self._persona_marker), 0
        for part in in_parts([*facts.values()]):
            for fact, ids in zip(
                part, (yield from self._reader.beginnings(part, budget + 1, COUNTED_LETTERS)), strict=True
            ):
                segments += [Segment(ids, fact, persona=next(numbers)), separator]
                count += len(ids) + len(separator.ids)
            if sum(map(len, part)) > FEW_LETTERS:
                yield
            letters += sum(map(len, part))
            if letters > COUNTED_LETTERS and count > budget:
                break
        if count <= budget:
            return segments, 0
        room = max(0, budget - len(separator.ids))
        return _first_ids([*_first_ids(segments, room), separator], budget), count - budget

    def _turns(self, turns: Sequence[Turn], budget: int) -> Steps[tuple[list[Segment], int, int]]:
        """Make the ids of the newest turns that fit whole; also returns the turns dropped, and the newest one's cut."""
        newest_first = [(at, turn) for at, turn in reversed([*enumerate(turns)]) if turn.text.strip()]
        (at, newest), *older = newest_first[: self._config.assembly.max_turns]
        ids = yield from self._reader.end(newest.text, budget + 1, COUNTED_LETTERS)
        if len(newest.text) > FEW_LETTERS:
            yield
        marker = self._marker_of(newest)
        cut = max(0, len(marker) + len(ids) - budget)
        own = _last_ids([Segment(marker), Segment(ids, newest.text, turn=at, from_end=True)], budget)
        by_turn = [own, *(yield from self._older(older, budget - len(_ids_of(own))))]
        joined = by_turn[-1]
        for segments in reversed(by_turn[:-1]):
            joined = [*joined, Segment(self._turn_separator), *segments]
        return joined, len(newest_first) - len(by_turn), cut

    def _older(self, turns: Sequence[tuple[int, Turn]], room: int) -> Steps[list[list[Segment]]]:
        """Make the ids of as many turns as fit whole with their separators; `turns` and ids are newest first.

        Turns are read in growing groups, so that old ones out of reach cost nothing.
        """
        by_turn: list[list[Segment]] = []
        start, count = 0, _FIRST_TURNS
        while start < len(turns):
            group = turns[start : start + count]
            texts = [turn.text for _, turn in group]
            bodies = yield from self._reader.beginnings(texts, room + 1)
            for (at, turn), ids in zip(group, bodies, strict=True):
                marker = self._marker_of(turn)
                room -= len(self._turn_separator) + len(marker) + len(ids)
                if room < 0:
                    return by_turn
                by_turn.append([Segment(marker), Segment(ids, turn.text, turn=at)])
            if sum(map(len, texts)) > FEW_LETTERS:
                yield
            start, count = start + count, 2 * count
        return by_turn

    def _marker_of(self, turn: Turn) -> list[int]:
        return self._role_markers.get(turn.role or "", [])


def _ids_of(segments: Sequence[Segment]) -> list[int]:
    return [id_ for segment in segments for id_ in segment.ids]


def _first_ids(segments: Sequence[Segment], count: int) -> list[Segment]:
    """Cut segments behind so many ids.

    >>> [each.ids for each in _first_ids([Segment([1, 2]), Segment([3, 4])], 3)]
    [[1, 2], [3]]
    """
    front = []
    for segment in segments:
        front.append(replace(segment, ids=segment.ids[: max(0, count)]))
        count -= len(segment.ids)
    return front


def _last_ids(segments: Sequence[Segment], count: int) -> list[Segment]:
    """Cut segments before their last ids, so many of them.

    >>> [each.ids for each in _last_ids([Segment([1, 2]), Segment([3, 4])], 3)]
    [[2], [3, 4]]
    """
    back = []
    for segment in reversed(segments):
        back.append(replace(segment, ids=segment.ids[max(0, len(segment.ids) - count) :]))
        count = max(0, count - len(segment.ids))
    return back[::-1]


def _placed(tokenizer: Tokenizer, segments: Sequence[Segment]) -> Steps[list[PlacedToken]]:
    """Tell where each id of the segments is from, a text at a time."""
    tokens: list[PlacedToken] = []
    words = 0
    for segment in segments:
        if not segment.text:
            tokens += (PlacedToken(id_, tokenizer.name_of(id_)) for id_ in segment.ids)
            continue
        own = _of_text(tokenizer, segment, words)
        words = max([words, *(token.word + 1 for token in own if token.word is not None)])
        tokens += own
        if len(segment.text) > FEW_LETTERS:
            yield
    return tokens


def _of_text(tokenizer: Tokenizer, segment: Segment, words: int) -> list[PlacedToken]:
    """Place the tokens of a text, its words counted from `words`."""
    spans = tokenizer.spans(segment.text)
    first = len(spans) - len(segment.ids) if segment.from_end else 0
    own_spans = spans[max(0, first) : first + len(segment.ids)]
    turn, persona = segment.turn, segment.persona
    if [span.id for span in own_spans] != segment.ids:  # overlapping added tokens: polyrank.model.text.reading
        return [PlacedToken(id_, tokenizer.name_of(id_), turn, persona) for id_ in segment.ids]
    tokens, shown = [], segment.unshown
    for span in own_spans:
        if span.end <= shown:
            tokens.append(PlacedToken(span.id, segment.text[span.start : span.end]))  # of the prompt
            continue
        start = max(span.start, shown)
        own = segment.text[start : span.end]
        tokens.append(PlacedToken(span.id, own, turn, persona, start - shown, span.end - shown, words + span.word))
    return tokens
