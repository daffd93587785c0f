"""`polyrank store`: the generations of a store; and `polyrank shards`: their parts, and cutting the active one anew."""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from polyrank.index_builder.errors import GenerationCorrupt, GenerationError
from polyrank.index_builder.names import MOST_PARTS
from polyrank.model.durable import replacing
from polyrank.model.inputs import open_input
from polyrank.model.options import Bounds
from polyrank.service.cli.arguments import encoded_by, require_store, require_writable, wrong_usage
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result, seconds_of
from polyrank.service.cli.parsing import Within
from polyrank.service.cli.waiting import add_wait_option, loading, require_server

if TYPE_CHECKING:
    from polyrank.index_builder.store.archive import Backup
    from polyrank.index_builder.store.generation_store import GenerationStore

STANDARD = "-"  # output or input, in place of a file
_KEEP = Bounds(1, 10_000)  # the active one is never removed


def add_to(commands: Any) -> None:
    """Add the commands and their actions to the parser."""
    parser = commands.add_parser("store", help="list, verify, activate, roll back, collect generations")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=partial(_with_store, run))
        return action

    listing = add("list", _list, "the generations, oldest first")
    verify = add("verify", _verify, "check every byte of one, or of all")
    for action in (listing, verify):
        action.add_argument("--report", type=Path, metavar="F", help="write a page with recall against time, .html")
    verify.add_argument("generation", nargs="?", help="its id; default: all")
    activate = add("activate", _activate, "make a generation the active one")
    activate.add_argument("generation", help="its id")
    rollback = add("rollback", _rollback, "go back to the generation that was active before")
    compaction = add("compact", _compact, "build the active one with its updates; words count anew")
    compaction.add_argument("--redis", metavar="URL", help="also copy the vectors into this Redis")
    for switching in (activate, rollback, compaction):
        add_wait_option(switching)
    gc = add("gc", _gc, "remove old generations")
    gc.add_argument("--keep", type=Within(_KEEP), default=2, help="how many to keep, with the active one; default: 2")
    gc.add_argument("--redis", metavar="URL", help="also remove their vectors from this Redis")
    backup = add("backup", _back_up, "write what serving and rolling back need into one file")
    backup.add_argument("--to", required=True, metavar="F", help="a file such as store.tar.zst; -: standard output")
    restoring = actions.add_parser("restore", help="make a store of a backup")
    source = {"dest": "source", "required": True, "metavar": "F"}
    restoring.add_argument("--from", help="what store backup wrote; -: standard input", **source)
    restoring.add_argument("--store", required=True, type=Path, help="its directory, new or empty")
    add_json_option(restoring)
    restoring.set_defaults(run=_restore)
    _add_shards(commands)


def _with_store(run: Any, arguments: argparse.Namespace) -> int:
    require_store(arguments.store)
    if getattr(arguments, "report", None):
        require_writable("--report", arguments.report, ())
    from polyrank.index_builder.store.generation_store import GenerationStore

    status: int = run(GenerationStore(arguments.store), arguments)
    return status


