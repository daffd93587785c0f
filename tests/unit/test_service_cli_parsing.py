"""Wrong options and commands: the error is that of the command they were given to, and names the right ones."""

import pytest
from command_line import call


@pytest.mark.parametrize(
    ("arguments", "prog", "says"),
    [
        (("rank", "w1", "--topk", "3"), "polyrank rank", "unrecognized arguments: --topk 3; did you mean --top-k?"),
        (("keys", "list", "--file", "f", "--jsn"), "polyrank keys list", "did you mean --json?"),
        (("bild",), "polyrank", "did you mean build?"),
        (("store", "lst"), "polyrank store", "did you mean list?"),
        (("frobnicate",), "polyrank", "invalid choice: 'frobnicate'"),
    ],
)
def test_what_was_probably_meant(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], prog: str, says: str
) -> None:
    ended = call(capsys, *arguments)
    assert (ended.status, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"{prog}: error: ")
    assert last.endswith(f"(see {prog} --help)")
    assert says in last


def test_a_choice_that_is_like_none_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in call(capsys, "frobnicate").err
