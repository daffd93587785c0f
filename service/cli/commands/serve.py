"""`polyrank serve`: the HTTP service over a store."""

import argparse
import os
from pathlib import Path
from typing import Any

from polyrank.index_builder.errors import StoreInParts, StoreWhole
from polyrank.index_builder.layout import is_in_parts
from polyrank.service.cli.models import add_runner_options, check_classifier, check_cross
from polyrank.service.cli.output import UsageError

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


def add_to(commands: Any) -> None:
    """Add the command to the parser; every flag is also a POLYRANK_ variable and a key of the TOML file."""
    parser = commands.add_parser("serve", help="serve POST /rank over a store")
    parser.add_argument("--store", type=Path, help="the store's directory; not given: only the other models serve")
    parser.add_argument("--reranker", metavar="MODEL", help="a cross-encoder for `rerank`")
    parser.add_argument("--classifier", metavar="MODEL", help="a checkpoint of train --task classify, for /classify")
    parser.add_argument("--redis", dest="redis_url", metavar="URL", help="Redis with the vectors of the generations")
    parser.add_argument("--vectors", choices=("local", "redis"), help="where vectors are read; default: local")
    parser.add_argument("--host", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, help="default: 8000; 0: any free port")
    add_runner_options(parser, "auto", "auto")
    parser.add_argument("--pool-root", type=Path, metavar="DIR", help="POST /index may name pools under it")
    parser.add_argument("--model-root", type=Path, metavar="DIR", help="POST /index may name models under it")
    parser.add_argument("--keys-file", type=Path, metavar="FILE", help="API keys, as `polyrank keys` writes them")
    parser.add_argument("--workers", type=int, metavar="N", help="serving processes; default: 1")
    parser.add_argument("--cluster", metavar="auto|HOST:PORT", help="this Ray cluster holds the parts of the store")
    parser.add_argument("--shard-replicas", type=int, metavar="R", help="shards for each part; default: 1")
    parser.add_argument(
        "--hedge-ms", type=float, metavar="MS", help="then ask another shard; default: 0, by times seen"
    )
    parser.add_argument("--min-searched", type=float, metavar="SHARE", help="503 if less is searched; default: 0.5")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops it. A store or a model of the wrong kind is refused before torch is imported."""
    flags = {name: value for name, value in vars(arguments).items() if name != "run"}
    from polyrank.service.settings import Settings

    settings = Settings.load(flags)
    if settings.store is not None and not settings.store.is_dir():
        raise UsageError(f"{settings.store} is no directory; polyrank build makes a store")
    if settings.store is not None and is_in_parts(settings.store) != (settings.cluster is not None):
        raise StoreWhole(settings.store) if settings.cluster else StoreInParts(settings.store)
    if settings.reranker is not None:
        check_cross("reranker:", settings.reranker)
    if settings.classifier is not None:
        check_classifier("classifier:", settings.classifier)
    for name, value in NATIVE.items():
        os.environ.setdefault(name, value)
    from polyrank.service.process import server  # imports torch, so only after the settings were checked

    return server.run(settings)
