"""Which texts of a batch are whose negatives: never a correct reply, however it is written."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from polyrank.model.text.assembly import Assembler, Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.sequences import Pairs
from polyrank.model.training.data import columns
from polyrank.model.training.objective import Batch
from polyrank.model.training.pair_objective import pair_rows

SPELLINGS = ("{}", "{} ", " {}", "{}\t\n")


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """One of few texts in one of its spellings, so that equal ones are common."""
    words = f"{name} {draw(st.integers(0, 5))}"
    return draw(st.sampled_from(SPELLINGS)).format(words.upper() if draw(st.booleans()) else words)


replies = texts("reply")
contexts = st.builds(
    Conversation.of, st.lists(texts("turn"), min_size=1, max_size=2), st.lists(texts("fact"), max_size=1)
)
examples_of = st.lists(
    st.builds(Dialogue, conversation=contexts, response=replies, negatives=st.lists(replies, max_size=4).map(tuple)),
    min_size=1,
    max_size=7,
)
others_of = st.lists(st.builds(Dialogue, conversation=contexts, response=replies), max_size=4)
counts = st.integers(1, 5)


def listed(examples: Sequence[Dialogue], negatives: int, draw: random.Random) -> list[list[str]]:
    """The negatives of each example; drawn where there are more than are wanted."""
    return [list(own) if len(own := each.negatives) <= negatives else draw.sample(own, negatives) for each in examples]


def normal(text: str) -> str:
    return " ".join(text.lower().split())


def context(example: Dialogue) -> tuple[tuple[str, ...], tuple[str, ...]]:
    conversation = example.conversation
    return tuple(normal(turn.text) for turn in conversation.turns), tuple(normal(fact) for fact in conversation.persona)


def correct(examples: Sequence[Dialogue], row: int) -> set[str]:
    """Every reply that the batch knows to be right for the row's context."""
    return {normal(other.response) for other in examples if context(other) == context(examples[row])}


@given(examples_of, others_of, counts)
def test_each_text_has_one_column_and_each_row_its_gold(
    examples: list[Dialogue], others: list[Dialogue], negatives: int
) -> None:
    found = columns(examples, others, negatives, random.Random(0))
    forms = [normal(text) for text in found.texts]
    named = [each.response for each in examples]
    named += [text for own in listed(examples, negatives, random.Random(0)) for text in own]
    named += [other.response for other in others]
    assert len(set(forms)) == len(forms)
    assert set(forms) == {normal(text) for text in named}
    assert set(found.texts) <= set(named), "a text is given as it was written"
    assert [forms[at] for at in found.gold.tolist()] == [normal(each.response) for each in examples]


@given(examples_of, others_of, counts)
def test_a_column_is_forbidden_where_it_is_another_correct_reply_and_nowhere_else(
    examples: list[Dialogue], lent: list[Dialogue], negatives: int
) -> None:
    found = columns(examples, lent, negatives, random.Random(0))
    drawn = listed(examples, negatives, random.Random(0))
    assert found.allowed.shape == found.listed.shape == (len(examples), len(found.texts))
    for row, example in enumerate(examples):
        others = correct([*examples, *lent], row) - {normal(example.response)}
        allowed = [normal(text) not in others for text in found.texts]
        assert found.allowed[row].tolist() == allowed
        own = {normal(text) for text in (example.response, *drawn[row])} - others
        assert found.listed[row].tolist() == [normal(text) in own for text in found.texts]


def test_of_more_listed_negatives_all_are_drawn_as_often() -> None:
    texts = [f"n{n}" for n in range(12)]
    example = Dialogue(Conversation.of("hello"), "yes", negatives=tuple(texts))
    draw, counts = random.Random(1), Counter[str]()
    for _ in range(600):
        found = columns([example], (), 3, draw)
        assert len(found.texts) == 4
        counts.update(found.texts[1:])
    assert set(counts) == set(texts)
    assert min(counts.values()) > 100, "150 each"
    again = [columns([example], (), 3, random.Random(5)).texts for _ in range(2)]
    assert again[0] == again[1]
    assert columns([example], (), 12, draw).texts == ["yes", *texts]
    assert columns([example], (), 0, draw).texts == ["yes"]


class Recorder:
    """Stands in for an assembler: keeps what it is asked to pair."""

    def __init__(self) -> None:
        self.asked: list[tuple[Conversation, list[str]]] = []

    def pairs(self, conversation: Conversation, found: Sequence[str]) -> tuple[Pairs, Any]:
        self.asked.append((conversation, list(found)))
        n = len(self.asked)
        return Pairs([[n]], [[n, at] for at in range(len(found))], [0] * len(found)), None


