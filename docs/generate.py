"""Write the reference pages that the code itself determines, and docs/openapi.json. `make docs` runs it.

Each page of docs/reference/ has prose above a mark. Everything below the mark is written here.
"""

import argparse
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyrank.index_builder.convert.maps import shipped
from polyrank.service import app
from polyrank.service.cli import parser
from polyrank.service.http.compat.lenient import Cutting, Ignored, Lenient, RefusedField
from polyrank.service.http.plumbing import openapi
from polyrank.service.loop.config import LoopConfig
from polyrank.service.observe.metrics import Metrics
from polyrank.service.settings import PREFIX, Settings, bounds_of

DOCS = Path(__file__).parent
MARK = "<!-- Everything below is written by `make docs`. -->\n"
OPTION = re.compile(r"^  -.*\n(?: {3,}.*\n)*", re.MULTILINE)  # of a help text, with the lines of its meaning
HELP_COLUMNS = "100"  # argparse wraps help at the terminal's width; the page must not depend on it


def pages() -> dict[Path, str]:
    """Return the generated part of each page."""
    return {
        DOCS / "how-to" / "your-files.md": maps_list(),
        DOCS / "reference" / "settings.md": settings_table(),
        DOCS / "reference" / "loop.md": loop_table(),
        DOCS / "reference" / "cli.md": command_help(),
        DOCS / "reference" / "metrics.md": metrics_table(),
        DOCS / "reference" / "http.md": routes_table() + fields_table(),
    }


def renewed(page: str, generated: str) -> str:
    """Return the page with everything below its mark replaced.

    Raises:
        ValueError: the page does not have exactly one mark.
    """
    if page.count(MARK) != 1:
        raise ValueError(f"the page has {page.count(MARK)} marks; it needs one line {MARK!r}")
    return f"{page.partition(MARK)[0]}{MARK}\n{generated}"


def settings_table() -> str:
    """Return a table of the settings, in the order in which they are declared."""
    given = flags()
    rows = [
        (f"`{PREFIX}{name.upper()}`", _code(given.get(name)), _default(field), _meaning(name, field))
        for name, field in Settings.model_fields.items()
    ]
    return _table(("variable", "flag", "default", "meaning"), rows)


def maps_list() -> str:
    """Return a list of the maps that come along with `polyrank convert`."""
    return "".join(f"* `{name}`: {used.about}\n" for name, used in shipped().items())


def loop_table() -> str:
    """Return a table of the settings of the loop."""
    fields = LoopConfig.model_fields
    rows = [(f"`{name}`", _default(field), _meaning(name, field, fields)) for name, field in fields.items()]
    return _table(("setting", "default", "meaning"), rows)


def flags() -> dict[str, str]:
    """Return the flag of `polyrank serve` for each setting that has one."""
    serve = dict(_commands(parser()))["polyrank serve"]
    return {action.dest: action.option_strings[-1] for action in serve._actions if action.dest != "help"}


def command_help() -> str:
    """Return a section with the help text of each command, those of its actions included."""
    with patch.dict(os.environ, COLUMNS=HELP_COLUMNS):
        helps = {name: _help(each) for name, each in _commands(parser())}
    helps["polyrank pretrain"] = _without(helps["polyrank pretrain"], helps["polyrank train"])
    helps["polyrank serve"] = "usage: polyrank serve\n\noptions: the flags in settings.md\n"
    top, *names = [name for name in helps if name.count(" ") < 2]
    pages = {top: helps[top]} | {name: _group(helps[name], _actions(helps, name)) for name in names}
    return "\n".join(f"## {name}\n\n```text\n{help_}```\n" for name, help_ in pages.items())


def _actions(helps: dict[str, str], group: str) -> list[str]:
    return [help_ for name, help_ in helps.items() if name.startswith(f"{group} ")]


def _group(help_: str, actions: Sequence[str]) -> str:
    """The help text of a command with those of its actions.

    Options of all actions stand once, at the end. An option that an action needs stands with the first such action.
    """
    options = [{_words(option) for option in OPTION.findall(each)} for each in actions]
    of_all = set.intersection(*options) if actions else set()
    told: set[str] = set()
    for action, its in zip(actions, options, strict=True):
        needed = {option for option in its if f" {option.split()[0]} " in action.partition("\n\n")[0]}
        again = of_all | (needed & told)
        told |= its
        own = OPTION.sub(lambda option, again=again: "" if _words(option[0]) in again else option[0], action)
        help_ += "\n" + re.sub(r"\noptions:\n\Z|\npositional arguments:\n  ID\n", "", own.removeprefix("usage: "))
    shared = [option for option in OPTION.findall(actions[0]) if _words(option) in of_all] if actions else []
    return help_ + (f"\noptions of all actions:\n{''.join(shared)}" if shared else "")


def _words(option: str) -> str:
    return " ".join(option.split())


def _without(help_: str, other: str) -> str:
    """A help text without the options that stand in another one word for word: they are named at its end."""
    of_other = {*OPTION.findall(other)}
    same = [each for each in OPTION.findall(help_) if each in of_other]
    for each in same:
        help_ = help_.replace(each, "", 1)
    names = textwrap.fill(
        ", ".join(each.split()[0].rstrip(",") for each in same), int(HELP_COLUMNS), break_on_hyphens=False
    )
    return f"{help_}\nas in polyrank train:\n{textwrap.indent(names, '  ')}\n"


