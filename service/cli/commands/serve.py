"""`polyrank serve`: the HTTP service over a store; and `polyrank keys`: the API keys in the file that it reads."""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.options import Option, without_none
from polyrank.service import POOL_NAME
from polyrank.service.auth import AT_ONCE, PER_S
from polyrank.service.cli.arguments import of_flag
from polyrank.service.cli.output import UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import CommandParser, Within, add_options_of

if TYPE_CHECKING:
    from polyrank.service.auth.keys import Key

# Variables that native libraries read when they are loaded; values already in the environment stay.
NATIVE = {
    # By default torch's threads spin after each product, on cores that the next model's forward needs.
    "OMP_WAIT_POLICY": "PASSIVE",
    # The same for those of NumPy: as short as OpenBLAS allows, 2**4 cycles in place of 2**26.
    "OPENBLAS_THREAD_TIMEOUT": "4",
    # oneDNN keeps a primitive for each shape of batch, and shapes have no end: with its default bound of 1024 memory
    # grew by 170 MiB in 150 seconds. A forward needs a handful at a time; making one again had no measurable cost.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    # Else tokenizers reads long lists on threads of its own, which take the model's cores.
    "TOKENIZERS_PARALLELISM": "false",
}

FLAGS = {  # settings that have one, and how their values are shown
    "store": "[NAME=]DIR", "reranker": "MODEL", "classifier": "MODEL", "redis_url": "URL", "vectors": None,
    "host": "HOST", "port": "PORT", "backend": None, "precision": None, "pool_root": "DIR", "model_root": "DIR",
    "keys_file": "FILE", "workers": "N", "feedback": None, "cluster": "auto|HOST:PORT",
    "shard_replicas": "R", "hedge_ms": "MS", "min_searched": "SHARE",
}  # fmt: skip


def add_to(commands: Any) -> None:
    """Add the commands to the parser; every flag of `serve` is also a POLYRANK_ variable and a key of the TOML file."""
    _add_keys(commands)
    parser = commands.add_parser("serve", help="serve POST /rank over a store")
    parser.set_defaults(run=run)
    parser.later = _add_flags


def _add_flags(parser: CommandParser) -> None:
    from polyrank.service.settings import Settings, bounds_of

    for name, metavar in FLAGS.items():
        field, flag = Settings.model_fields[name], "redis" if name == "redis_url" else name
        hint, means = without_none(field.annotation), field.description or ""
        option = Option(flag, name, field.default, hint, means, bounds_of(name), {"metavar": metavar})
        add_options_of(parser.add_argument, [option])


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it. A store or a model of the wrong kind is refused before anything is loaded."""
    flags = {name: getattr(arguments, name) for name in FLAGS}
    from polyrank.model.checkpoint.lookup import require_classifier, require_lone_scorer
    from polyrank.service.settings import Settings

    settings = Settings.load(flags)
    for store in settings.store.values():
        if not store.is_dir():
            raise UsageError(f"{store} is no directory; polyrank build makes a store")
    if settings.reranker is not None:
        with of_flag("reranker: "):
            require_lone_scorer(settings.reranker)
    if settings.classifier is not None:
        with of_flag("classifier: "):
            require_classifier(settings.classifier)
    for name, value in NATIVE.items():
        os.environ.setdefault(name, value)
    from polyrank.service.process import server  # takes its time to import, so only after the settings were checked

    return server.run(settings)


def _add_keys(commands: Any) -> None:
    parser = commands.add_parser("keys", help="add, list and remove API keys")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("add", _add_key, "make a key and print it, once: the file keeps its hash alone"),
        ("list", _list_keys, "the names, scopes and rates of the keys"),
        ("remove", _remove_key, "take a key out of force"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("--file", required=True, type=Path, help="the keys file")
        add_json_option(action)
        action.set_defaults(run=run)
        if name in ("add", "remove"):
            action.add_argument("--name", required=True, help="what the log calls the key")
        if name == "add":
            action.add_argument("--scope", choices=("rank", "admin"), default="rank", help="default: rank")
            action.add_argument("--pools", nargs="+", metavar="NAME", help="for these pools alone; default: for all")
            action.add_argument("--rate", type=Within(PER_S), metavar="R", help="calls a second; default: the server's")
            action.add_argument(
                "--burst", type=Within(AT_ONCE), metavar="N", help="calls at once after a pause; default: R"
            )


def _add_key(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    if not keys.NAME.fullmatch(arguments.name):
        raise UsageError("--name: up to 64 letters, digits, dots, hyphens and underscores")
    for pool in arguments.pools or ():
        if not re.fullmatch(POOL_NAME, pool):
            raise UsageError(f"--pools: {pool[:80]!r} names no pool")
    if arguments.burst is not None and arguments.rate is None:
        raise UsageError("--burst goes with --rate")
    secret = keys.new_key()
    key = keys.Key(
        name=arguments.name,
        sha256=keys.hashed(secret.encode()),
        scopes=(arguments.scope,),
        pools=arguments.pools and tuple(arguments.pools),
        rate_per_s=arguments.rate,
        burst=arguments.burst,
    )
    with keys.changing(arguments.file) as entries:
        if any(other.name == key.name for other in entries):
            raise UsageError(f"{arguments.file} has a key {key.name!r} already; choose another name or remove it")
        entries.append(key)
    print_result(arguments, {"name": key.name, "scopes": key.scopes, "key": secret}, secret)
    return 0


def _list_keys(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    entries = keys.read(arguments.file)
    facts = [key.model_dump(mode="json", exclude={"sha256"}, exclude_none=True) for key in entries]
    lines = [f"{key.name}  {', '.join(key.scopes)}{_limits(key)}" for key in entries]
    emptiness = f"{arguments.file} holds no key: nobody can call a server with it"
    print_result(arguments, {"keys": facts}, *(lines or [emptiness]))
    return 0


def _limits(key: "Key") -> str:
    rate = "" if key.rate_per_s is None else f"  {key.rate_per_s:g} a second"
    burst = f", {key.burst} at once" if key.burst else ""  # of a rate
    return rate + burst + ("" if key.pools is None else f"  for {', '.join(key.pools)}")


def _remove_key(arguments: argparse.Namespace) -> int:
    from polyrank.service.auth import keys

    if not arguments.file.is_file():
        raise UsageError(f"{arguments.file} is no file; polyrank keys add makes one")
    with keys.changing(arguments.file) as entries:
        rest = [key for key in entries if key.name != arguments.name]
        if len(rest) == len(entries):
            raise UsageError(f"{arguments.file} has no key {arguments.name!r}")
        entries[:] = rest
    print_result(arguments, {"removed": arguments.name}, f"{arguments.name} is removed")
    return 0