@given(examples_of, others_of, counts, st.integers(0, 3))
def test_a_cross_batch_has_the_gold_reply_first_and_no_other_correct_one(
    examples: list[Dialogue], others: list[Dialogue], negatives: int, seed: int
) -> None:
    assume(len(examples) + len(others) > 1)
    recorder = Recorder()
    pairs, width, _ = pair_rows(cast(Assembler, recorder), Batch(examples, others, random.Random(seed)), negatives)
    assert [conversation for conversation, _ in recorder.asked] == [each.conversation for each in examples]
    rows = [[normal(text) for text in found] for _, found in recorder.asked]
    drawn = listed(examples, negatives, random.Random(seed))
    known = {normal(text) for each, own in zip(examples, drawn, strict=True) for text in (each.response, *own)}
    known |= {normal(other.response) for other in others}
    everyone = [*examples, *others]
    most = [len(known - correct(everyone, row)) for row in range(len(examples))]
    assert width == 1 + min(negatives, *most)
    for row, example in enumerate(examples):
        gold, *chosen = rows[row]
        assert len(chosen) == width - 1
        assert gold == normal(example.response)
        assert len(set(chosen)) == len(chosen)
        assert not set(chosen) & correct(everyone, row)
        own = {normal(text) for text in drawn[row]} - correct(everyone, row)
        assert len(set(chosen) & own) == min(len(own), len(chosen)), "its own negatives come before those of others"
    numbers = range(1, len(examples) + 1)
    assert pairs.contexts == [[n] for n in numbers]
    assert pairs.candidates == [[n, at] for n in numbers for at in range(width)]
    assert pairs.owners == [n - 1 for n in numbers for _ in range(width)]


@given(examples_of, counts, st.integers(0, 3))
def test_the_same_draw_gives_the_same_cross_batch(examples: list[Dialogue], negatives: int, seed: int) -> None:
    assume(len(examples) > 1)

    def asked() -> list[tuple[Conversation, list[str]]]:
        recorder = Recorder()
        pair_rows(cast(Assembler, recorder), Batch(examples, (), random.Random(seed)), negatives)
        return recorder.asked

    assert asked() == asked()


@given(st.lists(st.integers(0, 9), min_size=3, max_size=8, unique=True))
def test_negatives_of_others_are_drawn_and_not_always_the_same(numbers: list[int]) -> None:
    examples = [Dialogue(Conversation.of(f"turn {n}"), f"reply {n}") for n in numbers]
    seen = []
    for seed in range(40):
        recorder = Recorder()
        pair_rows(cast(Assembler, recorder), Batch(examples, (), random.Random(seed)), 1)
        seen.append(recorder.asked[0][1][1])
    assert any(one != other for one, other in pairwise(seen))


def hardness(examples: Sequence[Dialogue], found: Sequence[str]) -> torch.Tensor:
    """A retriever that ranks texts by the number they end with."""
    return torch.tensor([[float(text.split()[-1]) for text in found]] * len(examples))


@given(st.permutations(range(9)), st.integers(1, 8), st.integers(0, 9))
def test_a_retrievers_best_are_taken_and_one_is_drawn(numbers: list[int], negatives: int, seed: int) -> None:
    everyone = [Dialogue(Conversation.of(f"turn {n}"), f"reply {n}") for n in numbers]
    recorder = Recorder()
    examples, others = everyone[:3], everyone[3:]
    pair_rows(cast(Assembler, recorder), Batch(examples, others, random.Random(seed)), negatives, hardness)
    for example, (_, [gold, *chosen]) in zip(examples, recorder.asked, strict=True):
        assert gold == example.response
        hardest = [f"reply {n}" for n in range(8, -1, -1) if f"reply {n}" != gold]
        assert chosen[:-1] == hardest[: negatives - 1]
        assert chosen[-1] in hardest[negatives - 1 :]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=5), st.integers(2, 5))
def test_a_retriever_is_asked_only_where_it_has_a_place_to_fill(listed: list[int], negatives: int) -> None:
    """One place of a row is drawn; those that its own negatives fill are not the retriever's either."""
    examples = [
        Dialogue(Conversation.of(f"turn {n}"), f"reply {n}", negatives=tuple(f"wrong {n} {m}" for m in range(count)))
        for n, count in enumerate(listed)
    ]
    others = [Dialogue(Conversation.of(f"turn {n}"), f"reply {n}") for n in range(10, 15)]
    asked = []

    def score(rows: Sequence[Dialogue], found: Sequence[str]) -> torch.Tensor:
        asked.append(rows)
        return torch.zeros(len(rows), len(found))

    pair_rows(cast(Assembler, Recorder()), Batch(examples, others, random.Random(0)), negatives, score)
    assert bool(asked) == (negatives - min(listed) > 1)


def test_the_one_that_is_drawn_is_not_always_the_same() -> None:
    everyone = [Dialogue(Conversation.of(f"turn {n}"), f"reply {n}") for n in range(9)]
    seen = set()
    for seed in range(40):
        recorder = Recorder()
        pair_rows(cast(Assembler, recorder), Batch(everyone[:1], everyone[1:], random.Random(seed)), 2, hardness)
        seen.add(recorder.asked[0][1][-1])
    assert len(seen) > 3
