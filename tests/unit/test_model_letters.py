"""Sets of letters that are spelt out, and texts that need others."""

import re

import pytest
import regex

from polyrank.model.text.folding import folded
from polyrank.model.text.letters import is_far, spelt_out

FIRST_PLANE_AND_EMOJI = [*map(chr, [*range(0x10000), *range(0x1F000, 0x20000)])]


@pytest.mark.parametrize("letters", [r"\p{M}", r"[\p{L}--\p{Han}]", r"[\-\]\^\\a]", r"\p{ExtPict}"])
def test_a_set_that_is_spelt_out_has_the_same_letters(letters: str) -> None:
    spelt, known = re.compile(spelt_out(letters)), regex.compile(letters, regex.V1)
    expected = [letter for letter in FIRST_PLANE_AND_EMOJI if known.fullmatch(letter)]
    assert [letter for letter in FIRST_PLANE_AND_EMOJI if spelt.fullmatch(letter)] == expected != []


def test_what_is_near_stays_near_when_it_is_folded() -> None:
    near = [letter for letter in FIRST_PLANE_AND_EMOJI if not is_far(letter)]
    assert len(near) > 69_000
    assert [letter for letter in near if is_far(folded(letter))] == []
