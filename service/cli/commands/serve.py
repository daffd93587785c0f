"""`polyrank serve`: the HTTP service over a store."""

import argparse
import os
from typing import Any

from polyrank.index_builder.errors import StoreInParts, StoreWhole
from polyrank.index_builder.layout import is_in_parts
from polyrank.model.options import Option, without_none
from polyrank.service.cli.arguments import usage
from polyrank.service.cli.output import UsageError
from polyrank.service.cli.parsing import CommandParser, add_options_of

# Variables that native libraries read when they are loaded; values already in the environment stay.
NATIVE = {
    # By default torch's threads spin after each product, on cores that the next model's forward needs.
    "OMP_WAIT_POLICY": "PASSIVE",
    # oneDNN keeps a primitive for each shape of batch, and shapes have no end: with its default bound of 1024 memory
    # grew by 170 MiB in 150 seconds. A forward needs a handful at a time; making one again had no measurable cost.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    # Else tokenizers reads long lists on threads of its own, which take the model's cores.
    "TOKENIZERS_PARALLELISM": "false",
}

FLAGS = {  # settings that have one, and how their values are shown
    "store": "STORE", "reranker": "MODEL", "classifier": "MODEL", "redis_url": "URL", "vectors": None, "host": "HOST",
    "port": "PORT", "backend": None, "precision": None, "pool_root": "DIR", "model_root": "DIR", "keys_file": "FILE",
    "workers": "N", "cluster": "auto|HOST:PORT", "shard_replicas": "R", "hedge_ms": "MS", "min_searched": "SHARE",
}  # fmt: skip


def add_to(commands: Any) -> None:
    """Add the command to the parser; every flag is also a POLYRANK_ variable and a key of the TOML file."""
    parser = commands.add_parser("serve", help="serve POST /rank over a store")
    parser.set_defaults(run=run)
    parser.later = _add_flags


def _add_flags(parser: CommandParser) -> None:
    from polyrank.service.settings import Settings, bounds_of

    for name, shown in FLAGS.items():
        field, flag = Settings.model_fields[name], "redis" if name == "redis_url" else name
        hint, means = without_none(field.annotation), field.description or ""
        option = Option(flag, name, field.default, hint, means, bounds_of(name), {"metavar": shown})
        add_options_of(parser.add_argument, [option])


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it. A store or a model of the wrong kind is refused before torch is imported."""
    flags = {name: value for name, value in vars(arguments).items() if name != "run"}
    from polyrank.model.checkpoint.lookup import require_classifier, require_pair_scorer
    from polyrank.service.settings import Settings

    settings = Settings.load(flags)
    if settings.store is not None and not settings.store.is_dir():
        raise UsageError(f"{settings.store} is no directory; polyrank build makes a store")
    if settings.store is not None and is_in_parts(settings.store) != (settings.cluster is not None):
        raise StoreWhole(settings.store) if settings.cluster else StoreInParts(settings.store)
    if settings.reranker is not None:
        with usage("reranker: "):
            require_pair_scorer(settings.reranker)
    if settings.classifier is not None:
        with usage("classifier: "):
            require_classifier(settings.classifier)
    for name, value in NATIVE.items():
        os.environ.setdefault(name, value)
    from polyrank.service.process import server  # imports torch, so only after the settings were checked

    return server.run(settings)
