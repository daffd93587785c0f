"""Batches of like length: every sequence once, within the budget, and no dearer than without cuts."""

from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.architectures.batching import FORWARD_TOKENS, length_batches

lengths_of = st.lists(st.integers(1, 300), max_size=60)


def worth(batches: list[list[int]], lengths: list[int]) -> int:
    return sum(FORWARD_TOKENS + len(batch) * max(lengths[at] for at in batch) for batch in batches)


@given(lengths_of, st.integers(1, 2000))
def test_every_sequence_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = length_batches(lengths, budget)
    assert sorted(at for batch in batches for at in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[at] for at in batch) <= budget
    in_order = [lengths[at] for batch in batches for at in batch]
    assert in_order == sorted(lengths, reverse=True)


@given(lengths_of.filter(bool))
def test_cuts_save_more_padding_than_they_cost_forwards(lengths: list[int]) -> None:
    everything = len(lengths) * max(lengths)
    assert worth(length_batches(lengths, everything), lengths) <= FORWARD_TOKENS + everything
