"""From a conversation to token ids: what is kept, what is cut, and in which order.

Rules of assembly version 1. The persona comes first and takes at most half of the budget; then the turns, oldest
first. If they do not fit, whole turns are dropped, oldest first. The newest turn is never dropped: if it alone is too
long it loses tokens from its beginning, because a reply answers the end of what was said. Candidates lose their end.
Every cut is reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.text.pairs import Pairs
from polyrank.model.text.tokenizer import Tokenizer

_FIRST_TURNS = 8  # most conversations keep no more turns, and take one call of the tokenizer


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

    @property
    def letters(self) -> int:
        """How many letters all turns and the persona have."""
        return sum(len(turn.text) for turn in self.turns) + sum(map(len, self.persona))


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
    """Turns conversations and candidates into token ids by the rules of a checkpoint's config; thread-safe."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.tokenizer = tokenizer
        self._config = config
        assembly = config.assembly
        self._turn_separator = tokenizer.marker(assembly.turn_separator)
        self._persona_separator = tokenizer.marker(assembly.persona_separator)
        self._persona_marker = tokenizer.marker(assembly.persona_marker)
        self._role_markers = {role: tokenizer.marker(text) for role, text in assembly.role_markers.items()}

    def context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return the token ids of a context, special tokens included, and what was cut."""
        return self._context(conversation, self.tokenizer.suffix)

    def candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each candidate, special tokens included, and how many candidates were cut."""
        return self._candidates(texts, self.tokenizer.prefix, self.tokenizer.suffix)

    def pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return the input of a Cross-encoder, and what was cut.

        The ids of a context and of a candidate, one after the other, make one sequence. For a residual Cross-encoder
        both are wrapped as if alone, because its Poly-encoder reads them so.
        """
        tokenizer, prefix = self.tokenizer, 0
        if self._config.residual:
            context, truncation = self.context(conversation)
            candidates, cut = self.candidates(texts)
            prefix = len(tokenizer.prefix)
        else:
            context, truncation = self._context(conversation, tokenizer.pair_separator)
            candidates, cut = self._candidates(texts, [], tokenizer.pair_suffix)
        pairs = Pairs([context], candidates, [0] * len(candidates), prefix)
        return pairs, replace(truncation, candidates=cut)

    def _context(self, conversation: Conversation, suffix: list[int]) -> tuple[list[int], Truncation]:
        prefix = self.tokenizer.prefix
        budget = self._config.max_context_tokens - len(prefix) - len(suffix)
        persona, persona_cut = self._persona(conversation.persona, budget // 2)
        turns, dropped, turns_cut = self._turns(conversation.turns, budget - len(persona))
        return [*prefix, *persona, *turns, *suffix], Truncation(dropped, persona_cut + turns_cut)

    def _candidates(self, texts: Sequence[str], prefix: list[int], suffix: list[int]) -> tuple[list[list[int]], int]:
        room = self._config.max_candidate_tokens - len(prefix) - len(suffix)
        bodies = self.tokenizer.encode(texts)
        return [[*prefix, *body[:room], *suffix] for body in bodies], sum(len(body) > room for body in bodies)

    def _persona(self, sentences: Sequence[str], budget: int) -> tuple[list[int], int]:
        """Return the persona's ids, cut at the end to fit and ending in the separator, and the number of tokens cut."""
        facts = [sentence for sentence in sentences if sentence.strip()]
        if not facts:
            return [], 0
        ids = list(self._persona_marker)
        for fact in self.tokenizer.encode(facts):
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
        """Yield the ids of each turn; tokenises turns in growing groups, so that old ones out of reach cost nothing."""
        start, count = 0, _FIRST_TURNS
        while start < len(turns):
            group = turns[start : start + count]
            encoded = self.tokenizer.encode([turn.text for turn in group])
            for turn, ids in zip(group, encoded, strict=True):
                yield self._role_markers.get(turn.role or "", []) + ids
            start, count = start + count, 2 * count
