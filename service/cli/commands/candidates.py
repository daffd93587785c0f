"""`polyrank candidates`: reads and changes the candidates that a running service has."""

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polyrank.service.cli.arguments import (
    add_columns_option,
    add_encoding_option,
    add_service_options,
    json_object,
    read_candidates,
    service_of,
)
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_json, print_result
from polyrank.service.cli.parsing import ANY_COUNT, Within
from polyrank.service.observe.logs import harmless

if TYPE_CHECKING:
    from polyrank.service.client.clients import Client

T = TypeVar("T")
PAGE = 1000
# A call that puts or removes candidates takes so many at most, and this share of the bytes that the service allows.
MOST_AT_ONCE = 1000
SHARE_OF_BODY = 0.5


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("candidates", help="read and change the candidates that a running service has")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("get", _get, "print a candidate"),
        ("list", _list, "print candidates, as pool files have them"),
        ("put", _put, "add candidates, or replace those with the same ids"),
        ("delete", _delete, "remove candidates"),
        ("sync", _sync, "put what differs in pool files, remove what they lack"),
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
            several = "*" if name == "put" else "+"
            action.add_argument(
                "pool", nargs=several, type=Path, metavar="FILE", help="pool files, as polyrank build takes"
            )
            add_encoding_option(action)
            add_columns_option(action)
        if name == "sync":
            action.add_argument("--dry-run", action="store_true", help="change nothing; print what would be changed")
        elif name == "put":
            action.add_argument("--text", help="one candidate instead of files")
            action.add_argument("--id", metavar="ID", help="with --text; default: made from a hash of the text")
            action.add_argument("--metadata", metavar="JSON", help="with --text: an object")


def _get(arguments: argparse.Namespace) -> int:
    with service_of(arguments) as service:
        candidate = service.candidate(arguments.id)
    print_json(candidate.model_dump(mode="json", exclude=None if arguments.json else {"generation", "revision"}))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    filter_ = None if arguments.filter is None else json_object("--filter", arguments.filter)
    with service_of(arguments) as service:
        candidates = _stored(service, filter_, arguments.limit)
        if arguments.json:
            print_json({"candidates": list(candidates)})
            return 0
        for candidate in candidates:
            print_json(candidate)
    return 0


def _stored(service: "Client", filter_: dict[str, Any] | None, limit: int | None) -> Iterator[dict[str, Any]]:
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
    if arguments.text is not None and (arguments.encoding or arguments.columns):
        raise UsageError("--encoding and --columns go with files")
    metadata = json_object("--metadata", arguments.metadata) if arguments.metadata else {}
    one = {"id": arguments.id, "text": arguments.text, "metadata": metadata}
    rows = _rows(arguments) if arguments.text is None else [one]
    count, revision = 0, None
    with service_of(arguments) as service, Progress("candidates") as progress:
        for batch in _batches(rows, service):
            count, revision = count + len(batch), service.upsert(batch).revision
            progress("put", count, None)
    if revision is None:
        raise UsageError("the files hold no candidate")
    print_result(arguments, {"upserted": count, "revision": revision}, f"{count} candidates put; revision {revision}")
    return 0


def _rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for candidate in read_candidates(arguments.pool, arguments.encoding, arguments.columns):
        yield {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}


def _batches(rows: Iterable[T], service: "Client") -> Iterator[list[T]]:
    """Cut candidates, or ids, into lists that the service takes in one call."""
    from polyrank.service.client.attempts import Call

    limits = service.do(Call("GET", "/info", lambda info: info["limits"]))
    most, room = min(MOST_AT_ONCE, limits["max_candidates"]), SHARE_OF_BODY * limits["max_body_bytes"]
    batch: list[T] = []
    total = 0
    for row in rows:
        size = len(json.dumps(row))
        if batch and (len(batch) == most or total + size > room):
            yield batch
            batch, total = [], 0
        batch.append(row)
        total += size
    if batch:
        yield batch


def _delete(arguments: argparse.Namespace) -> int:
    with service_of(arguments) as service:
        deletion = service.delete(arguments.ids)
    if deletion.missing_ids and not arguments.json:
        print(harmless(f"not there: {', '.join(deletion.missing_ids)}"), file=sys.stderr)
    line = f"{deletion.deleted} candidates deleted; revision {deletion.revision}"
    print_result(arguments, deletion.model_dump(mode="json", exclude={"generation"}), line)
    return 0


