"""Assembly of any conversation against a second, literal implementation of the rules."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CLS, SEP, word_ids, write_base

from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Tokenizer

MARKERS = {"user": "w38", "agent": "w39 w38"}
WORDS = st.lists(st.integers(0, 37).map(lambda n: f"w{n}"), max_size=12).map(" ".join)
SAID = WORDS.filter(bool)
TURNS = st.builds(Turn, WORDS, st.sampled_from([None, "user", "agent", "guest"]))
CONVERSATIONS = st.builds(
    lambda turns, last, persona: Conversation((*turns, last), tuple(persona)),
    st.lists(TURNS, max_size=30),
    st.builds(Turn, SAID, st.sampled_from([None, "user"])),
    st.lists(WORDS, max_size=4),
)


@cache
def tokenizer() -> Tokenizer:
    with TemporaryDirectory() as directory:
        return Tokenizer(write_base(Path(directory) / "base", seed=0) / "tokenizer.json")


def assembler(length: int, max_turns: int | None, marker: str, separator: str) -> Assembler:
    assembly = AssemblyConfig(
        role_markers=MARKERS, persona_marker=marker, turn_separator=separator, max_turns=max_turns
    )
    return Assembler(
        tokenizer(),
        ModelConfig(
            architecture="cross", base_name="", max_context_tokens=length, max_candidate_tokens=8, assembly=assembly
        ),
    )


def assembled(
    conversation: Conversation, room: int, max_turns: int | None, marker: str, separator: list[int]
) -> tuple[list[int], Truncation]:
    """Assemble the body: persona, then as many of the newest turns as fit."""
    facts = [fact for fact in conversation.persona if fact]
    persona = word_ids(marker) if facts else []
    for fact in facts:
        persona += [*word_ids(fact), SEP]
    tokens = max(0, len(persona) - room // 2)
    if tokens:
        persona = [*persona[: room // 2 - 1], SEP]
    turns = [word_ids(MARKERS.get(t.role or "", "")) + word_ids(t.text) for t in conversation.turns if t.text]
    total = len(turns)
    turns = turns[-max_turns:] if max_turns else turns
    room -= len(persona)

    def joined() -> list[int]:
        body = list(turns[0])
        for turn in turns[1:]:
            body += separator + turn
        return body

    while len(turns) > 1 and len(joined()) > room:
        del turns[0]
    body = joined()
    over = max(0, len(body) - room)
    return persona + body[over:], Truncation(turns=total - len(turns), tokens=tokens + over)


@settings(max_examples=cases(150))
@given(
    CONVERSATIONS,
    st.integers(8, 80),
    st.none() | st.integers(1, 12),
    st.sampled_from(["", "w36", "w36 w37"]),
    st.sampled_from(["[SEP]", "w39 w39", ""]),
)
def test_every_conversation_is_assembled_by_the_rules(
    conversation: Conversation, length: int, max_turns: int | None, marker: str, separator: str
) -> None:
    separator_ids = [SEP] if separator == "[SEP]" else word_ids(separator)
    body, truncation = assembled(conversation, length - 2, max_turns, marker, separator_ids)
    made = assembler(length, max_turns, marker, separator)
    assert made.context(conversation) == ([CLS, *body, SEP], truncation)
    assert len(body) + 2 <= length
    pairs, of_pairs = made.pairs(conversation, ["w1 w2 w3 w4 w5 w6 w7 w8", "w1"])
    assert pairs == Pairs([[CLS, *body, SEP]], [[*range(5, 12), SEP], [5, SEP]], [0, 0])
    assert of_pairs == Truncation(truncation.turns, truncation.tokens, candidates=1)
