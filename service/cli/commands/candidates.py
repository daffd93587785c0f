"""`polyrank candidates`: reads and changes the candidates that a running service has."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from polyrank.service.cli.arguments import add_encoding_option, add_service_options, read_candidates, service_of
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_json, print_result
from polyrank.service.cli.parsing import ANY_COUNT, Within

if TYPE_CHECKING:
    from polyrank.service.cli.remote import Service

PATH = "/index/candidates"
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
    found = service_of(arguments).call("GET", f"{PATH}/{quote(arguments.id, safe='')}", expected="text")
    print_json(found if arguments.json else _candidate(found))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    filter_ = None if arguments.filter is None else _object("--filter", arguments.filter)
    found = _listed(service_of(arguments), filter_, arguments.limit)
    if arguments.json:
        print_json({"candidates": list(found)})
        return 0
    for candidate in found:
        print_json(candidate)
    return 0


def _listed(service: "Service", filter_: dict[str, Any] | None, limit: int | None) -> Iterator[dict[str, Any]]:
    parameters: dict[str, str] = {} if filter_ is None else {"filter": json.dumps(filter_)}
    left = limit
    while left is None or left > 0:
        parameters["limit"] = str(PAGE if left is None else min(PAGE, left))
        page = service.call("GET", f"{PATH}?{urlencode(parameters)}", expected="candidates")
        yield from page["candidates"]
        for note in page.get("notes", ()):
            print(note, file=sys.stderr)
        if page["next"] is None:
            return
        parameters["after"] = page["next"]
        left = None if left is None else left - len(page["candidates"])


def _put(arguments: argparse.Namespace) -> int:
    if (arguments.text is None) == (not arguments.pool):
        raise UsageError("give either pool files or --text")
    if arguments.text is None and (arguments.id or arguments.metadata):
        raise UsageError("--id and --metadata go with --text; in files, each candidate has its own")
    service = service_of(arguments)
    rows = _rows(arguments.pool, arguments.encoding) if arguments.text is None else [_one(arguments)]
    count, revision = 0, None
    with Progress("candidates") as progress:
        for batch in _batches(rows, service):
            done = service.call("PUT", PATH, batch, expected="revision")
            count, revision = count + len(batch), done["revision"]
            progress("put", count, None)
    if revision is None:
        raise UsageError("the files hold no candidate")
    print_result(arguments, {"upserted": count, "revision": revision}, f"{count} candidates put; revision {revision}")
    return 0


def _one(arguments: argparse.Namespace) -> dict[str, Any]:
    metadata = _object("--metadata", arguments.metadata) if arguments.metadata else {}
    return {"id": arguments.id, "text": arguments.text, "metadata": metadata}


def _rows(pools: list[Path], encoding: str | None) -> Iterator[dict[str, Any]]:
    for candidate in read_candidates(pools, encoding):
        yield {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}


def _batches(rows: Iterable[dict[str, Any]], service: "Service") -> Iterator[list[dict[str, Any]]]:
    """Cut rows into lists that the service takes in one call."""
    limits = service.call("GET", "/info", expected="limits")["limits"]
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
    done = service_of(arguments).call("POST", f"{PATH}/delete", {"ids": arguments.ids}, expected="deleted")
    missing = done["missing_ids"]
    if missing and not arguments.json:
        print(f"not there: {', '.join(missing)}", file=sys.stderr)
    line = f"{done['deleted']} candidates deleted; revision {done['revision']}"
    facts = {name: done[name] for name in ("deleted", "missing_ids", "revision")}
    print_result(arguments, facts, line)
    return 0


def _candidate(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name) for name in ("id", "text", "metadata")}


def _object(flag: str, text: str) -> dict[str, Any]:
    """Return the JSON object given by a flag; UsageError if it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f'{flag} is no JSON ({error}); quote it for the shell: {flag} \'{{"lang": "en"}}\'') from None
    if not isinstance(value, dict):
        raise UsageError(f'{flag} must be a JSON object, such as {{"lang": "en"}}')
    return value
