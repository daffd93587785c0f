"""`polyrank shards`: cutting a pool into another number of parts."""

import argparse
from pathlib import Path
from typing import Any

from polyrank.index_builder.names import MOST_PARTS
from polyrank.model.options import Bounds
from polyrank.service.cli.files import require_store
from polyrank.service.cli.output import Progress, add_json_option, print_result
from polyrank.service.cli.parsing import Within


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("shards", help="cut a pool into another number of parts")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=run)
        return action

    moving = add("move", _move, "cut the active generation into another number of parts; nothing is encoded")
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
