"""`polyrank convert`: files of other tools become dialogues and a pool."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.service.cli.arguments import add_encoding_option, require_unused, require_writable
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import ANY_COUNT, Within
from polyrank.service.observe.logs import harmless

if TYPE_CHECKING:
    from polyrank.index_builder.convert.conversion import Conversion
    from polyrank.index_builder.convert.maps import Map

_SHOWN = 10
_DESCRIPTION = """Write other tools' files as polyrank's: one example for each reply of the side that answers in
DIR/dialogues.jsonl, each reply or document once in DIR/pool.jsonl, and what was left out in DIR/rejected.jsonl. Maps
say where each thing lies in the files of a tool; which one fits is told by the first records. FILE may end in .gz or
.zst, and may be a folder."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("convert", help="turn files of other tools into dialogues and a pool")
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="all of one kind")
    add("--from", dest="form", metavar="NAME", help="the map that comes along; default: the one that fits")
    add("--map", type=Path, metavar="FILE", help="a map of your own")
    add("--draft", type=Path, metavar="FILE", help="only write the beginning of a map for the files")
    add("--output", type=Path, metavar="DIR", help="new or empty; needed unless --draft")
    add("--columns", type=_columns, default={}, metavar="KEY=COLUMN,…", help="keys of a map: conversation=Ticket ID,…")
    add("--answering", nargs="+", default=[], metavar="NAME", help="who answers, as the files call them")
    add("--first-asks", action="store_true", help="who speaks first asks, all others answer")
    orders = ("file", "day-first", "month-first")
    add("--order", choices=orders, help="of messages: as in the file, or by times with this form of days")
    add("--keep-quotes", action="store_true", help="keep what mails quote, and their signatures")
    add("--redact", action="store_true", help="take out addresses and numbers, as of feedback")
    often = "put a reply into the pool if given N times; default: 1"
    add("--min-count", type=Within(ANY_COUNT), default=1, metavar="N", help=often)
    add_encoding_option(parser, "of .csv files, such as windows-1252; default: what they seem to be in")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written, what was left out and what was not read."""
    from polyrank.index_builder.convert.conversion import convert
    from polyrank.index_builder.convert.kinds import UnknownKind, kinds_of
    from polyrank.index_builder.convert.talks import ConvertOptions

    for file in arguments.files:
        if not file.exists():
            raise UsageError(f"{file}: no such file")
    if arguments.draft:
        return _draft(arguments)
    if arguments.output is None:
        raise UsageError("name a new directory by --output, or a file by --draft")
    require_unused("--output", arguments.output)
    if arguments.first_asks and arguments.answering:
        raise UsageError("--first-asks and --answering say two things; give one")
    redact: Callable[[str], str] | None = None
    if arguments.redact:
        from polyrank.service.feedback.redaction import redacted

        redact = redacted
    options = ConvertOptions(
        answering=tuple(arguments.answering),
        first_asks=arguments.first_asks,
        order=arguments.order,
        keep_quotes=arguments.keep_quotes,
        redact=redact,
        min_count=arguments.min_count,
        encoding=arguments.encoding,
    )
    chosen_map = _chosen_map(arguments)
    try:
        kinds = kinds_of(arguments.files, chosen_map, arguments.columns, arguments.encoding)
    except UnknownKind as error:
        print(f"the fields of {arguments.files[0]}, each with an example:", file=sys.stderr)
        print(harmless("\n".join(error.fields.tree())), file=sys.stderr)
        raise
    with Progress("rows") as progress:
        tally = convert(kinds, arguments.output, options, progress)
    for line in _lines(tally):
        print(harmless(line), file=sys.stderr)
    written = [f"{arguments.output / name}: {count} examples" for name, count in tally.examples.items()]
    if tally.candidates:
        written.append(f"{arguments.output / 'pool.jsonl'}: {tally.candidates} candidates")
    facts = {
        "format": tally.map.called,
        "output": str(arguments.output),
        "examples": tally.examples.total(),
        "files": dict(tally.examples),
        "candidates": tally.candidates,
        "answering": dict(tally.messages.ours),
        "others": dict(tally.messages.others),
        "repeated": tally.messages.repeated,
        "changed": dict(tally.messages.changed),
        "guessed_encodings": tally.guessed,
        "left_out": [
            {"reason": reason, "count": count, "first": tally.first.get(reason)}
            for reason, count in tally.left_out.most_common()
        ],
        "unread": [{"field": path, "count": n, "first": tally.first[path]} for path, n in tally.unread.most_common()],
    }
    print_result(arguments, facts, *written)
    return 0


def _chosen_map(arguments: argparse.Namespace) -> "Map | None":
    from polyrank.index_builder.convert.maps import read_map, shipped

    if arguments.map and arguments.form:
        raise UsageError("--map and --from name two maps; give one")
    if arguments.map:
        return read_map(arguments.map)
    if arguments.form and arguments.form not in shipped():
        raise UsageError(f"--from {arguments.form}: there is no such map, but {', '.join(shipped())}")
    return shipped()[arguments.form] if arguments.form else None


def _draft(arguments: argparse.Namespace) -> int:
    from polyrank.index_builder.convert.kinds import beginning_of_a_map

    require_writable("--draft", arguments.draft, arguments.files)
    if arguments.draft.exists():
        raise UsageError(f"--draft {arguments.draft} is there already; name a new file")
    fields, content = beginning_of_a_map(arguments.files[0], arguments.encoding)
    arguments.draft.write_text(content)
    tree = [f"the fields of {arguments.files[0]}, each with an example:", *fields.tree()]
    print(harmless("\n".join(tree)), file=sys.stderr)
    advice = f"correct it, then: polyrank convert --map {arguments.draft} FILE --output DIR"
    print_result(arguments, {"draft": str(arguments.draft)}, f"{arguments.draft}: the beginning of a map; {advice}")
    return 0


def _lines(tally: "Conversion") -> list[str]:
    sides = tally.messages
    lines = [f"read as {tally.map.called}: {tally.map.about}"]
    first_of = {name: file for file, name in reversed(tally.guessed.items())}  # of each encoding
    lines += [f"{file} is not in UTF-8: read as {name}; or name it by --encoding" for name, file in first_of.items()]
    if sides.ours or sides.others:
        ours = ", ".join(f"{who} ({count:,})" for who, count in sides.ours.most_common(5)) or "nobody"
        rest = f" and {len(sides.ours) - 5:,} more, in all {sides.ours.total():,}" if len(sides.ours) > 5 else ""
        most = [each for each in sides.others.most_common(5) if each[0] not in ("", "others")]
        others = ", ".join(f"{who} ({count:,})" for who, count in most)
        by = f", the most by {others}" if others else ""  # somebody whom --answering forgot is among them
        lines.append(f"answering: {ours}{rest}; others: {sides.others.total():,} messages{by}")
    lines += [f"--answering: nobody called {name!r} says anything" for name in sides.missing]
    if sides.alternating:
        lines.append("nothing says who speaks: every other message, from the last one back, counts as an answer")
    if sides.passed:
        lines.append(f"passed over {sides.passed} messages that are none, as the map says (only)")
    if sides.repeated:
        lines.append(f"left out {sides.repeated} messages that were in their conversation before, at the same time")
    lines += [f"texts {how}: {count}" for how, count in sides.changed.most_common()]
    for reason, count in tally.left_out.most_common(_SHOWN):
        first = f" (first: {tally.first[reason]})" if reason in tally.first else ""
        lines.append(f"left out {count}: {reason}{first}")
    if (more := len(tally.left_out) - _SHOWN) > 0:
        lines.append(f"… and {more} more reasons; see rejected.jsonl")
    if tally.unread:
        fields = [f"{place} ({n}, first: {tally.first[place]})" for place, n in tally.unread.most_common(_SHOWN)]
        more = len(tally.unread) - _SHOWN
        rest = f" and {more} more fields, which --json names" if more > 0 else ""
        lines.append(f"not read: {', '.join(fields)}{rest}")
    return lines + (tally.fields.lines() if tally.candidates and not tally.examples else [])


def _columns(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",")]
    columns = {part.strip(): column.strip() for part, _, column in pairs}
    if wrong := [part for part, column in columns.items() if not part or not column]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} must be a key of a map, with = and a column")
    return columns
