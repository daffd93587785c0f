"""Taking and joining pairs does not change them."""

from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.text.sequences import Pairs


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
