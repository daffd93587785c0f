import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.index_builder.pool import seen as module
from polyrank.index_builder.pool.seen import SeenHashes

TOP = 2**64 - 1
# Zero marks an empty slot; those with the same high bits crowd one slot, at the end they go on at the beginning.
HASHES = st.one_of(st.integers(0, TOP), st.integers(0, 20), st.integers(TOP - 20, TOP))


@given(st.lists(HASHES, max_size=200))
def test_it_is_a_set(hashes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BITS_IN_MEMORY", 2)
        seen, known = SeenHashes(), set()
        for hashed in [*hashes, *hashes]:
            assert seen.add(hashed) == (hashed not in known)
            known.add(hashed)


def drawn(count: int) -> list[int]:
    chance = random.Random(0)
    return [chance.getrandbits(64) for _ in range(count)]


def test_it_grows_on_the_disk_and_leaves_nothing_there(tmp_path: Path) -> None:
    seen, hashes = SeenHashes(tmp_path), drawn(140_000)
    assert all(map(seen.add, hashes))
    assert not any(map(seen.add, hashes))
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(mapped) == 1
    assert mapped[0].endswith("(deleted)")
    assert list(tmp_path.iterdir()) == []


def test_a_small_pool_needs_no_disk(tmp_path: Path) -> None:
    seen, hashes = SeenHashes(tmp_path / "missing"), drawn(65_536)
    assert all(map(seen.add, hashes[1:]))
    with pytest.raises(FileNotFoundError):
        seen.add(hashes[0])
