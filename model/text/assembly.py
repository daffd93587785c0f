"""From a conversation to token ids: what is kept, what is cut, and in which order.

Rules of assembly version 1. The persona comes first and takes at most half of the budget; then the turns, oldest
first. If they do not fit, whole turns are dropped, oldest first. The newest turn is never dropped: if it alone is too
long it loses tokens from its beginning, because a reply answers the end of what was said. Candidates lose their end.
Every cut is reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.text.pairs import Pairs
from polyrank.model.text.tokenizer import Token, Tokenizer


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
        turns = [context] if isinstance(context, str) else list(context)
        kept = tuple(Turn(turn) if isinstance(turn, str) else turn for turn in turns)
        if not any(turn.text.strip() for turn in kept):
            raise InvalidInput("the context is empty; give at least one turn with text")
        return cls(turns=kept, persona=(persona,) if isinstance(persona, str) else tuple(persona))


@dataclass(frozen=True, slots=True)
class Truncation:
    """What did not fit: turns dropped, tokens cut from the turns and persona kept, candidates that lost their end."""

    turns: int = 0
    tokens: int = 0
    candidates: int = 0


def require_positive(top_k: int | None) -> None:
    """Raise InvalidInput if `top_k` is less than 1; None, which means all, is allowed."""
    if top_k is not None and top_k < 1:
        raise InvalidInput(f"top_k is {top_k}; ask for at least 1")


class Assembler:
    """Turns conversations and candidates into token ids by the rules of one checkpoint's config; thread-safe."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        assembly = config.assembly
        self._turn_separator = tokenizer.marker(assembly.turn_separator)
        self._persona_separator = tokenizer.marker(assembly.persona_separator)
        self._persona_marker = tokenizer.marker(assembly.persona_marker)
        self._role_markers = {role: tokenizer.marker(text) for role, text in assembly.role_markers.items()}

    def context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return the token ids of a context, special tokens included, and what was cut."""
        wrapping = len(self._tokenizer.prefix) + len(self._tokenizer.suffix)
        body, truncation = self._context_body(conversation, self._config.max_context_tokens - wrapping)
        return [*self._tokenizer.prefix, *body, *self._tokenizer.suffix], truncation

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text, uncut; see `Tokenizer.pieces`."""
        return self._tokenizer.pieces(texts, wrapped)

    def candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each candidate, special tokens included, and how many candidates were cut."""
        room = self._config.max_candidate_tokens - len(self._tokenizer.prefix) - len(self._tokenizer.suffix)
        bodies = self._tokenizer.encode(texts)
        cut = sum(len(body) > room for body in bodies)
        return [[*self._tokenizer.prefix, *body[:room], *self._tokenizer.suffix] for body in bodies], cut

    def pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return the input of a Cross-encoder, and what was cut.

        The ids of a context and of a candidate, one after the other, make one sequence. For a residual Cross-encoder
        both are wrapped as if alone, because its Poly-encoder reads them so.
        """
        if self._config.residual:
            context, truncation = self.context(conversation)
            candidates, cut = self.candidates(texts)
            prefix = len(self._tokenizer.prefix)
        else:
            context, candidates, truncation, cut = self._joint(conversation, texts)
            prefix = 0
        pairs = Pairs([context], candidates, [0] * len(candidates), prefix)
        return pairs, Truncation(truncation.turns, truncation.tokens, cut)

    def _joint(
        self, conversation: Conversation, texts: Sequence[str]
    ) -> tuple[list[int], list[list[int]], Truncation, int]:
        tokenizer = self._tokenizer
        room = self._config.max_context_tokens - len(tokenizer.prefix) - len(tokenizer.pair_separator)
        body, truncation = self._context_body(conversation, room)
        head = [*tokenizer.prefix, *body, *tokenizer.pair_separator]
        room = self._config.max_candidate_tokens - len(tokenizer.pair_suffix)
        candidates = tokenizer.encode(texts)
        cut = sum(len(candidate) > room for candidate in candidates)
        return head, [[*candidate[:room], *tokenizer.pair_suffix] for candidate in candidates], truncation, cut

    def _context_body(self, conversation: Conversation, budget: int) -> tuple[list[int], Truncation]:
        persona, persona_cut = self._persona(conversation.persona, budget // 2)
        turns, dropped, turns_cut = self._turns(conversation.turns, budget - len(persona))
        return persona + turns, Truncation(turns=dropped, tokens=persona_cut + turns_cut)

    def _persona(self, sentences: Sequence[str], budget: int) -> tuple[list[int], int]:
        """Return the persona's ids, cut at the end to fit and ending in the separator, and the number of tokens cut."""
        facts = [sentence for sentence in sentences if sentence.strip()]
        if not facts:
            return [], 0
        ids = list(self._persona_marker)
        for fact in self._tokenizer.encode(facts):
            ids += fact + self._persona_separator
        if len(ids) <= budget:
            return ids, 0
        kept = max(0, budget - len(self._persona_separator))
        return (ids[:kept] + self._persona_separator)[:budget], len(ids) - budget

    def _turns(self, turns: Sequence[Turn], budget: int) -> tuple[list[int], int, int]:
        """Return the ids of the newest turns that fit whole, the turns dropped, and the tokens cut from the newest."""
        newest_first = [turn for turn in reversed(turns) if turn.text.strip()]
        allowed = newest_first[: self._config.assembly.max_turns]
        encoded = self._encode_turns(allowed)
        newest = next(encoded)
        cut = max(0, len(newest) - budget)
        kept, used = [newest[cut:]], len(newest) - cut
        for ids in encoded:
            used += len(self._turn_separator) + len(ids)
            if used > budget:
                break
            kept.append(ids)
        joined = kept[-1]
        for ids in reversed(kept[:-1]):
            joined = joined + self._turn_separator + ids
        return joined, len(newest_first) - len(kept), cut

    def _encode_turns(self, turns: Sequence[Turn]) -> Iterator[list[int]]:
        """Yield the ids of each turn. Turns are tokenised in growing groups: those out of reach must not cost time."""
        start, count = 0, _FIRST_TURNS
        while start < len(turns):
            group = turns[start : start + count]
            encoded = self._tokenizer.encode([turn.text for turn in group])
            for turn, ids in zip(group, encoded, strict=True):
                yield self._role_markers.get(turn.role or "", []) + ids
            start, count = start + count, 2 * count


_FIRST_TURNS = 8  # most conversations keep no more turns: they take one call of the tokenizer
