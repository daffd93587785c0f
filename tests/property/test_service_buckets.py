"""One process and several allow the same calls, and say the same of those that they refuse."""

from hypothesis import given
from hypothesis import strategies as st

from polyrank.service.auth.buckets import SharedBuckets, TokenBucket, shared_memory

RATES = st.one_of(st.floats(0.001, 1e9), st.sampled_from([0.1, 1.0, 3.0, 7.0]))
# Which process is called, and how many seconds after the call before.
CALLS = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.just(0.0), st.floats(0, 10), st.floats(0, 1e6))), max_size=60
)


@given(rate=RATES, burst=st.integers(1, 12), start=st.floats(0, 1e8), calls=CALLS)
def test_several_processes_allow_what_one_does(
    rate: float, burst: int, start: float, calls: list[tuple[int, float]]
) -> None:
    now = start
    with shared_memory() as memory:
        tables = [SharedBuckets(memory) for _ in range(4)]
        several = [table.bucket("shop", rate, burst, lambda: now) for table in tables]
        one = TokenBucket(rate, burst, lambda: now)
        for process, pause in calls:
            now += pause
            assert several[process].take() == one.take()


@given(rate=RATES, burst=st.integers(1, 12), calls=CALLS, others=st.lists(st.integers(0, 200), max_size=60))
def test_calls_of_other_keys_change_nothing(
    rate: float, burst: int, calls: list[tuple[int, float]], others: list[int]
) -> None:
    now = 100.0

    def clock() -> float:
        return now

    with shared_memory() as memory:
        table = SharedBuckets(memory)
        mine, one = table.bucket("shop", rate, burst, clock), TokenBucket(rate, burst, clock)
        for at, (_, pause) in enumerate(calls):
            now += pause
            for other in others[at : at + 1]:
                table.bucket(f"other {other}", 0.01, 5, clock).take()
            assert mine.take() == one.take()
