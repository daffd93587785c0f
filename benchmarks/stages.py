"""What each stage costs on this machine: scoring, encoding, reranking, or `/rank` of a server.

python -m benchmarks.stages SUBJECT [options]; prints one JSON document.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import encode, scoring, serving
from benchmarks.timing import machine

from polyrank.model.checkpoint.lookup import LEXICAL, is_checkpoint
from polyrank.model.config import ModelConfig
from polyrank.model.inference.runners import Runner
from polyrank.model.rankers.load import load_cross, load_vector_ranker
from polyrank.model.rankers.networks import CrossRanker, Ranker, from_base
from polyrank.model.text.dialogues import read_dialogues
from polyrank.service.cli.arguments import add_runner_options, chosen_runner, loaded

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SAMPLE = Path(__file__).parents[1] / "examples" / "support"
POOL, DATA = SAMPLE / "pool.jsonl", SAMPLE / "conversations.jsonl"

Measured = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    measured = options.measure(options)
    print(json.dumps({"bench": options.subject, "machine": machine(), **measured}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    of_scoring = subjects.add_parser("scoring", help="closed form against the paper's two products")
    of_scoring.add_argument("--seconds", type=float, default=2.0, help="for each size; default: 2")
    of_scoring.set_defaults(measure=lambda options: {"rows": scoring.measure(options.seconds)})
    by_model: dict[str, tuple[Callable[[argparse.Namespace], Measured], str]] = {
        "encode": (_encode, "candidates a second, one context, and 32 together"),
        "rerank": (_rerank, "fifty pairs of a cross-encoder; a base model's with a random head costs the same"),
    }
    for name, (measure, text) in by_model.items():
        subject = subjects.add_parser(name, help=text)
        subject.add_argument("--model", default=MODEL, help=f"default: {MODEL}")
        add_runner_options(subject)
        subject.add_argument("--pool", type=Path, default=POOL, help="default: the bundled sample")
        subject.set_defaults(measure=measure)
    rank = subjects.add_parser("rank", help="serve a store and measure POST /rank")
    rank.add_argument("--store", type=Path, required=True)
    rank.add_argument("--data", type=Path, default=DATA, help="dialogues whose contexts are ranked")
    rank.add_argument("--requests", type=int, default=500, help="at each concurrency; default: 500")
    rank.set_defaults(measure=_rank)
    return parser


def _encode(options: argparse.Namespace) -> Measured:
    ranker = loaded(load_vector_ranker, options.model, _runner(options), "--model: ")
    return {**_described(options, ranker), "rows": encode.measure_encode(ranker, encode.texts_of(options.pool))}


def _rerank(options: argparse.Namespace) -> Measured:
    is_base = options.model != LEXICAL and not is_checkpoint(options.model)
    loader = _cross_of_base if is_base else partial(loaded, load_cross, before="--model: ")
    ranker = loader(options.model, _runner(options))
    rows = encode.measure_rerank(ranker, encode.texts_of(options.pool, limit=100))
    return {**_described(options, ranker), "rows": rows}


def _cross_of_base(name: str, runner: Runner) -> CrossRanker:
    """Put a head with random weights on a base model."""
    ranker = from_base(name, ModelConfig(architecture="cross", base_name="", weights="base"), *runner)
    assert not ranker.retrieves, "asked for"
    return ranker


def _runner(options: argparse.Namespace) -> Runner:
    return chosen_runner(options.backend, options.precision)


def _described(options: argparse.Namespace, ranker: Ranker) -> Measured:
    return {"model": options.model, "backend": ranker.backend, "precision": ranker.precision}


def _rank(options: argparse.Namespace) -> Measured:
    return serving.measure(options.store, list(read_dialogues(options.data)), options.requests)


if __name__ == "__main__":
    main()
