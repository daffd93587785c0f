"""The parser of the command line: its errors name what was probably meant."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from polyrank.model.options import Bounds, Option

ANY_COUNT, ANY_SEED = Bounds(1, 1_000_000_000), Bounds(0, 2**63 - 1)
SHARE = Bounds(0.0, 1.0)

_SHOWN_CHARACTERS = 40
_SEVERAL = ("+", "*")
_NUMBER = re.compile(r"invalid (?P<kind>int|float) value: (?P<word>.*)")
_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)")


@dataclass(frozen=True, slots=True)
class Within:
    """The type of an option: a number within bounds."""

    bounds: Bounds

    def __call__(self, text: str) -> float:
        """Read the number; ArgumentTypeError says what it may be."""
        with suppress(ValueError):
            if self.bounds.hold(value := self.bounds.kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"must be {self.bounds}, not {text[:_SHOWN_CHARACTERS]!r}")


def add_options_of(add: Any, options: Iterable[Option], prefix: str = "", **choices: Sequence[str]) -> None:
    """Add a flag for each option, with the help, the default and the bounds of its field.

    What is not given is None, so that nothing goes before a variable or a recipe. `prefix` begins the help. `choices`:
    of options whose field does not name them, by name. What becomes a dict may be given several times.
    """
    for each in options:
        is_list = get_origin(each.hint) is Sequence
        kind = get_args(each.hint)[0] if is_list else each.hint
        means = f"{prefix}{each.means}{default_of(each)}".replace("%", "%%")
        how: dict[str, Any] = {"dest": each.field, "default": None, "help": means}
        if kind is bool:
            how["action"] = argparse.BooleanOptionalAction
        elif names := choices.get(each.name) or (get_args(kind) if get_origin(kind) is Literal else ()):
            how["choices"] = tuple(names)
        else:
            how |= {"metavar": each.about.get("metavar")} | ({"nargs": "+"} if is_list else {})
            how |= {"action": "append"} if get_origin(kind) is dict else {}
            how |= {"type": Path} if kind is Path else {} if each.bounds is None else {"type": Within(each.bounds)}
        add(f"--{each.name.replace('_', '-')}", **how)


def values_of(arguments: argparse.Namespace, options: Iterable[Option]) -> dict[str, Any]:
    """Return what was given of these options, by the names of their fields."""
    return {each.field: value for each in options if (value := getattr(arguments, each.field)) is not None}


def default_of(option: Option) -> str:
    """Return the end of an option's help: what holds where it is not given; empty: nothing does.

    >>> from polyrank.model.options import options_of
    >>> from polyrank.model.registry import MixConfig
    >>> [default_of(each) for each in options_of(MixConfig)][:4]
    ['; default: 1', '; default: codes', '; default: -1', '; default: yes']
    """
    default = option.about.get("start") if option.default is None else option.default
    if default in (None, "", (), {}):
        text = option.about.get("otherwise", "")
    elif isinstance(default, bool):
        text = "yes" if default else "no"
    elif isinstance(default, float):
        text = f"{default:g}".replace("e-0", "e-")
    else:
        text = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"; default: {text}" if text else ""


class _Store(argparse._StoreAction):
    """Keeps what an option is given; if it takes several values, those of its repetitions add up."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, self.default)
        if option_string and self.nargs in _SEVERAL and before is not self.default:
            values = [*before, *values]
        super().__call__(parser, namespace, values, option_string)


class CommandParser(argparse.ArgumentParser):
    """Refuses wrong options by the command that they were given to, and suggests the right ones.

    `later`: adds options when they are first needed, because what describes them takes time to import; None: nothing is
    left to add.
    """

    later: "Callable[[CommandParser], None] | None" = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._used_actions: set[argparse.Action] = set()
        super().__init__(*args, **kwargs)
        self.register("action", None, _Store)
        self.register("action", "store", _Store)

    def fill(self) -> None:
        """Add what is left to add."""
        if (add := self.later) is not None:
            self.later = None
            add(self)

    def format_help(self) -> str:
        """Return the help with all options."""
        self.fill()
        return super().format_help()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse what would not count.

        Of an empty value, that of an unset variable of a shell, would be made the directory here, or the default; of an
        option given twice only the last value would be heeded.
        """
        if "" in arg_strings and (action.option_strings or action.type is Path):
            raise argparse.ArgumentError(action, "must not be empty")
        adds_up = isinstance(action, argparse._AppendAction) or action.nargs in _SEVERAL
        if action in self._used_actions and not adds_up:
            raise argparse.ArgumentError(action, "may be given only once")
        if action.option_strings:
            self._used_actions.add(action)
        return super()._get_values(action, arg_strings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; what is left over is an error here, where the command's own options are known."""
        self.fill()
        self._used_actions.clear()
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}" + self._meant(rest))
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """End with usage and the error; a choice that is none is followed by the one that is like it."""
        if number := _NUMBER.search(message):
            kind = "a whole number" if number["kind"] == "int" else "a number"
            message = f"{message[: number.start()]}must be {kind}, not {number['word']}"
        if choice := _CHOICE.search(message):
            message += _suggestion(choice["word"], re.findall(r"[\w.-]+", choice["choices"]))
        super().error(f"{message} (see {self.prog} --help)")

    def _meant(self, rest: Sequence[str]) -> str:
        options = [text.partition("=")[0] for text in rest if text.startswith("-")]
        return _suggestion(options[0], self._option_string_actions) if options else ""


def _suggestion(word: str, names: Iterable[str]) -> str:
    like = get_close_matches(word, [*names], 1)
    return f"; did you mean {like[0]}?" if like else ""
