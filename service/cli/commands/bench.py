"""`polyrank bench`: what each stage costs on this machine."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.bounds import Bounds
from polyrank.model.inference.names import Runner
from polyrank.service.cli.files import require_store
from polyrank.service.cli.models import add_runner_options, chosen_runner, load
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result
from polyrank.service.cli.parsing import ANY_COUNT, Within

if TYPE_CHECKING:
    from polyrank.index_builder.build.pipeline import BuildResult
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.networks import Ranker, Retriever

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
POOL = Path("examples/support/pool.jsonl")
DATA = Path("examples/support/conversations.jsonl")
_SECONDS = Bounds(0.0, 86_400.0)

Subject = Callable[[argparse.Namespace], dict[str, Any]]


def add_to(commands: Any) -> None:
    """Add the command and its subjects to the parser."""
    parser = commands.add_parser("bench", help="measure scoring, encoding, ranking, reranking or building")
    subjects = parser.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    scoring = _subject(subjects, "scoring", _scoring, "closed form against the paper's two products")
    scoring.add_argument("--seconds", type=Within(_SECONDS), default=2.0, help="for each size; default: 2")
    for name, measure, text in (
        ("encode", _encode, "candidates a second, one context, and 32 together"),
        ("rerank", _rerank, "fifty pairs of a cross-encoder; a base model's with a random head costs the same"),
        ("build", _build, "pool to generation, in a temporary store"),
    ):
        subject = _subject(subjects, name, measure, text)
        subject.add_argument("--model", default=MODEL, help=f"default: {MODEL}")
        add_runner_options(subject)
        subject.add_argument("--pool", type=Path, default=POOL, help=f"default: {POOL}")
    rank = _subject(subjects, "rank", _rank, "serve a store and measure POST /rank")
    rank.add_argument("--store", type=Path, help=f"a store's directory; default: {POOL} in a temporary one")
    rank.add_argument("--data", type=Path, default=DATA, help=f"dialogues whose contexts are ranked; default: {DATA}")
    rank.add_argument("--requests", type=Within(ANY_COUNT), default=500, help="at each concurrency; default: 500")
    rank.add_argument("--redis", metavar="URL", help="read vectors from this Redis (--vectors redis)")


def _subject(subjects: Any, name: str, measure: Subject, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subjects.add_parser(name, help=text)
    add_json_option(parser)
    parser.set_defaults(run=partial(_run, name, measure))
    return parser


def _run(name: str, measure: Subject, arguments: argparse.Namespace) -> int:
    if "pool" in vars(arguments):
        _check(arguments)
    measured = measure(arguments)
    from polyrank.service.cli.measuring.timing import machine  # imports torch

    result = {"bench": name, "machine": machine(), **measured}
    lines = [f"{key}: {value}" for key, value in result.items() if key != "rows"]
    rows = ["  " + "  ".join(_cell(key, value) for key, value in row.items()) for row in result["rows"]]
    print_result(arguments, result, *lines, *rows)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse a pool or a model that is none, before torch is imported."""
    from polyrank.index_builder.pool.rows import begin_pool
    from polyrank.model.checkpoint.kind import architecture_of

    begin_pool([arguments.pool])
    architecture_of(arguments.model)


def _cell(key: str, value: Any) -> str:
    return f"{key} {value:.5g}" if isinstance(value, (int, float)) else f"{value}"


def _scoring(arguments: argparse.Namespace) -> dict[str, Any]:
    from polyrank.service.cli.measuring.scoring import measure

    return {"rows": measure(arguments.seconds)}


def _encode(arguments: argparse.Namespace) -> dict[str, Any]:
    from polyrank.model.rankers.load import load_late
    from polyrank.service.cli.measuring.encode import measure_encode, texts_of

    runner, texts = _runner(arguments), texts_of(arguments.pool)
    ranker = load(load_late, arguments.model, runner)
    return {**_described(arguments, ranker), "rows": measure_encode(ranker, texts)}


def _rerank(arguments: argparse.Namespace) -> dict[str, Any]:
    from polyrank.model.checkpoint.kind import LEXICAL, is_checkpoint
    from polyrank.model.rankers.load import load_cross

    model, runner = arguments.model, _runner(arguments)
    is_base = model != LEXICAL and not is_checkpoint(model)
    ranker = _cross_of_base(model, runner) if is_base else load(load_cross, model, runner, "--model ")
    from polyrank.service.cli.measuring.encode import measure_rerank, texts_of

    return {**_described(arguments, ranker), "rows": measure_rerank(ranker, texts_of(arguments.pool, limit=100))}


def _cross_of_base(name: str, runner: Runner) -> "CrossRanker":
    """Put a head with random weights on a base model."""
    from polyrank.model.config import ModelConfig
    from polyrank.model.rankers.networks import from_base

    ranker = from_base(name, ModelConfig(architecture="cross", base_name="", weights="base"), *runner)
    assert not ranker.retrieves, "asked for"
    return ranker


def _build(arguments: argparse.Namespace) -> dict[str, Any]:
    import resource

    from polyrank.model.rankers.load import load_retriever

    ranker = load(load_retriever, arguments.model, _runner(arguments))
    with tempfile.TemporaryDirectory() as store:
        built = _build_into(Path(store), ranker, arguments.pool)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    row = {"count": built.count, "seconds": built.seconds, "per_second": built.count / built.seconds}
    return {**_described(arguments, ranker), "peak_rss_mib": peak, "rows": [row]}


def _runner(arguments: argparse.Namespace) -> Runner:
    return chosen_runner(arguments.backend, arguments.precision)


def _described(arguments: argparse.Namespace, ranker: "Ranker") -> dict[str, Any]:
    return {"model": arguments.model, "backend": ranker.backend, "precision": ranker.precision}


def _build_into(store: Path, ranker: "Retriever", pool: Path) -> "BuildResult":
    from polyrank.index_builder.build.pipeline import build
    from polyrank.index_builder.pool.rows import read_pool

    with Progress("candidates") as progress:
        return build(ranker, read_pool([pool], store), store, progress=progress)


def _rank(arguments: argparse.Namespace) -> dict[str, Any]:
    from polyrank.model.rankers.load import load_late
    from polyrank.model.text.dialogues import read_dialogues

    if arguments.store is not None:
        require_store(arguments.store)
    if arguments.redis and arguments.store is None:
        raise UsageError("--redis needs --store: a store that was built with --redis")
    flags = ["--redis", arguments.redis, "--vectors", "redis"] if arguments.redis else []
    dialogues = list(read_dialogues(arguments.data))
    if not dialogues:
        raise UsageError(f"{arguments.data} holds no context to rank")
    if len(dialogues) < arguments.requests:
        print(f"{arguments.data} holds {len(dialogues)} contexts only", file=sys.stderr)
    from polyrank.service.cli.measuring.serving import measure  # imports torch

    if arguments.store is not None:
        return measure(arguments.store, dialogues, arguments.requests, flags)
    with tempfile.TemporaryDirectory() as store:
        _build_into(Path(store), load(load_late, MODEL, chosen_runner()), POOL)
        return measure(Path(store), dialogues, arguments.requests)
