"""`polyrank evaluate`: how often a model puts the right text first, with an interval."""

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.durable import write_atomically
from polyrank.model.inference.runners import Runner
from polyrank.model.options import Bounds
from polyrank.model.telling import telling
from polyrank.service.cli.arguments import (
    RERANKER_HINT,
    add_encoding_option,
    add_runner_options,
    loaded,
    of_flag,
    reference_runner,
    require_writable,
)
from polyrank.service.cli.output import Progress, UsageError, add_json_option, print_result, seconds_of
from polyrank.service.cli.parsing import ANY_COUNT, ANY_SEED, Within

if TYPE_CHECKING:
    from polyrank.service.cli.figures import EvaluationReport
    from polyrank.service.cli.tasks import Task, TaskResult

_TOP_N = 20
_DEPTH = 100  # as DEPTH of model/measures.py, likewise
_DRAWN = 20  # as DRAWN of model/evaluation/rankings.py, which imports numpy: help is printed sooner without
_MANY_TIES = 0.1
_TIES = "several tie for the first place; each figure is what a random order of those that tie gives on average"
_DESCRIPTION = """R@1, R@2, R@5, R@10 and MRR of a model over each example's own candidates, or over others' replies
that are drawn where it lists none; with --pool over all texts of a pool, R@100 too (a reply that is not among the 100
best counts 0); with --corpus nDCG@10, MRR@10 and R@100 over a collection in BEIR's form. Of a classifier it is the
accuracy over pairs with labels. Where scores tie, a figure is the mean over all orders; a text that equals the right
one but for case and the like is right. Intervals are 95 % bootstrap intervals over whole dialogues."""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate", help="R@k and MRR, or nDCG, of a model, with intervals", description=_DESCRIPTION
    )
    add = parser.add_argument
    add("--model", required=True, help="checkpoint directory, base model name, or lexical")
    add("--against", metavar="MODEL", help="measure this one too, and the difference")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="F", help="dialogues, .jsonl[.gz|.zst]")
    source.add_argument("--corpus", type=Path, metavar="F", help="documents in BEIR's form, .jsonl[.gz|.zst]")
    add("--queries", type=Path, metavar="F", help="queries in BEIR's form, with --corpus")
    add("--qrels", type=Path, metavar="F", help="judgements in BEIR's form, .tsv, with --corpus")
    pool_help = "find the replies of --data among all texts of these, .jsonl[.gz|.zst], .csv, .parquet or .xlsx"
    add("--pool", nargs="+", type=Path, metavar="F", help=pool_help)
    add_encoding_option(parser)
    add("--reranker", metavar="MODEL", help="a cross-encoder, with --pool or --corpus")
    add(
        "--top-n",
        type=Within(Bounds(1, _DEPTH)),
        metavar="N",
        help=f"how many texts it reads for each context; default: {_TOP_N}",
    )
    draw_help = f"candidates of an example that lists none; 0: leave it out; default: {_DRAWN} if no example lists any"
    add("--draw", type=Within(Bounds(0, 1000)), metavar="N", help=draw_help)
    add("--seed", type=Within(ANY_SEED), metavar="N", help="of that draw; default: 0")
    add_runner_options(parser, "torch, the reference", "float32, the reference")
    add("--limit", type=Within(ANY_COUNT), metavar="N", help="only the first N examples, or judged queries")
    add("--output", type=Path, metavar="F", help="write rank and scores of each example, .jsonl")
    add("--report", type=Path, metavar="F", help="write a page, .html: figures, and texts of differences")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print the figures."""
    _check(arguments)
    runner = reference_runner(arguments.backend, arguments.precision)
    names = [arguments.model] + ([arguments.against] if arguments.against else [])
    _check_inputs(arguments, names)
    with telling("reading the examples"):
        task = _task(arguments, runner)
    report, outcomes = _evaluated(task, names)
    if arguments.output:
        import orjson

        form = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        write_atomically(arguments.output, b"".join(orjson.dumps(line, option=form) for line in outcomes[0].lines))
    if arguments.report:
        from polyrank.service.cli.reports import write_evaluation

        write_evaluation(arguments.report, report, task, outcomes)
    print_result(arguments, report.as_object(), report.as_text(), f"The command took {seconds_of(arguments):.0f} s.")
    return 0


def measure(name: str, data: Path, progress: Progress | None = None) -> "EvaluationReport":
    """Evaluate a model on a file's lists of candidates, which are drawn if it has none; a classifier on its classes."""
    from polyrank.model.checkpoint.lookup import tells_classes
    from polyrank.service.cli.tasks import ClassesTask, ListsTask

    task: Task[Any] = ClassesTask(data, None) if tells_classes(name) else ListsTask(data, None)
    report, _ = _evaluated(task, [name], progress)
    return report


