"""`polyrank keys`: adds, lists and removes API keys in the file that the setting `keys_file` names."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.service.auth import AT_ONCE, PER_S
from polyrank.service.cli.output import UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import Within

if TYPE_CHECKING:
    from polyrank.service.auth.keys import Key


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("keys", help="add, list and remove API keys")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("add", _add, "make a key and print it, once: the file keeps its hash alone"),
        ("list", _list, "the names, scopes and rates of the keys"),
        ("remove", _remove, "take a key out of force"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("--file", required=True, type=Path, help="the keys file")
        add_json_option(action)
        action.set_defaults(run=run)
        if name in ("add", "remove"):
            action.add_argument("--name", required=True, help="what the log calls the key")
        if name == "add":
            action.add_argument("--scope", choices=("rank", "admin"), default="rank", help="default: rank")
            action.add_argument("--rate", type=Within(PER_S), metavar="R", help="calls a second; default: the server's")
            action.add_argument(
                "--burst", type=Within(AT_ONCE), metavar="N", help="calls at once after a pause; default: R"
            )


def _add(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    _check(arguments)
    secret = keys.new_key()
    key = keys.Key(
        name=arguments.name,
        sha256=keys.hashed(secret.encode()),
        scopes=(arguments.scope,),
        rate_per_s=arguments.rate,
        burst=arguments.burst,
    )
    with keys.changing(arguments.file) as held:
        if any(other.name == key.name for other in held):
            raise UsageError(f"{arguments.file} has a key {key.name!r} already; choose another name or remove it")
        held.append(key)
    print_result(arguments, {"name": key.name, "scopes": key.scopes, "key": secret}, secret)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from polyrank.service.auth import keys

    if not keys.NAME.fullmatch(arguments.name):
        raise UsageError("--name: up to 64 letters, digits, dots, hyphens and underscores")
    if arguments.burst is not None and arguments.rate is None:
        raise UsageError("--burst goes with --rate")


def _list(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    held = keys.read(arguments.file)
    facts = [key.model_dump(mode="json", exclude={"sha256"}, exclude_none=True) for key in held]
    lines = [f"{key.name}  {', '.join(key.scopes)}{_rate(key)}" for key in held]
    emptiness = f"{arguments.file} holds no key: nobody can call a server with it"
    print_result(arguments, {"keys": facts}, *(lines or [emptiness]))
    return 0


def _rate(key: "Key") -> str:
    if key.rate_per_s is None:
        return ""
    return f"  {key.rate_per_s:g} a second" + (f", {key.burst} at once" if key.burst else "")


def _remove(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    if not arguments.file.is_file():
        raise UsageError(f"{arguments.file} is no file; polyrank keys add makes one")
    with keys.changing(arguments.file) as held:
        rest = [key for key in held if key.name != arguments.name]
        if len(rest) == len(held):
            raise UsageError(f"{arguments.file} has no key {arguments.name!r}")
        held[:] = rest
    print_result(arguments, {"removed": arguments.name}, f"{arguments.name} is removed")
    return 0
