"""`polyrank candidates`: reads and changes the candidates that a running service has."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.service.cli.arguments import (
    add_encoding_option,
    add_service_options,
    json_object,
    read_candidates,
    service_of,
)
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_json, print_result
from polyrank.service.cli.parsing import ANY_COUNT, Within

if TYPE_CHECKING:
    from polyrank.service.client.clients import Client

PAGE = 1000
# A call that puts candidates takes so many at most, and this share of the bytes that the service allows.
MOST_AT_ONCE = 1000
SHARE_OF_BODY = 0.5


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("candidates", help="read and change the candidates that a running service has")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("get", _get, "print a candidate"),
        ("list", _list, "print candidates, one JSON object a line, as pool files have them"),
        ("put", _put, "add candidates, or replace those with the same ids"),
        ("delete", _delete, "remove candidates"),
    ):
        action = actions.add_parser(name, help=text)
        add_service_options(action)
        add_json_option(action)
        action.set_defaults(run=run)
        if name == "get":
            action.add_argument("id", metavar="ID")
        elif name == "delete":
            action.add_argument("ids", nargs="+", metavar="ID")
        elif name == "list":
            action.add_argument("--filter", metavar="JSON", help="a filter on metadata, as POST /rank takes it")
            action.add_argument("--limit", type=Within(ANY_COUNT), metavar="N", help="print so many; default: all")
        else:
            action.add_argument(
                "pool", nargs="*", type=Path, metavar="FILE", help="pool files, as polyrank build takes"
            )
            add_encoding_option(action)
            action.add_argument("--text", help="one candidate instead of files")
            action.add_argument("--id", metavar="ID", help="with --text; default: made from a hash of the text")
            action.add_argument("--metadata", metavar="JSON", help="with --text: an object")


def _get(arguments: argparse.Namespace) -> int:
    with service_of(arguments) as service:
        found = service.candidate(arguments.id)
    print_json(found.model_dump(mode="json", exclude=None if arguments.json else {"generation", "revision"}))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    filter_ = None if arguments.filter is None else json_object("--filter", arguments.filter)
    with service_of(arguments) as service:
        found = _listed(service, filter_, arguments.limit)
        if arguments.json:
            print_json({"candidates": list(found)})
            return 0
        for candidate in found:
            print_json(candidate)
    return 0


def _listed(service: "Client", filter_: dict[str, Any] | None, limit: int | None) -> Iterator[dict[str, Any]]:
    from polyrank.service.client import calls

    after, left = None, limit
    while left is None or left > 0:
        page = service.do(calls.candidates(after, PAGE if left is None else min(PAGE, left), filter_))
        yield from (each.model_dump(mode="json") for each in page.candidates)
        for note in page.notes or ():
            print(note, file=sys.stderr)
        if (after := page.next) is None:
            return
        left = None if left is None else left - len(page.candidates)


def _put(arguments: argparse.Namespace) -> int:
    if (arguments.text is None) == (not arguments.pool):
        raise UsageError("give either pool files or --text")
    if arguments.text is None and (arguments.id or arguments.metadata):
        raise UsageError("--id and --metadata go with --text; in files, each candidate has its own")
    rows = _rows(arguments.pool, arguments.encoding) if arguments.text is None else [_one(arguments)]
    count, revision = 0, None
    with service_of(arguments) as service, Progress("candidates") as progress:
        for batch in _batches(rows, service):
            count, revision = count + len(batch), service.upsert(batch).revision
            progress("put", count, None)
    if revision is None:
        raise UsageError("the files hold no candidate")
    print_result(arguments, {"upserted": count, "revision": revision}, f"{count} candidates put; revision {revision}")
    return 0


def _one(arguments: argparse.Namespace) -> dict[str, Any]:
    metadata = json_object("--metadata", arguments.metadata) if arguments.metadata else {}
    return {"id": arguments.id, "text": arguments.text, "metadata": metadata}


def _rows(pools: list[Path], encoding: str | None) -> Iterator[dict[str, Any]]:
    for candidate in read_candidates(pools, encoding):
        yield {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}


def _batches(rows: Iterable[dict[str, Any]], service: "Client") -> Iterator[list[dict[str, Any]]]:
    """Cut rows into lists that the service takes in one call."""
    from polyrank.service.client.attempts import Call

    limits = service.do(Call("GET", "/info", lambda told: told["limits"]))
    most, room = min(MOST_AT_ONCE, limits["max_candidates"]), SHARE_OF_BODY * limits["max_body_bytes"]
    batch: list[dict[str, Any]] = []
    held = 0
    for row in rows:
        size = len(json.dumps(row))
        if batch and (len(batch) == most or held + size > room):
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += size
    if batch:
        yield batch


def _delete(arguments: argparse.Namespace) -> int:
    with service_of(arguments) as service:
        done = service.delete(arguments.ids)
    if done.missing_ids and not arguments.json:
        print(f"not there: {', '.join(done.missing_ids)}", file=sys.stderr)
    line = f"{done.deleted} candidates deleted; revision {done.revision}"
    print_result(arguments, done.model_dump(mode="json", exclude={"generation"}), line)
    return 0