def _help(command: argparse.ArgumentParser) -> str:
    """The help text, whose first lines name what is required alone: each option stands below them.

    But for --help, and --json, which the page tells of all commands, and what stands for an action.
    """
    usage = command._get_formatter()
    usage.add_usage(command.usage, [each for each in command._actions if each.required], [])
    below = command.format_help().partition("\n\n")[2]
    below = re.sub(r"^  (?:(?:-h, --help|--json) .*|ACTION|COMMAND)\n", "", below, flags=re.MULTILINE)
    return f"{usage.format_help()}\n{below}".replace("\noptions:\n\n", "\n")


def metrics_table() -> str:
    """Return a table of the metrics in the order in which they are declared."""
    registry = Metrics().registry
    values: dict[str, dict[str, None]] = {}
    for family in registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(f"{family.name} {label}", {})[value] = None
    rows = []
    for collector in registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "_labelnames") else ():
            name = f"`{family.name}{'_total' if family.type == 'counter' else ''}`"
            labels = [_label(each, [*values.get(f"{family.name} {each}", ())]) for each in collector._labelnames]
            rows.append((name, family.type, "; ".join(labels), family.documentation))
    return _table(("metric", "type", "labels", "meaning"), rows)


def routes_table() -> str:
    """Return a table of the HTTP routes by what they do and need, from the application's OpenAPI description."""
    calls: dict[str, list[str]] = {}
    for path, methods in _app().openapi()["paths"].items():
        for method, operation in methods.items():
            calls.setdefault(" ".join(operation["description"].split()), []).append(f"`{method.upper()} {path}`")
    rows = [(", ".join(sorted(same)), *_scoped(does)) for does, same in calls.items()]
    return _table(("call", "does", "scope"), rows)


def _scoped(description: str) -> tuple[str, str]:
    """What a route does, and the scope that a key needs for it; see `openapi`."""
    does, _, scope = description.partition(openapi.KEYS)
    return does, scope.removesuffix(".")


def fields_table() -> str:
    """Return a table of the fields of the compatible routes, by what becomes of each."""
    routes: dict[str, list[str]] = {}
    for path, methods in _app().openapi()["paths"].items():
        if "requestBody" in methods.get("post", {}):
            schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            routes.setdefault(schema["$ref"].rsplit("/", 1)[1], []).append(f"`POST {path}`")
    models = {model.__name__: model for each in (Lenient, Cutting) for model in each.__subclasses__()}
    rows = [(", ".join(sorted(routes[name])), *_classes(model)) for name, model in models.items() if name in routes]
    head = ("route", "honoured", "refused, unless", "ignored")
    return "\n## Fields of compatible routes\n\n" + _table(head, sorted(rows))


def _classes(model: type[BaseModel], before: str = "") -> tuple[str, str, str]:
    """Name the fields that are honoured, refused and ignored."""
    classes: dict[type, list[str]] = {object: [], RefusedField: [], Ignored: []}
    for name, field in model.model_fields.items():
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        mark = next((mark for mark in field.metadata if isinstance(mark, RefusedField | Ignored)), None)
        if nested := [each for each in inner if issubclass(each, Lenient)]:
            for own, more in zip(classes.values(), _classes(nested[0], f"{before}{name}."), strict=True):
                own += [more] if more else []
        else:
            note = ", ".join(f"`{value}`".lower() for value in mark.defaults) if isinstance(mark, RefusedField) else ""
            classes[object if mark is None else type(mark)].append(f"`{before}{name}`" + (f" ({note})" if note else ""))
    honoured, refused, ignored = map(", ".join, classes.values())
    return honoured, refused, ignored


def _app() -> Any:
    return app.create_app(Settings(store=Path(".")))


def _commands(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a parser and, depth first, those of its sub-commands, each with its full name."""
    yield top.prog, top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                below.fill()
                yield from _commands(below)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows))
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def _label(name: str, values: Sequence[str]) -> str:
    listed = f": {', '.join(values)}" if values else ""
    return f"`{name}`{listed}"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default in (None, (), {}):
        return ""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return str(default).lower() if isinstance(default, bool) else str(default)


def _meaning(name: str, field: FieldInfo, fields: Mapping[str, FieldInfo] = Settings.model_fields) -> str:
    choices: tuple[Any, ...] = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    listed = " or ".join(f"`{choice}`" for choice in choices)
    bounds = bounds_of(name, fields)
    return ": ".join(filter(None, [listed, field.description])) + (
        f" ({bounds.least:,} to {bounds.most:,})" if bounds else ""
    )


def main() -> None:
    """Write the OpenAPI description and every reference page."""
    openapi.write(_app(), DOCS / "openapi.json")
    for path, generated in pages().items():
        path.write_text(renewed(path.read_text(encoding="utf-8"), generated), encoding="utf-8")


if __name__ == "__main__":
    main()
