"""`polyrank shards`: cutting a store that is cut into parts into another number of them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.names import MOST_PARTS
from polyrank.model.options import Bounds
from polyrank.service.cli.files import require_store
from polyrank.service.cli.output import Progress, add_json_option, print_result
from polyrank.service.cli.parsing import Within

if TYPE_CHECKING:
    pass


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("shards", help="a pool that is cut into parts: cut it anew")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=run)
        return action

    moving = add("move", _move, "cut the active generation into another number of parts; nothing is encoded")
    moving.add_argument("--to", required=True, type=Within(Bounds(1, MOST_PARTS)), metavar="S", help="how many parts")


def _move(arguments: argparse.Namespace) -> int:
    require_store(arguments.store, "polyrank build --shards")
    from polyrank.index_builder.scale.moving import move

    with Progress("candidates") as progress:
        moved = move(arguments.store, arguments.to, progress=progress)
    facts = {"current": moved.id, "count": moved.count, "parts": len(moved.parts)}
    print_result(
        arguments, facts, f"generation {moved.id} is active: {moved.count} candidates in {len(moved.parts)} parts"
    )
    return 0
