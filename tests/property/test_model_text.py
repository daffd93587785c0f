"""From texts to tokens and examples: what holds for any text."""

import random
import tempfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CLS, SEP, word_ids, write_base

from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import Dialogue, new_dialogues, read_dialogues
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


TALKS = st.lists(
    st.lists(st.sampled_from(["hi", "hello", "yes", "no", "Yes ", ""]), min_size=1, max_size=6), min_size=1, max_size=12
)


@settings(max_examples=cases(200))
@given(TALKS, st.integers(0, 9))
def test_lines_of_one_talk_have_one_name_wherever_their_first_turns_are_their_own(
    talks: list[list[str]], seed: int
) -> None:
    lines = [
        (n, Dialogue(Conversation.of([f"talk {n}", *talk[:at]]), talk[at]))
        for n, talk in enumerate(talks)
        for at in range(len(talk))
    ]
    random.Random(seed).shuffle(lines)
    found = identified(one for _, one in lines)[0]
    names = {(n, one.dialogue) for (n, _), one in zip(lines, found, strict=True)}
    assert len(names) == len({n for n, _ in names}) == len({name for _, name in names})


@settings(max_examples=cases(200))
@given(TALKS, st.integers(1, 4))
def test_any_lines_have_names(talks: list[list[str]], window: int) -> None:
    lines = [
        Dialogue(Conversation.of(["hi", *talk[max(0, at - window) : at]]), talk[at])
        for talk in talks
        for at in range(len(talk))
    ]
    found, conversations = identified(lines)
    assert all(one.dialogue for one in found)
    assert len(conversations.keys) == len(lines)
    assert identified(lines)[0] == found


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TOLD = TEXTS.filter(str.strip)


@st.composite
def dialogues(draw: st.DrawFn) -> Dialogue:
    context = [*draw(st.lists(TEXTS, max_size=4)), draw(TOLD), *draw(st.lists(TEXTS, max_size=2))]
    persona, negatives = draw(st.lists(TEXTS, max_size=3)), draw(st.lists(TEXTS, max_size=4))
    response, name = draw(TOLD), draw(TEXTS)
    candidates = draw(st.lists(TEXTS | st.just(response), max_size=4))
    label = draw(st.integers(0, len(candidates))) if candidates else -1
    if candidates:
        candidates.insert(label, response)
    return Dialogue(Conversation.of(context, persona), response, tuple(candidates), label, tuple(negatives), name)


@settings(max_examples=cases(200))
@given(st.lists(dialogues(), max_size=5), st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst"]))
def test_round_trip(examples: list[Dialogue], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"data{suffix}"
        with new_dialogues(path) as write:
            for example in examples:
                write(example)
        assert list(read_dialogues(path)) == examples
