"""Wrong options and commands: the error is that of the command they were given to, and names the right ones."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from command_line import call, options

from polyrank.service.cli import arguments as files
from polyrank.service.cli.commands import convert, mine
from polyrank.service.cli.parsing import CommandParser, Within
from polyrank.service.settings import bounds_of


def test_every_number_that_a_command_takes_has_bounds() -> None:
    """Those of `serve` and `demo` are settings, which have theirs."""
    unbounded = {(name, action.dest) for name, action in options() if action.type in (int, float)}
    assert {dest for name, dest in unbounded if name in ("serve", "demo") and bounds_of(dest)} == {
        dest for _, dest in unbounded
    }
    read = {action.type for _, action in options() if not isinstance(action.type, Within)}
    assert read - {int, float} == {None, Path, files._encoding, mine._margin, convert._columns, files._columns}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "action"),
    [pytest.param(*each, id=f"{each[0]} {each[1].dest}") for each in options() if isinstance(each[1].type, Within)],
)
def test_a_number_out_of_its_bounds_is_refused_with_them(capsys, command: str, action: argparse.Action) -> None:
    assert isinstance(action.type, Within)
    bounds = action.type.bounds
    step = 1 if bounds.kind is int else 0.001 * bounds.most
    ends = [bounds.least - step, bounds.most + step]
    for wrong in ("nan", "inf", "-inf", "1e400", "-1e400", "9" * 5000, "many", *map(str, ends)):
        told = call(capsys, *command.split(), f"{action.option_strings[0]}={wrong}").misuse
        assert f"{action.option_strings[0]}: must be {bounds}, not '{wrong[:40]}'" in told
    for right in (bounds.least, bounds.most):
        assert action.type(str(right)) == right


@pytest.mark.parametrize("words", [
    ("feedback", "status", "--store", "S", "--store", "T"),
    ("rank", "hi", "--top-k", "3", "--top-k=4"),
    ("rank", "hi", "--url", "http://a", "--url", "http://a"),
    ("build", "--activate", "--no-activate"),
    ("serve", "--port", "8001", "--port", "8002"),
    ("train", "--seed", "1", "--epochs", "2", "--seed", "2"),
    ("evaluate", "--model", "lexical", "--model", "bm25", "--data", "F"),
], ids=" ".join)  # fmt: skip
def test_an_option_given_twice_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """The last one alone would count."""
    assert ": may be given only once (see polyrank" in call(capsys, *words).misuse


@pytest.mark.parametrize("how", [{"nargs": "+"}, {"nargs": "*", "action": "store"}, {"action": "append"}], ids=str)
def test_values_of_an_option_that_takes_several_add_up(how: dict[str, Any]) -> None:
    of = CommandParser()
    of.add_argument_group("files").add_argument("--data", default=[], **how)
    for _ in range(2):
        assert of.parse_args(["--data", "a", "--data", "b"]).data == ["a", "b"]
        assert of.parse_args([]).data == []


def test_every_option_that_takes_several_values_keeps_those_of_its_repetitions() -> None:
    for name, action in options():
        if action.option_strings and action.nargs in ("+", "*"):
            held = argparse.Namespace(**{action.dest: action.default})
            for value in ("a", "b"):
                action(CommandParser(), held, [value], action.option_strings[0])
            assert getattr(held, action.dest) == ["a", "b"], (name, action.dest)


def test_bytes_that_are_no_letters_are_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Where one row of such a file was bad, the build ended in a traceback."""
    told = call(capsys, "build", "--model", "lexical", "--pool", "Gespr\udce4che.csv", "--store", "S").failure(2)
    assert told == "Gespr\\udce4che.csv is not of the locale's encoding; rename the file, or type it again"


def test_an_empty_turn_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert "must not be empty" not in call(capsys, "rank", "hi", "", "--store", "/nowhere").err


def test_a_choice_that_is_like_none_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in call(capsys, "frobnicate").err