# The rows of the files, as they are compared; what the service has of each id; and ids that the files lack. SQLite puts
# it into a nameless file, so that memory does not grow with the pool.
_COMPARISON = """
    CREATE TABLE pool (place INTEGER PRIMARY KEY, id TEXT UNIQUE, row TEXT, stored TEXT);
    CREATE TABLE gone (id TEXT PRIMARY KEY);
"""


def _sync(arguments: argparse.Namespace) -> int:
    with service_of(arguments) as service, Progress("candidates") as progress, closing(sqlite3.connect("")) as table:
        table.executescript(_COMPARISON)
        in_files = _keep_rows(table, arguments, progress)
        for at, stored in enumerate(_stored(service, None, None), 1):
            cursor = table.execute("UPDATE pool SET stored = ? WHERE id = ?", (_comparable(stored), stored["id"]))
            if not cursor.rowcount:
                table.execute("INSERT OR IGNORE INTO gone VALUES (?)", (stored["id"],))
            progress("compare", at, None)

        def values(select: str) -> Iterator[Any]:
            return (value for (value,) in table.execute(f"SELECT {select}"))

        [new] = values("count(*) FROM pool WHERE stored IS NULL")
        [changed] = values("count(*) FROM pool WHERE stored != row")
        [gone] = values("count(*) FROM gone")
        facts = {"added": new, "changed": changed, "deleted": gone, "unchanged": in_files - new - changed}
        summary = f"{new} added, {changed} changed, {gone} deleted, {facts['unchanged']} unchanged"
        if arguments.dry_run:
            if not arguments.json:
                for verb, which in (
                    ("add", "pool WHERE stored IS NULL ORDER BY place"),
                    ("change", "pool WHERE stored != row ORDER BY place"),
                    ("delete", "gone ORDER BY id"),
                ):
                    for candidate_id in values(f"id FROM {which}"):
                        print(harmless(f"{verb} {candidate_id}"))
            print_result(arguments, facts, f"a dry run, nothing was changed; it would be: {summary}")
            return 0
        revision, put, removed = None, 0, 0
        # What is new comes first, so that no moment lacks both a reply and the one that takes its place.
        differing = values("row FROM pool WHERE stored IS NOT row ORDER BY place")
        for rows in _batches(map(json.loads, differing), service):
            put, revision = put + len(rows), service.upsert(rows).revision
            progress("put", put, new + changed)
        for ids in _batches(values("id FROM gone ORDER BY id"), service):
            removed, revision = removed + len(ids), service.delete(ids).revision
            progress("delete", removed, gone)
    line = summary if revision is None else f"{summary}; revision {revision}"
    print_result(arguments, {**facts, "revision": revision}, line)
    return 0


def _keep_rows(table: sqlite3.Connection, arguments: argparse.Namespace, progress: Progress) -> int:
    """Keep all rows of pool files in their order; returns how many there are.

    Raises PoolError where a row is bad, because the candidate that it stands for would be removed, or there is none.
    """
    from polyrank.index_builder.errors import PoolEmpty, PoolInvalid
    from polyrank.index_builder.pool.rows import Candidate, read_pool

    count = 0
    for row in read_pool(arguments.pool, encoding=arguments.encoding, columns=arguments.columns):
        if isinstance(row, Candidate):
            comparable = _comparable({"id": row.id, "text": row.text, "metadata": row.metadata})
            table.execute("INSERT INTO pool (id, row) VALUES (?, ?)", (row.id, comparable))
            count += 1
            progress("read", count, None)
        elif row.is_bad:
            why = f"line {row.line}: {row.reason}; mend or remove it: what a bad row stands for would be deleted"
            raise PoolInvalid(Path(row.file), why)
    if not count:
        raise PoolEmpty(
            f"{', '.join(map(str, arguments.pool))}: there is no candidate, so all of the service's would be deleted"
        )
    return count


def _comparable(candidate: dict[str, Any]) -> str:
    return json.dumps({name: candidate[name] for name in ("id", "text", "metadata")}, sort_keys=True)
