"""`polyrank build`: a pool becomes a published generation."""

import argparse
import sys
from pathlib import Path
from typing import Any

from index_builder.build import BuildResult, build
from index_builder.codec import DTYPES
from index_builder.index_choice import KINDS
from index_builder.pool import read_pool
from service.cli.models import load_late
from service.cli.output import Progress, print_json


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("build", help="encode a pool into a store and activate it")
    parser.add_argument("--model", required=True, help="checkpoint directory or base model name")
    parser.add_argument("--pool", required=True, nargs="+", type=Path, help=".jsonl[.gz|.zst], .csv or .parquet files")
    parser.add_argument("--store", required=True, type=Path, help="the store's directory; made if need be")
    parser.add_argument("--index", default="auto", choices=KINDS, help="default: auto, the cheaper of scan and hnsw")
    parser.add_argument("--dtype", default="float16", choices=sorted(DTYPES), help="of the stored vectors")
    parser.add_argument("--redis", metavar="URL", help="also copy the vectors into this Redis")
    parser.add_argument("--max-rejected", type=_share, default=0.01, metavar="SHARE", help="default: 0.01")
    parser.add_argument("--no-activate", action="store_true", help="publish without switching to it")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build, and say what was built."""
    pool = read_pool(arguments.pool)
    ranker = load_late(arguments.model)
    with Progress("candidates") as progress:
        built = build(
            ranker,
            pool,
            arguments.store,
            index=arguments.index,
            dtype=arguments.dtype,
            redis_url=arguments.redis,
            activate=not arguments.no_activate,
            max_rejected=arguments.max_rejected,
            progress=progress,
        )
    if built.rejected:
        print(f"{built.rejected} bad rows were left out; they are listed in {built.rejected_log}", file=sys.stderr)
    if arguments.json:
        print_json(_described(built))
    else:
        state = "published" if arguments.no_activate else "active"
        print(f"generation {built.generation} is {state}: {built.count} candidates in {built.seconds:.1f} s")
    return 0


def _described(built: BuildResult) -> dict[str, Any]:
    return {
        "generation": built.generation,
        "count": built.count,
        "rejected": built.rejected,
        "rejected_log": str(built.rejected_log) if built.rejected_log else None,
        "truncated": built.truncated,
        "seconds": round(built.seconds, 3),
    }


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be a number between 0 and 1")
    return value
