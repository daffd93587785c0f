"""`polyrank rank`: one ranking, from a running service or straight from a store."""

import argparse
from pathlib import Path
from typing import Any

from polyrank.model.options import Bounds
from polyrank.service import API_KEY
from polyrank.service.cli.explained import MOST_EXPLAINED, print_explained, to_explain
from polyrank.service.cli.output import UsageError, print_json
from polyrank.service.cli.parsing import Within
from polyrank.service.cli.service_options import DEFAULT_URL, service_of


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("rank", help="rank the pool's replies for a conversation")
    parser.add_argument("turns", nargs="+", metavar="TURN", help="the conversation, oldest turn first")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", help=f"a running service; default: {DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY", help=f"the service's; better {API_KEY}: other users see arguments")
    source.add_argument("--store", type=Path, help="a store's directory, no service needed")
    parser.add_argument("--top-k", type=Within(Bounds(1, 1000)), default=10, metavar="K", help="default: 10")
    parser.add_argument("--rerank", action="store_true", help="let the service's cross-encoder read the first ones")
    parser.add_argument("--reranker", metavar="MODEL", help="with --store: the cross-encoder that reads the first ones")
    parser.add_argument(
        "--explain", action="store_true", help=f"say what makes each of the first {MOST_EXPLAINED} win over the others"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rank, and print the best replies."""
    if arguments.store and arguments.rerank and not arguments.reranker:
        raise UsageError("--rerank with --store needs --reranker MODEL")
    if arguments.reranker and not arguments.store:
        raise UsageError("--reranker goes with --store; a service has its own")
    if arguments.api_key and arguments.store:
        raise UsageError("--api-key goes with a service, not with --store")
    answer = _from_store(arguments) if arguments.store else _from_service(arguments)
    if arguments.json:
        print_json(answer)
    elif arguments.explain:
        print_explained(answer)
    else:
        print_results(answer)
    return 0


def print_results(answer: dict[str, Any]) -> None:
    """Print an answer's replies, best first; where the cross-encoder has read some, with each part of the score."""
    results = answer["results"]
    parts = [name for name in ("cross", "late", "lexical") if any(name in result["scores"] for result in results)]
    if "cross" in parts:
        print("   " + "".join(f"{name:>10}" for name in parts))
    for result in results:
        columns = [result["scores"].get(name) for name in parts] if "cross" in parts else [result["score"]]
        scores = "  ".join(f"{'-':>8}" if score is None else f"{score:8.3f}" for score in columns)
        print(f"{result['rank']:3}  {scores}  {result['text']}")


def _from_store(arguments: argparse.Namespace) -> dict[str, Any]:
    from polyrank.service.cli.local import from_store

    return from_store(arguments.store, arguments.turns, arguments.top_k, arguments.reranker, arguments.explain)


def _from_service(arguments: argparse.Namespace) -> dict[str, Any]:
    with service_of(arguments) as service:
        ranking = service.rank(arguments.turns, top_k=arguments.top_k, rerank=arguments.rerank)
        answer = ranking.model_dump(mode="json", exclude_unset=True)
        if arguments.explain and ranking.results:
            asked = to_explain(arguments.turns, answer, crossed=arguments.rerank)
            answer["explanation"] = service.explain(**asked).model_dump(mode="json")
    return answer
