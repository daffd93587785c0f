"""`polyrank shards`: the sets of a store that is cut into parts, and cutting it into another number of parts."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.errors import GenerationCorrupt, GenerationError
from polyrank.index_builder.names import MOST_PARTS
from polyrank.model.bounds import Bounds
from polyrank.service.cli.files import require_store
from polyrank.service.cli.models import encoded_by
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import Within

if TYPE_CHECKING:
    from polyrank.index_builder.scale.sets import PartSet, PartsStore, PoolPart


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("shards", help="a pool that is cut into parts: show them, cut it anew")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=run)
        return action

    add("status", _status, "the sets, oldest first, and their parts")
    moving = add("move", _move, "cut the active set into another number of parts; nothing is encoded")
    moving.add_argument("--to", required=True, type=Within(Bounds(1, MOST_PARTS)), metavar="S", help="how many parts")


def _status(arguments: argparse.Namespace) -> int:
    return status(_sets(arguments.store), arguments)


def _move(arguments: argparse.Namespace) -> int:
    _sets(arguments.store)
    from polyrank.index_builder.scale.moving import move

    with Progress("candidates") as progress:
        moved = move(arguments.store, arguments.to, progress=progress)
    facts = {"current": moved.id, "count": moved.count, "parts": len(moved.parts)}
    print_result(arguments, facts, f"set {moved.id} is active: {moved.count} candidates in {len(moved.parts)} parts")
    return 0


def _sets(root: Path) -> "PartsStore":
    require_store(root, "polyrank build --shards")
    from polyrank.index_builder.scale.sets import PartsStore

    return PartsStore(root)


# What `polyrank store` does where the store is cut into parts.


def status(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Print the sets and their parts."""
    try:
        current, damage = store.current(), None
    except GenerationCorrupt as error:
        current, damage = None, f"{error.reason}; activate one"
    sets = [_facts(store, set_id, current) for set_id in store.ids()]
    strays = [str(stray) for stray in store.strays()]
    facts = {"current": current, "sets": sets, "strays": strays, **({"error": damage} if damage else {})}
    lines = [damage] if damage else []
    for each in sets:
        lines += _lines(each)
    if not sets:
        lines.append(f"{store.root} holds no set; polyrank build --shards makes one")
    print_result(arguments, facts, *lines, *(f"  left aside: {stray}" for stray in strays))
    return 0


def verify(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Check every byte of one set, or of all."""
    bad: dict[str, str] = {}
    wanted = [arguments.generation] if arguments.generation else store.ids()
    for set_id in wanted:
        try:
            store.verify(set_id)
        except GenerationError as error:
            bad[set_id] = str(error)
    facts = {"verified": [set_id for set_id in wanted if set_id not in bad], "refused": bad}
    print_result(arguments, facts, *(f"{set_id}  {bad.get(set_id, 'ok')}" for set_id in wanted))
    return 1 if bad else 0


def activate(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Make a set the active one."""
    from polyrank.index_builder.generation.generation import MODEL_DIRECTORY

    part = store.read(arguments.generation).parts[0]
    directory = store.part(part.slots).path(part.generation) / MODEL_DIRECTORY
    store.activate(arguments.generation, encoded_by(directory))
    print_result(arguments, {"current": arguments.generation}, f"{arguments.generation} is active")
    return 0


def rollback(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Go back to the set that was active before."""
    current = store.rollback()
    print_result(arguments, {"current": current}, f"{current} is active")
    return 0


def compact(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Build the parts anew that updates have changed."""
    if arguments.redis:
        raise UsageError("--redis: the vectors of parts are not copied into Redis; leave it out")
    from polyrank.index_builder.scale.compacting import compact_parts

    with Progress("candidates") as progress:
        result = compact_parts(store.root, progress=progress)
    for note in result.notes:
        print(note, file=sys.stderr)
    made, anew = result.made, len(result.built)
    facts = {"current": made.id, "count": made.count, "built": anew, "seconds": round(result.seconds, 3)}
    line = f"{made.id} is active: {made.count} candidates, {anew} parts built anew in {result.seconds:.1f} s"
    print_result(arguments, facts, line)
    return 0


def gc(store: "PartsStore", arguments: argparse.Namespace) -> int:
    """Remove old sets, and the generations that no set names."""
    if arguments.redis:
        raise UsageError("--redis: the vectors of parts are not copied into Redis; leave it out")
    removed = store.gc(arguments.keep)
    line = f"removed {len(removed)}: {', '.join(removed)}" if removed else "nothing to remove"
    print_result(arguments, {"removed": removed}, line)
    return 0


def _facts(store: "PartsStore", set_id: str, current: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": set_id, "active": set_id == current}
    try:
        read = store.read(set_id)
    except GenerationError as error:
        return {**row, "error": str(error)}
    return {**row, **_described(store, read), "parts": [_part(store, part) for part in read.parts]}


def _described(store: "PartsStore", read: "PartSet") -> dict[str, Any]:
    count, revision = _updated(store, read)
    return {
        "count": count,
        "built": read.count,
        "revision": revision,
        "created_at": read.created_at,
        "model": read.model.name,
        "fingerprint": read.model.fingerprint,
    }


def _updated(store: "PartsStore", read: "PartSet") -> tuple[int, int]:
    """Return how many candidates a set has with its updates, and their revision; if they cannot be read, as built."""
    from polyrank.index_builder.scale.membership import Membership

    try:
        log = store.updates.of(read)
        updates, count = list(log.read()), 0
        for part in read.parts:
            members = Membership(store.directory(part), part.slots, part.count)
            members.update(updates)
            count += members.counts().count
    except (GenerationError, OSError, ValueError):  # `verify` tells what is damaged
        return read.count, read.revision
    return count, max(log.revision, read.revision)


def _part(store: "PartsStore", part: "PoolPart") -> dict[str, Any]:
    row = {"slots": part.name, "generation": part.generation, "count": part.count}
    try:
        manifest = store.part_manifest(part)
    except GenerationError as error:
        return {**row, "error": str(error)}
    size = sum(entry.bytes for entry in manifest.files.values())
    return {**row, "index": manifest.index.kind, "recall": manifest.recall, "bytes": size}


def _lines(facts: dict[str, Any]) -> list[str]:
    mark = "*" if facts["active"] else " "
    if "error" in facts:
        return [f"{mark} {facts['id']}  refused: {facts['error']}"]
    updated = "" if facts["count"] == facts["built"] else f" ({facts['built']} built)"
    head = (
        f"{mark} {facts['id']}  {facts['count']} candidates{updated} in {len(facts['parts'])} parts, {facts['model']}"
    )
    return [f"{head}, {facts['created_at']}", *map(_part_line, facts["parts"])]


def _part_line(part: dict[str, Any]) -> str:
    begun = f"    {part['slots']}  {part['generation']}"
    if "error" in part:
        return f"{begun}  refused: {part['error']}"
    return f"{begun}  {part['count']} candidates, {part['index']}, {part['bytes'] / 2**20:.1f} MiB"
