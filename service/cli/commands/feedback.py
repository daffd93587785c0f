"""`polyrank feedback`: what became of the rankings of a store's servers."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.service.cli.arguments import require_store
from polyrank.service.cli.output import add_json_option


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("feedback", help="what became of rankings: count it, erase a conversation")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=partial(_in_store, run))
        return action

    add("status", _status, "count what is recorded")
    erasing = add("erase", _erase, "remove all that is recorded of one conversation")
    erasing.add_argument("--conversation", required=True, metavar="NAME", help="as requests name it, or a ranking_id")


def _in_store(run: Any, arguments: argparse.Namespace) -> int:
    require_store(arguments.store)
    status: int = run(arguments)
    return status


def _status(arguments: argparse.Namespace) -> int:
    raise NotImplementedError


def _erase(arguments: argparse.Namespace) -> int:
    raise NotImplementedError
