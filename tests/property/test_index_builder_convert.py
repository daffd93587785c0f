"""Messages with times make the same examples, in whatever order a file has them."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from cases import cases
from foreign import converted
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import FILES, OTHERS, TIMED, TWO, asked, read, shuffled

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", TIMED)
@settings(max_examples=cases(12), deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_shuffled_messages_with_times_give_the_same_examples(name: str, draw: Random) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / FILES[name].name
        file.write_text(shuffled(name, draw))
        converted(Path(folder), file, **asked(name))
        assert read(Path(folder)) == OTHERS.get(name, TWO)