def _list(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    current, damage = _current(store)
    trial = _on_trial(store)
    rows = [_row(store, generation, current, trial) for generation in store.ids()]
    if arguments.report:
        _write_report(arguments.report, store, rows, {})
    lines = [damage] if damage else []
    strays = [str(stray) for stray in store.strays()]
    facts = {"current": current, "trial": trial, "generations": rows, "strays": strays}
    facts |= {"error": damage} if damage else {}
    lines += [_line(row) for row in rows] or [_emptiness(arguments)]
    print_result(arguments, facts, *lines, *(f"  left aside: {stray}" for stray in strays))
    return 0


def _on_trial(store: "GenerationStore") -> str | None:
    trial = store.trial()
    return None if trial is None else trial.generation


def _current(store: "GenerationStore") -> tuple[str | None, str | None]:
    """The active generation's id, and what is wrong with CURRENT if something is."""
    try:
        return store.current(), None
    except GenerationCorrupt as error:
        return None, f"{error.reason}; activate one"


def _row(store: "GenerationStore", generation: str, current: str | None, trial: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": generation, "active": generation == current, "trial": generation == trial}
    try:
        manifest = store.manifest(generation)
        count, revision = store.updated(generation)
    except GenerationError as error:
        return {**row, "error": str(error)}
    parts = [
        {
            "slots": part.name,
            "count": part.count,
            "index": part.index.kind,
            "recall": part.recall,
            "bytes": sum(entry.bytes for entry in manifest.of_part(number).files.values()),
        }
        for number, part in enumerate(manifest.parts)
    ]
    return {
        **row,
        "count": count,
        "built": manifest.count,
        "revision": revision,
        "index": manifest.index.kind,
        "index_times": manifest.index.times,
        "created_at": manifest.created_at,
        "recall": manifest.recall,
        "model": manifest.model.name,
        "fingerprint": manifest.model.fingerprint,
        **({"parts": parts} if len(parts) > 1 else {}),
    }


def _line(row: dict[str, Any]) -> str:
    mark = "*" if row["active"] else "t" if row["trial"] else " "
    if "error" in row:
        return f"{mark} {row['id']}  refused: {row['error']}"
    index, recall = row["index"], row["recall"]
    if recall["count"]:
        index += f" (recall@10 of {recall['of']} {recall['recall@10']:.3f}, probes: {recall['probes']})"
    updated = "" if row["count"] == row["built"] else f" ({row['built']} built)"
    parts = [f"    {part['slots']}  {part['count']} candidates, {part['index']}" for part in row.get("parts", ())]
    cut = f" in {len(parts)} parts" if parts else ""
    line = f"{mark} {row['id']}  {row['count']} candidates{updated}{cut}, {index}, {row['model']}, {row['created_at']}"
    return "\n".join([line, *parts])


def _emptiness(arguments: argparse.Namespace) -> str:
    return f"{arguments.store} holds no generation; polyrank build makes one"


def _verify(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    bad: dict[str, str] = {}
    ids = store.ids() if arguments.generation is None else [arguments.generation]
    for generation in ids:
        try:
            store.verify(generation)
        except GenerationError as error:
            bad[generation] = str(error)
    if arguments.report:
        current, _ = _current(store)
        states = {generation: bad.get(generation, "every byte is right") for generation in ids}
        rows = [_row(store, generation, current, _on_trial(store)) for generation in ids]
        _write_report(arguments.report, store, rows, states)
    lines = [f"{generation}  {bad.get(generation, 'ok')}" for generation in ids] or [_emptiness(arguments)]
    verified = [generation for generation in ids if generation not in bad]
    print_result(arguments, {"verified": verified, "refused": bad}, *lines)
    return 1 if bad else 0


def _write_report(path: Path, store: "GenerationStore", rows: list[dict[str, Any]], states: dict[str, str]) -> None:
    from polyrank.service.cli.reports import write_store

    write_store(path, store.root, rows, states)


def _activate(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    require_server(arguments)
    store.activate(arguments.generation, encoded_by(store.model_directory(arguments.generation)))
    line = f"{arguments.generation} is active{loading(arguments, arguments.generation)}"
    print_result(arguments, {"current": arguments.generation}, line)
    return 0


def _rollback(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    require_server(arguments)
    current = store.rollback(lambda generation: encoded_by(store.model_directory(generation)))
    print_result(arguments, {"current": current}, f"{current} is active{loading(arguments, current)}")
    return 0


def _compact(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    require_server(arguments)
    from polyrank.index_builder.building.compaction import compact

    with Progress("candidates") as progress:
        built = compact(store.root, redis_url=arguments.redis, progress=progress)
    for note in built.notes:
        print(note, file=sys.stderr)
    seconds = seconds_of(arguments)
    facts = {"current": built.generation, "count": built.count, "seconds": round(seconds, 3)}
    line = f"{built.generation} is active: {built.count} candidates in {seconds:.1f} s"
    print_result(arguments, facts, line + loading(arguments, built.generation))
    return 0


def _gc(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    removed = store.gc(arguments.keep, arguments.redis)
    reasons = store.kept(arguments.keep)
    line = f"removed {len(removed)}: {', '.join(removed)}" if removed else "nothing to remove"
    lines = (f"kept {generation}: {why}" for generation, why in reasons.items())
    print_result(arguments, {"removed": removed, "kept": reasons}, line, *lines)
    return 0


def _back_up(store: "GenerationStore", arguments: argparse.Namespace) -> int:
    from polyrank.index_builder.store.archive import back_up

    with ExitStack() as stack:
        progress = stack.enter_context(Progress("B"))
        if arguments.to == STANDARD:
            if arguments.json or sys.stdout.isatty():
                raise UsageError("--to - writes the archive to standard output: send it to a program, without --json")
            with open(sys.stdout.fileno(), "wb", closefd=False) as output:  # it is closed before the command ends
                print(_backed_up(back_up(store, output, progress)), file=sys.stderr)
            return 0
        path = Path(arguments.to)
        require_writable("--to", path, ())
        if path.resolve().is_relative_to(store.root.resolve()):
            raise UsageError(f"--to {path} is in the store, and would be lost with it; name a file elsewhere")
        backup = back_up(store, stack.enter_context(stack.enter_context(replacing(path)).open("wb")), progress)
    print_result(arguments, asdict(backup), f"{path}: {_backed_up(backup)}")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    from polyrank.index_builder.errors import BackupInvalid
    from polyrank.index_builder.store.archive import restore

    with ExitStack() as stack:
        progress = stack.enter_context(Progress("B"))
        if arguments.source == STANDARD:
            if sys.stdin.isatty():
                raise UsageError("--from - reads the archive from standard input: send one")
            source: BinaryIO = sys.stdin.buffer
        else:
            source = stack.enter_context(open_input(Path(arguments.source)))
        try:
            with wrong_usage("--store "):
                backup = restore(source, arguments.store, progress)
        except BackupInvalid as error:
            raise BackupInvalid(f"{arguments.source} cannot be restored: {error}") from error
    print_result(arguments, asdict(backup), f"{arguments.store}: {_backed_up(backup)}")
    return 0


def _backed_up(backup: "Backup") -> str:
    before = f", and {len(backup.generations) - 1} before it" if len(backup.generations) > 1 else ""
    return f"generation {backup.current} at revision {backup.revision}{before}"


def _add_shards(commands: Any) -> None:
    parser = commands.add_parser("shards", help="the parts of a pool: show them, cut it anew")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="the generations and their parts, as store list")
    text = "cut the active generation into another number of parts"
    moving = actions.add_parser("move", help=text)
    for action in (status, moving):
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
    status.set_defaults(run=partial(_with_store, _list), report=None)
    moving.set_defaults(run=_move)
    moving.add_argument("--to", required=True, type=Within(Bounds(1, MOST_PARTS)), metavar="S", help="how many parts")
    moving.add_argument("--redis", metavar="URL", help="also copy the vectors into this Redis")


def _move(arguments: argparse.Namespace) -> int:
    require_store(arguments.store)
    from polyrank.index_builder.building.compaction import move

    with Progress("candidates") as progress:
        moved = move(arguments.store, arguments.to, redis_url=arguments.redis, progress=progress)
    facts = {"current": moved.generation, "count": moved.count, "parts": arguments.to}
    line = f"generation {moved.generation} is active: {moved.count} candidates in {arguments.to} parts"
    print_result(arguments, facts, line)
    return 0
