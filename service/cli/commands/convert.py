"""`polyrank convert`: files of other tools become dialogues and a pool."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.names import AUTO, FOREIGN_FORMATS
from polyrank.service.cli.arguments import add_encoding_option, require_unused
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result

if TYPE_CHECKING:
    from polyrank.index_builder.convert.conversion import Converted

_PARTS = ("conversation", "role", "text", "time")
_SHOWN_REASONS = 10
_DESCRIPTION = """Write other tools' files as polyrank's: one example for each reply of the side that answers in
DIR/dialogues.jsonl, each reply or document once in DIR/pool.jsonl, and what was left out in DIR/rejected.jsonl. FILE
may end in .gz or .zst, and is a folder for beir and hf-dataset."""

_ANSWERING = "who answers, as the files call them; default: by common names of roles, else all but who speaks first"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("convert", help="turn files of other tools into dialogues and a pool")
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="all of one format")
    formats = (AUTO, *FOREIGN_FORMATS)
    add(
        "--from", dest="form", choices=formats, default=AUTO, help=f"what wrote them; default: {AUTO}, by their content"
    )
    add("--output", required=True, type=Path, metavar="DIR", help="new or empty")
    add("--answering", nargs="+", default=[], metavar="NAME", help=_ANSWERING)
    add("--columns", type=_columns, default={}, metavar="PART=COLUMN,…", help=f"of a table: {', '.join(_PARTS)}")
    add("--text", metavar="FIELD", help="where the text of a document is; inside an object: body.en")
    add_encoding_option(
        parser, "of .csv files, such as windows-1252; default: UTF-8, and windows-1252 where bytes are not"
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written and what was left out."""
    from polyrank.index_builder.convert.conversion import convert
    from polyrank.index_builder.convert.formats import Asked
    from polyrank.index_builder.convert.turns import plain_name

    for file in arguments.files:
        if not file.exists():
            raise UsageError(f"{file}: no such file")
    require_unused("--output", arguments.output)
    answering = frozenset(map(plain_name, arguments.answering))
    asked = Asked(arguments.columns, arguments.text, answering, arguments.encoding)
    with Progress("rows") as progress:
        done = convert(arguments.form, arguments.files, arguments.output, asked, progress)
    _say_left_out(done)
    written = [f"{arguments.output / name}: {count} examples" for name, count in done.examples.items()]
    if done.candidates:
        written.append(f"{arguments.output / 'pool.jsonl'}: {done.candidates} candidates")
    facts = {
        "format": done.form,
        "output": str(arguments.output),
        "examples": done.examples.total(),
        "files": dict(done.examples),
        "candidates": done.candidates,
        "left_out": [
            {"reason": reason, "count": count, "first": done.first[reason]}
            for reason, count in done.left_out.most_common()
        ],
    }
    print_result(arguments, facts, *written)
    return 0


def _say_left_out(done: "Converted") -> None:
    print(f"read as {done.form}: {FOREIGN_FORMATS[done.form]}", file=sys.stderr)
    for reason, count in done.left_out.most_common(_SHOWN_REASONS):
        print(f"left out {count}: {reason} (first: {done.first[reason]})", file=sys.stderr)
    if (more := len(done.left_out) - _SHOWN_REASONS) > 0:
        print(f"… and {more} more reasons; see rejected.jsonl", file=sys.stderr)
    if done.candidates and not done.examples:
        for line in done.fields.lines():
            print(line, file=sys.stderr)


def _columns(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",")]
    named = {part.strip(): column.strip() for part, _, column in pairs}
    if wrong := [part for part, column in named.items() if part not in _PARTS or not column]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be one of {', '.join(_PARTS)}, with = and a column")
    return named
