"""What a scheduler packs into a batch."""

from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.architectures.batching import FORWARD_TOKENS
from polyrank.service.scheduling.scheduler import PADDING_SHARE, pack

LENGTHS = st.lists(st.integers(0, 600), min_size=1, max_size=60)
BUDGETS = st.integers(0, 2000)


@given(lengths=LENGTHS, budget=BUDGETS)
def test_a_batch_holds_the_oldest_keeps_the_budget_and_wastes_little(lengths: list[int], budget: int) -> None:
    batch = pack(lengths, budget)
    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    chosen = [lengths[at] for at in batch]
    padded = max(chosen) * len(chosen)
    assert len(batch) == 1 or padded <= budget
    assert padded - sum(chosen) <= max(FORWARD_TOKENS, PADDING_SHARE * padded)


@given(lengths=LENGTHS, budget=BUDGETS)
def test_what_is_left_out_is_longer_or_shorter_than_all_that_is_in(lengths: list[int], budget: int) -> None:
    batch = set(pack(lengths, budget))
    low, high = min(lengths[at] for at in batch), max(lengths[at] for at in batch)
    assert all(not low < lengths[at] < high for at in range(len(lengths)) if at not in batch)


@given(length=st.integers(1, 300), count=st.integers(1, 60), budget=st.integers(0, 2000))
def test_equal_lengths_fill_the_budget(length: int, count: int, budget: int) -> None:
    assert len(pack([length] * count, budget)) == max(1, min(count, budget // length))
