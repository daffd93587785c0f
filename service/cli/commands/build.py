"""`polyrank build`: turn a pool into a published generation."""

import argparse
import errno
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.names import DTYPE_NAMES, AskedOptions, BuildCommand
from polyrank.model.options import options_of
from polyrank.service.cli.arguments import (
    add_columns_option,
    add_encoding_option,
    add_runner_options,
    chosen_runner,
    loaded,
    wrong_usage,
)
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result, seconds_of
from polyrank.service.cli.parsing import add_options_of, values_of
from polyrank.service.cli.waiting import add_wait_option, loading, require_server

if TYPE_CHECKING:
    from polyrank.index_builder.building.plans import BuildOptions
    from polyrank.index_builder.scale.encoders import Encoders
    from polyrank.model.rankers.networks import Retriever
    from polyrank.model.text.assembly import Conversation

_SEED = 0


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("build", help="encode a pool into a store and activate it")
    parser.add_argument(
        "--model", required=True, help="checkpoint directory, base model name, or lexical (words alone)"
    )
    parser.add_argument(
        "--pool", required=True, nargs="+", type=Path, help=".jsonl[.gz|.zst], .csv, .parquet or .xlsx files"
    )
    add_encoding_option(parser)
    add_columns_option(parser)
    parser.add_argument("--store", required=True, type=Path, help="the store's directory; made if need be")
    add_options_of(parser.add_argument, options_of(AskedOptions), dtype=DTYPE_NAMES)
    add_options_of(parser.add_argument, options_of(BuildCommand))
    add_runner_options(parser)
    add_wait_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build, and print what was built. Files and a store that are none are refused before the model is loaded."""
    from polyrank.index_builder.pool.rows import begin_pool
    from polyrank.model.checkpoint.files import CONFIG_FILE
    from polyrank.model.rankers.load import load_retriever

    _check_cluster(arguments)
    runner = chosen_runner(arguments.backend, arguments.precision)
    if arguments.store.exists() and not arguments.store.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(arguments.store))
    if (arguments.store / CONFIG_FILE).exists():
        raise UsageError(f"--store {arguments.store} is a checkpoint; give another directory")
    if arguments.wait is not None and arguments.activate is False:
        raise UsageError("--wait goes with --activate: no server loads what is only published")
    require_server(arguments)
    pool = begin_pool(arguments.pool, arguments.store, arguments.encoding, arguments.columns)
    probes = _probes(arguments.probes) if arguments.probes else []
    ranker = loaded(load_retriever, arguments.model, runner)
    options = _options(arguments, ranker, probes)
    state, parts = "active" if options.activate else "published", arguments.shards or 1
    from polyrank.index_builder.building.pipeline import build

    with Progress("candidates") as progress, _encoders(arguments, ranker, options.dtype, progress) as encoders:
        built = build(ranker, pool, arguments.store, options, parts=parts, vectors=encoders, progress=progress)
    cut = f" in {parts} parts," if parts > 1 else ""
    seconds = seconds_of(arguments)
    line = f"generation {built.generation} is {state}: {built.count} candidates{cut} in {seconds:.1f} s"
    line = "; ".join([line, *built.said_of_taken])
    if built.resumed:
        print(f"{built.resumed} candidates had been encoded by a build that was killed", file=sys.stderr)
    if built.rejected:
        print(f"rows left out: {built.rejected}; see {built.rejected_log}", file=sys.stderr)
    for note in (*pool.fields.lines(), *built.notes):
        print(note, file=sys.stderr)
    line += loading(arguments, built.generation) if options.activate else ""
    worst, slots = built.worst, built.manifest.parts
    facts = {
        "generation": built.generation,
        "count": built.count,
        **({"parts": [{"slots": part.name, "count": part.count} for part in slots]} if len(slots) > 1 else {}),
        "rejected": built.rejected,
        "rejected_log": str(built.rejected_log) if built.rejected_log else None,
        "truncated": built.truncated,
        "resumed": built.resumed,
        "encoded": built.encoded,
        "taken": built.taken,
        "index": worst.index.kind,
        "index_times": worst.index.times,
        "recall@10": worst.recall.at_10,
        "recall_of": worst.recall.of,
        "seconds": round(seconds, 3),
        **pool.fields.described(),
        **({} if encoders is None else {"encoders": arguments.encoders, "encoder_retries": encoders.retries}),
    }
    print_result(arguments, facts, line)
    return 0


def _check_cluster(arguments: argparse.Namespace) -> None:
    if (arguments.cluster is None) != (arguments.encoders is None):
        raise UsageError("--cluster and --encoders go together: where to encode, and how many encoders to start there")
    if arguments.cluster is None:
        return
    from polyrank.index_builder.scale.cluster import why_unusable

    if why := why_unusable(arguments.cluster):
        raise UsageError(why)


@contextmanager
def _encoders(
    arguments: argparse.Namespace, ranker: "Retriever", dtype: str, progress: Progress
) -> "Iterator[Encoders | None]":
    """What encodes on a cluster; None: this process encodes."""
    if arguments.cluster is None:
        yield None
        return
    from polyrank.index_builder.scale.cluster import connected
    from polyrank.index_builder.scale.encoders import Encoders
    from polyrank.model.registry import ARCHITECTURES

    if not ARCHITECTURES[ranker.architecture].embeds:
        raise UsageError(f"--cluster: {ranker.name} has no vectors to encode; leave --cluster out")
    with connected(arguments.cluster) as ray:
        yield Encoders(ray, ranker, arguments.model, dtype, arguments.encoders, progress.say)


def _options(arguments: argparse.Namespace, ranker: "Retriever", probes: "list[Conversation]") -> "BuildOptions":
    from polyrank.index_builder.building.pipeline import index_for
    from polyrank.index_builder.building.plans import BuildOptions
    from polyrank.index_builder.building.stages import EncodedContext

    options = values_of(arguments, options_of(AskedOptions))
    with wrong_usage():
        index_for(ranker, options.get("index", "auto"))
    return BuildOptions(probes=EncodedContext.of(ranker, probes), **options)


def _probes(file: Path) -> "list[Conversation]":
    """At most MOST_PROBES contexts of a file, drawn at random with a fixed seed."""
    from polyrank.index_builder.index.measuring import MOST_PROBES
    from polyrank.model.text.dialogues import drawn, read_dialogues

    probes = drawn(read_dialogues(file), MOST_PROBES, random.Random(_SEED))
    if not probes:
        raise UsageError(f"--probes {file} holds no dialogue")
    return [each.conversation for each in probes]
