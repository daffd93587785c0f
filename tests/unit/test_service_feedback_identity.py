"""Names that a log of feedback gives: ids that cannot be made up, digests, and places in a share."""

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.service.errors import UnknownRanking
from polyrank.service.feedback.identity import Identity, RankingOrigin, host_mark, origin_of

IDENTITY = Identity(b"k" * 32)
NAMES = st.text("ab é💬\udc80", min_size=1)
TIMES = st.integers(0, 4_000_000_000_000).map(lambda milliseconds: milliseconds / 1000)


@given(TIMES)
def test_an_id_tells_its_time_its_conversation_and_its_host(at: float) -> None:
    digest = IDENTITY.conversation("chat 7")
    made = IDENTITY.ranking_id(at, digest)
    assert IDENTITY.checked(made) == origin_of(made) == RankingOrigin(at, digest, host_mark())
    assert IDENTITY.checked(IDENTITY.ranking_id(at)) == RankingOrigin(at, None, host_mark())
    assert re.fullmatch("[0-9a-f]{60}", made)


@given(st.floats(0, 4e9))
def test_no_id_is_later_than_its_ranking(at: float) -> None:
    assert at - 0.001001 < IDENTITY.checked(IDENTITY.ranking_id(at)).at <= at


@given(TIMES, TIMES)
def test_ids_sort_by_their_times(one: float, other: float) -> None:
    ids = sorted([IDENTITY.ranking_id(one), IDENTITY.ranking_id(other)])
    assert [IDENTITY.checked(each).at for each in ids] == sorted([one, other])


def test_no_two_rankings_of_a_moment_have_one_id() -> None:
    assert len({IDENTITY.ranking_id(1.0) for _ in range(10_000)}) == 10_000


def test_a_made_up_id_is_refused() -> None:
    good = IDENTITY.ranking_id(1_764_000_000.123)
    content = bytearray.fromhex(good)
    forged = []
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        forged.append(content.hex())
        content[bit // 8] ^= 1 << bit % 8
    others = [Identity(b"o" * 32).ranking_id(1.0), good.upper(), good[:-1], good + "0", "", "é" * 60, good + "\n"]
    for wrong in (*forged, *others, "0" * 60, "g" * 60, "٣" * 60):
        with pytest.raises(UnknownRanking):
            IDENTITY.checked(wrong)
    assert IDENTITY.checked(good).at == 1_764_000_000.123


@given(NAMES, NAMES)
def test_a_conversation_has_one_digest_and_no_other_has_it(one: str, other: str) -> None:
    digests = [IDENTITY.conversation(name) for name in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in digests)
    assert Identity(b"o" * 32).conversation(one) != digests[0]


def test_a_share_of_the_conversations_lies_below_it() -> None:
    places = sorted(place(str(number)) for number in range(4000))
    assert all(0.0 <= place < 1.0 for place in places)
    # Kolmogorov's bound for 4,000 uniform numbers: a false alarm in one of a million keys.
    assert max(abs(place - at / 4000) for at, place in enumerate(places)) < 2.7 / 4000**0.5
    assert max(after - before for before, after in pairwise(places)) < 0.01


def place(name: str, trial: str = "g1", caller: str = "shop", identity: Identity = IDENTITY) -> float:
    return identity.share_of(trial, caller, identity.conversation(name))


@pytest.mark.parametrize("other", [
    pytest.param({"caller": "bot"}, id="another caller, who tries names"),
    pytest.param({"trial": "g2"}, id="the next trial"),
    pytest.param({"identity": Identity(b"o" * 32)}, id="another store"),
])  # fmt: skip
def test_the_side_of_a_conversation_tells_no_other_side(other: dict[str, Any]) -> None:
    names = [str(number) for number in range(2000)]
    assert all(place(name) == place(name) for name in names)
    same = sum((place(name) < 0.5) == (place(name, **other) < 0.5) for name in names)
    assert abs(same - 1000) < 5 * 500**0.5, "as often as by chance"


def test_a_store_has_one_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: Identity.of(tmp_path), range(32)))
    assert len({each.conversation("a") for each in made}) == 1
    [key] = (tmp_path / "feedback").iterdir()
    assert (key.name, key.stat().st_size, stat.S_IMODE(key.stat().st_mode)) == ("key", 32, 0o600)
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