def _check(arguments: argparse.Namespace) -> None:
    """Refuse arguments that parse but make no sense together; raises UsageError."""
    judged = bool(arguments.queries), bool(arguments.qrels)
    draws = arguments.draw is not None or arguments.seed is not None
    refusals = [
        (bool(arguments.corpus) and not all(judged), "--corpus needs both --queries and --qrels"),
        (not arguments.corpus and any(judged), "--queries and --qrels go with --corpus, not with --data"),
        (bool(arguments.corpus and arguments.pool), "--pool goes with --data, not with --corpus"),
        (bool(arguments.encoding) and not arguments.pool, "--encoding goes with --pool"),
        (
            bool(arguments.reranker) and not (arguments.pool or arguments.corpus),
            "--reranker needs --pool or --corpus; to rank each example's own candidates give it as --model",
        ),
        (arguments.top_n is not None and not arguments.reranker, "--top-n goes with --reranker"),
        (draws and bool(arguments.pool or arguments.corpus), "--draw and --seed go with --data alone"),
        (arguments.draw == 1, "--draw must be 0, or 2 to 1000"),
    ]
    for is_wrong, message in refusals:
        if is_wrong:
            raise UsageError(message)
    inputs = (arguments.data, arguments.corpus, arguments.queries, arguments.qrels, *(arguments.pool or ()))
    for option, file in (("--output", arguments.output), ("--report", arguments.report)):
        if file:
            require_writable(option, file, filter(None, inputs))
    if arguments.output and arguments.output == arguments.report:
        raise UsageError("--output and --report are one file; name two")


def _check_inputs(arguments: argparse.Namespace, names: list[str]) -> None:
    """Refuse files and models that are none, before torch is imported."""
    from polyrank.index_builder.pool.rows import begin_pool
    from polyrank.model.checkpoint.lookup import architecture_of, require_pair_scorer, require_retriever
    from polyrank.model.evaluation.beir import CollectionInvalid
    from polyrank.model.text.dialogues import read_dialogues

    for file in filter(None, (arguments.corpus, arguments.queries, arguments.qrels)):
        if not file.is_file():
            raise CollectionInvalid(f"{file}: no such file")
    if arguments.data:
        read_dialogues(arguments.data)
    if arguments.pool:
        begin_pool(arguments.pool, encoding=arguments.encoding)
    for name in names:
        if arguments.pool or arguments.corpus:
            with of_flag(after=RERANKER_HINT):
                require_retriever(name)
        else:
            architecture_of(name)
    if arguments.reranker:
        with of_flag("--reranker "):
            require_pair_scorer(arguments.reranker)


def _task(arguments: argparse.Namespace, runner: Runner) -> "Task[Any]":
    from polyrank.model.checkpoint.lookup import tells_classes
    from polyrank.model.rankers.load import load_cross
    from polyrank.service.cli.examples import Draw
    from polyrank.service.cli.tasks import ClassesTask, CollectionTask, ListsTask, PoolTask, TwoStageSearch

    if not (arguments.pool or arguments.corpus):
        if tells_classes(arguments.model):
            return ClassesTask(arguments.data, arguments.limit, runner)
        return ListsTask(arguments.data, arguments.limit, runner, Draw(arguments.draw, arguments.seed or 0))
    top_n = _TOP_N if arguments.top_n is None else arguments.top_n
    cross = loaded(load_cross, arguments.reranker, runner, "--reranker ") if arguments.reranker else None
    search = TwoStageSearch(cross, top_n, runner)
    if arguments.pool:
        return PoolTask(arguments.data, arguments.pool, search, arguments.limit, arguments.encoding)
    return CollectionTask(arguments.corpus, arguments.queries, arguments.qrels, search, arguments.limit)


def _evaluated(
    task: "Task[Any]", names: list[str], progress: Progress | None = None
) -> tuple["EvaluationReport", list["TaskResult"]]:
    """Measure the models on the same examples; returns the report, and what was found of each model."""
    from polyrank.service.cli.figures import EvaluationReport, ModelFigures

    rankers = [task.load(name) for name in names]  # all of them, before the long work begins
    titles = [ranker.name for ranker in rankers]
    labels = titles if len({*titles}) == len(titles) else names  # of two directories the last part may be the same
    figures, outcomes = [], []
    for name, ranker in zip(labels, rankers, strict=True):
        began = time.perf_counter()
        with Progress("examples") if progress is None else nullcontext(progress) as shown_on:
            outcome = task.measure(ranker, shown_on)
        figures.append(ModelFigures(name, outcome.values, round(time.perf_counter() - began, 3), outcome.tied_first))
        if outcome.tied_first > _MANY_TIES:
            print(f"{name}: in {outcome.tied_first:.0%} of the examples {_TIES}", file=sys.stderr)
        outcomes.append(outcome)
    return EvaluationReport(figures, task.groups, task.unit, task.described), outcomes
