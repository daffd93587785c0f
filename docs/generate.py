"""Write down what the code says of itself: docs/openapi.json and the table of settings; `make docs` runs it."""

import argparse
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from polyrank.service import app
from polyrank.service.cli.commands import serve
from polyrank.service.http import openapi
from polyrank.service.settings import PREFIX, Settings

DOCS = Path(__file__).parent
OPERATIONS = DOCS / "operations.md"
_TABLE = re.compile(r"(?<=<!-- settings: made by `make docs` -->\n)(\|.*\n)*")


def flags() -> dict[str, str]:
    """Setting -> the flag of `polyrank serve` that sets it."""
    commands = argparse.ArgumentParser().add_subparsers()
    serve.add_to(commands)
    actions: list[argparse.Action] = commands.choices["serve"]._actions
    return {action.dest: action.option_strings[-1] for action in actions if action.dest != "help"}


def settings_table() -> str:
    """The settings in the order in which they are declared, as Markdown."""
    given = flags()
    rows = [
        (f"`{name}`", _code(given.get(name)), f"`{PREFIX}{name.upper()}`", _default(field), _meaning(field))
        for name, field in Settings.model_fields.items()
    ]
    head = [("setting", "flag", "variable", "default", "means"), ("---",) * 5]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *rows])


def with_table(page: str) -> str:
    """The page of operations with the table as it is now."""
    replaced, count = _TABLE.subn(lambda _: settings_table(), page)
    if count != 1:
        raise ValueError(f"{OPERATIONS} has {count} places for the table of settings")
    return replaced


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default in (None, ()):
        return ""
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def _meaning(field: FieldInfo) -> str:
    choices: tuple[Any, ...] = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    listed = " or ".join(f"`{choice}`" for choice in choices)
    return ": ".join(filter(None, [listed, field.description])).replace("|", "\\|")


def main() -> None:
    """Write both."""
    openapi.write(app.create_app(Settings(store=Path("."))), DOCS / "openapi.json")
    OPERATIONS.write_text(with_table(OPERATIONS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
