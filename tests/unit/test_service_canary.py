"""When the generation on trial answers its share of the conversations, and when none any more."""

import time

import pytest

from polyrank.index_builder.store.pointer import Trial
from polyrank.service.live.canary import FRESH_SECONDS, LEAST_ASKED, MOST_IN_A_ROW, Canary

GENERATION = "20200101T000000000000-00000000"


def fresh() -> Canary:
    return Canary(Trial(GENERATION, 0.5), fresh_at=time.monotonic())


def test_it_takes_its_share_once_it_has_the_updates() -> None:
    assert fresh().share == 0.5
    assert Canary(Trial(GENERATION, 0.5)).share == 0.0, "it has no updates yet"
    behind = fresh()
    behind.fresh_at = time.monotonic() - FRESH_SECONDS - 1
    assert behind.share == 0.0


@pytest.mark.parametrize("kinds", [["slow"], ["inference-failed", "slow"]])
def test_answers_replaced_in_a_row_end_it(kinds: list[str]) -> None:
    canary = fresh()
    for at in range(MOST_IN_A_ROW):
        assert canary.withdrawn is None
        canary.count(kinds[at % len(kinds)])
    assert canary.withdrawn == f"5 answers in a row had to be replaced; the last one: {kinds[0]}"
    assert canary.share == 0.0


def test_a_good_answer_between_them_begins_a_new_row_and_what_the_server_is_short_of_counts_nowhere() -> None:
    canary = fresh()
    for _ in range(10):
        for why in [*["overloaded"] * 9, *["slow"] * (MOST_IN_A_ROW - 1), "overloaded", None]:
            canary.count(why)
        canary.answers = 0  # else the share of all would end it
    assert (canary.withdrawn, canary.share) == (None, 0.5)
    assert canary.replaced == 10 * (MOST_IN_A_ROW - 1)


def test_one_in_a_hundred_ends_it_once_there_are_enough() -> None:
    canary = fresh()
    for at in range(LEAST_ASKED - 1):
        canary.count("slow" if at % 100 == 50 else None)
    assert canary.withdrawn is None
    canary.count(None)
    assert canary.withdrawn == "3 of 300 answers had to be replaced; the last one: slow"
