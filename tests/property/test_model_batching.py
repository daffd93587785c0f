"""Batches and pairs: nothing is lost, and all is in its place."""

from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.architectures.batching import FORWARD_TOKENS, length_batches
from polyrank.model.text.sequences import Pairs

lengths_of = st.lists(st.integers(1, 300), max_size=60)


def worth(batches: list[list[int]], lengths: list[int]) -> int:
    return sum(FORWARD_TOKENS + len(batch) * max(lengths[at] for at in batch) for batch in batches)


@given(lengths_of, st.integers(1, 2000))
def test_every_sequence_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = length_batches(lengths, budget)
    assert sorted(at for batch in batches for at in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[at] for at in batch) <= budget
    assert [lengths[at] for batch in batches for at in batch] == sorted(lengths, reverse=True)


@given(lengths_of.filter(bool))
def test_cuts_save_more_padding_than_they_cost_forwards(lengths: list[int]) -> None:
    everything = len(lengths) * max(lengths)
    assert worth(length_batches(lengths, everything), lengths) <= FORWARD_TOKENS + everything


@st.composite
def pairs_and_positions(draw: st.DrawFn) -> tuple[Pairs, list[int]]:
    contexts = [[100 + number] for number in range(draw(st.integers(1, 5)))]
    owners = draw(st.lists(st.integers(0, len(contexts) - 1), min_size=1, max_size=12))
    positions = draw(st.lists(st.integers(0, len(owners) - 1), max_size=15))
    return Pairs(contexts, [[number] for number in range(len(owners))], owners), positions


def spelled_out(pairs: Pairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.contexts[owner], each) for owner, each in zip(pairs.owners, pairs.candidates, strict=True)]


@given(pairs_and_positions())
def test_each_keeps_its_context_and_no_other_context_is_taken(drawn: tuple[Pairs, list[int]]) -> None:
    pairs, positions = drawn
    taken = pairs.take(positions)
    assert spelled_out(taken) == [spelled_out(pairs)[position] for position in positions]
    assert set(taken.owners) == set(range(len(taken.contexts))), "each context is needed"
    assert len({tuple(each) for each in taken.contexts}) == len(taken.contexts), "and there once"
