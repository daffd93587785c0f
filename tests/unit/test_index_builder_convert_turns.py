"""Who answers, and one example for each of their replies."""

import pytest

from polyrank.index_builder.convert import turns as module
from polyrank.index_builder.convert.turns import examples_of, plain_name, with_sides
from polyrank.index_builder.pool.documents import MAX_TEXT_CHARACTERS, RowError
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import Dialogue


def sides(*roles: str | None, answering: tuple[str, ...] = ()) -> list[str | None]:
    return [turn.role for turn in with_sides([Turn("x", role) for role in roles], {*map(plain_name, answering)})]


def read(*turns: tuple[str | None, str]) -> list[tuple[list[str], str] | str]:
    found = examples_of([Turn(text, role) for role, text in turns], "c")
    return [
        str(each) if isinstance(each, RowError) else ([t.text for t in each.conversation.turns], each.response)
        for each in found
    ]


@pytest.mark.parametrize("name", ["Created At", "createdAt", "created_at", "CREATED-AT", " created  at "])
def test_names_are_compared_without_their_spelling(name: str) -> None:
    assert plain_name(name) == "created_at"


def test_names_of_other_scripts_differ() -> None:
    names = ["का", "की", "ลูกค้า", "ลกคา", "🤖", "👩"]
    assert len({*map(plain_name, names)}) == len(names)
    assert plain_name("Anna (Shop)") == "anna_shop"


def test_names_of_roles() -> None:
    assert sides("human", "gpt", "Observation", "system", "developer") == [
        "user",
        "assistant",
        "tool",
        "system",
        "system",
    ]
    assert sides("End User", "AGENT") == ["user", "assistant"]
    assert sides(None, None) == [None, None]


def test_others_answer_a_user() -> None:
    assert sides("customer", "Anna", "customer", "Ben") == ["user", "assistant", "user", "assistant"]
    assert sides("USER", "SYSTEM") == ["user", "assistant"]
    assert sides("system", "user", "Anna") == ["system", "user", "assistant"]


def test_without_names_of_roles_all_but_the_first_answer() -> None:
    assert sides("0", "1", "0") == ["user", "assistant", "user"]
    assert sides("tim", "Anna", "tim", "Ben") == ["user", "assistant", "user", "assistant"]


def test_who_is_named_answers() -> None:
    assert sides("tim", "Anna (Shop)", answering=("anna (shop)",)) == ["tim", "assistant"]
    assert sides("bot", "agent", answering=("Agent",)) == ["bot", "assistant"]


def test_each_reply_is_an_example_also_after_another_one() -> None:
    assert read(("user", " q "), ("assistant", "a"), ("assistant", "b"), ("user", "r")) == [
        (["q"], "a"),
        (["q", "a"], "b"),
    ]


def test_replies_that_cannot_be_learnt_from() -> None:
    long = "x" * (MAX_TEXT_CHARACTERS + 1)
    assert read(("system", "s"), ("assistant", "hi"), ("user", "q"), ("assistant", " "), ("assistant", long)) == [
        "a reply with nothing said before it",
        "a reply without text",
        f"a reply of more than {MAX_TEXT_CHARACTERS} characters",
    ]
    assert read(("user", "q")) == ["no reply: nobody of the side that answers speaks"]
    assert read() == ["no reply: nobody of the side that answers speaks"]


def test_without_roles_every_other_turn_is_a_reply_counted_from_the_end() -> None:
    assert read((None, "a"), (None, "b"), (None, ""), (None, "c")) == [(["a", "b"], "c")]
    assert read((None, "a"), (None, "b"), (None, "c"), (None, "d")) == [(["a"], "b"), (["a", "b", "c"], "d")]


def test_roles_names_and_personas_are_kept() -> None:
    [found] = examples_of([Turn("s", "system"), Turn("q", "user"), Turn("a", "assistant")], "c-1", ["fact"])
    assert isinstance(found, Dialogue)
    assert found.conversation.turns == (Turn("s", "system"), Turn("q", "user"))
    assert (found.conversation.persona, found.dialogue) == (("fact",), "c-1")


@pytest.mark.parametrize(("turns", "characters", "kept"), [(3, 1000, 3), (1000, 25, 3), (1000, 5, 1)])
def test_a_context_is_bounded(turns: int, characters: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TURNS", turns)
    monkeypatch.setattr(module, "MOST_CHARACTERS", characters)
    said = [Turn(f"turn {n:03}", "user") for n in range(20)]  # eight letters each
    [found] = examples_of([*said, Turn("a", "assistant")], "c")
    assert isinstance(found, Dialogue)
    assert found.conversation.turns == tuple(said[-kept:])
