"""`polyrank store`: look after the generations of a store."""

import argparse
from functools import cache, partial
from pathlib import Path
from typing import Any

from polyrank.index_builder.build.compaction import compact
from polyrank.index_builder.errors import GenerationCorrupt, GenerationError
from polyrank.index_builder.store.generation import MODEL_DIRECTORY
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import Encode, TextEncoder, encode_texts
from polyrank.service.cli.models import chosen_backend, load_late
from polyrank.service.cli.output import Progress, UsageError, print_json


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("store", help="list, verify, activate, roll back, collect generations")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("list", _list, "the generations, oldest first"),
        ("verify", _verify, "check every byte of one, or of all"),
        ("activate", _activate, "make a generation the active one"),
        ("rollback", _rollback, "go back to the generation that was active before"),
        ("compact", _compact, "build the active one anew with its updates"),
        ("gc", _gc, "remove old generations"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        action.add_argument("--json", action="store_true", help="print one JSON object as the last line")
        action.set_defaults(run=partial(_with_store, run))
        if name == "verify":
            action.add_argument("generation", nargs="?", help="its id; default: all")
        if name == "activate":
            action.add_argument("generation", help="its id")
        if name == "compact":
            action.add_argument("--redis", metavar="URL", help="also copy the vectors into this Redis")
        if name == "gc":
            action.add_argument(
                "--keep", type=int, default=2, help="how many to keep, the active one among them; default: 2"
            )
            action.add_argument("--redis", metavar="URL", help="also remove their vectors from this Redis")


def _with_store(run: Any, arguments: argparse.Namespace) -> int:
    if not arguments.store.is_dir():
        raise UsageError(f"{arguments.store} is no directory; polyrank build makes a store")
    status: int = run(GenerationStore(arguments.store), arguments)
    return status


def _list(store: GenerationStore, arguments: argparse.Namespace) -> int:
    current, damage = _current(store)
    rows = [_row(store, generation, current) for generation in store.ids()]
    if arguments.json:
        print_json({"current": current, "generations": rows, **({"error": damage} if damage else {})})
        return 0
    if damage:
        print(damage)
    for row in rows:
        mark = "*" if row["active"] else " "
        if "error" in row:
            print(f"{mark} {row['id']}  refused: {row['error']}")
        else:
            index = f"{row['index']}{_found(row['recall'])}"
            print(f"{mark} {row['id']}  {row['count']} candidates, {index}, {row['model']}, {row['created_at']}")
    if not rows:
        _say_empty(arguments)
    return 0


def _found(recall: dict[str, Any]) -> str:
    """What was measured, if anything was."""
    return f" (recall@10 {recall['recall@10']:.3f}, probes: {recall['probes']})" if recall["count"] else ""


def _say_empty(arguments: argparse.Namespace) -> None:
    print(f"{arguments.store} holds no generation; polyrank build makes one")


def _current(store: GenerationStore) -> tuple[str | None, str | None]:
    """The active generation's id, and what is wrong with CURRENT if something is."""
    try:
        return store.current(), None
    except GenerationCorrupt as error:
        return None, f"{error.reason}; activate one"


def _row(store: GenerationStore, generation: str, current: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": generation, "active": generation == current}
    try:
        opened = store.open(generation, verify=False)
    except GenerationError as error:
        return {**row, "error": str(error)}
    manifest = opened.manifest
    opened.close()
    described = {"count": manifest.count, "index": manifest.index.kind, "created_at": manifest.created_at}
    described["recall"] = manifest.recall
    return {**row, **described, "model": manifest.model.name, "fingerprint": manifest.model.fingerprint}


def _verify(store: GenerationStore, arguments: argparse.Namespace) -> int:
    bad: dict[str, str] = {}
    wanted = [arguments.generation] if arguments.generation else store.ids()
    for generation in wanted:
        try:
            store.verify(generation)
        except GenerationError as error:
            bad[generation] = str(error)
    if arguments.json:
        print_json({"verified": [each for each in wanted if each not in bad], "refused": bad})
    elif not wanted:
        _say_empty(arguments)
    else:
        for generation in wanted:
            print(f"{generation}  {bad.get(generation, 'ok')}")
    return 1 if bad else 0


def _activate(store: GenerationStore, arguments: argparse.Namespace) -> int:
    store.activate(arguments.generation, _encoded_by(store, arguments.generation))
    return _now(arguments.generation, arguments)


def _encoded_by(store: GenerationStore, generation: str) -> Encode:
    """The generation's model, loaded when a text has to be encoded: an update that was made under another model."""

    @cache
    def ranker() -> TextEncoder:
        return load_late(str(store.path(generation) / MODEL_DIRECTORY), backend=chosen_backend())

    return lambda texts: encode_texts(ranker(), texts)


def _rollback(store: GenerationStore, arguments: argparse.Namespace) -> int:
    return _now(store.rollback(), arguments)


def _now(current: str, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json({"current": current})
    else:
        print(f"{current} is active")
    return 0


def _compact(store: GenerationStore, arguments: argparse.Namespace) -> int:
    with Progress("candidates") as progress:
        built = compact(store.root, redis_url=arguments.redis, progress=progress)
    if arguments.json:
        print_json({"current": built.generation, "count": built.count, "seconds": round(built.seconds, 3)})
    else:
        print(f"{built.generation} is active: {built.count} candidates in {built.seconds:.1f} s")
    return 0


def _gc(store: GenerationStore, arguments: argparse.Namespace) -> int:
    if arguments.keep < 1:
        raise UsageError("--keep must be at least 1: the active generation is never removed")
    removed = store.gc(arguments.keep, arguments.redis)
    if arguments.json:
        print_json({"removed": removed})
    else:
        print(f"removed {len(removed)}: {', '.join(removed)}" if removed else "nothing to remove")
    return 0
