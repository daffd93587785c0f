"""`polyrank rank`: one ranking, from a running service or straight from a store, and what its scores are made of."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.options import Bounds
from polyrank.service import BACKEND, PRECISION
from polyrank.service.cli.arguments import (
    add_service_options,
    chosen_runner,
    json_object,
    of_flag,
    reference_runner,
    require_store,
    service_of,
    words_left_out,
)
from polyrank.service.cli.output import UsageError, print_json
from polyrank.service.cli.parsing import Within
from polyrank.service.observe.logs import harmless

if TYPE_CHECKING:
    from polyrank.service.client.calls import RankOptions

MOST_EXPLAINED = 10
_MOST_WORDS = 12  # of a reply; the others are added up
_FOR, _AGAINST, _PLAIN = "\033[34m", "\033[33m", "\033[0m"
_TIMEOUT_SECONDS = 30.0


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("rank", help="rank the pool's replies for a conversation")
    parser.add_argument("turns", nargs="+", metavar="TURN", help="the conversation, oldest turn first")
    source = parser.add_mutually_exclusive_group()
    add_service_options(parser, source)
    source.add_argument("--store", type=Path, help="a store's directory, no service needed")
    parser.add_argument("--top-k", type=Within(Bounds(1, 1000)), default=10, metavar="K", help="default: 10")
    parser.add_argument("--filter", metavar="JSON", help="a filter on metadata, as POST /rank takes it")
    parser.add_argument("--rerank", action="store_true", help="let the service's cross-encoder read the first ones")
    parser.add_argument("--reranker", metavar="MODEL", help="with --store: the cross-encoder that reads the first ones")
    parser.add_argument(
        "--answer-if",
        type=Within(Bounds(0.001, 1.0)),
        metavar="P",
        help="say whether the first reply is right with this probability",
    )
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
    options = _options(arguments)
    if arguments.store:
        answer = from_store(arguments.store, arguments.turns, options, arguments.reranker, arguments.explain)
    else:
        answer = _from_service(arguments, options)
    for note in answer.get("notes") or ():
        print(note, file=sys.stderr)
    if arguments.json:
        print_json(answer)
    elif arguments.explain:
        print_explained(answer)
    else:
        print_results(answer)
    if "decision" in answer and not arguments.json:
        print_decision(answer["decision"])
    return 0


def _options(arguments: argparse.Namespace) -> "RankOptions":
    """Return what is asked of the service, or of what stands in for it; raises UsageError for a filter that is none."""
    options: RankOptions = {"top_k": arguments.top_k, "rerank": arguments.rerank or bool(arguments.reranker)}
    if arguments.answer_if is not None:
        options["answer_if"] = arguments.answer_if
    if arguments.filter is not None:
        options["filter"] = json_object("--filter", arguments.filter)
    return options


def print_results(answer: dict[str, Any]) -> None:
    """Print an answer's replies, best first; where the cross-encoder has read some, with each part of the score."""
    results = answer["results"]
    parts = [name for name in ("cross", "vector", "lexical") if any(name in result["scores"] for result in results)]
    if "cross" in parts:
        print("   " + "".join(f"{name:>10}" for name in parts))
    for result in results:
        columns = [result["scores"].get(name) for name in parts] if "cross" in parts else [result["score"]]
        scores = "  ".join(f"{'-':>8}" if score is None else f"{score:8.3f}" for score in columns)
        print(f"{result['rank']:3}  {scores}  {harmless(result['text'])}")


def print_decision(decision: dict[str, Any]) -> None:
    """Print whether the first reply is an answer, and how probable it is that it is right."""
    probability, threshold = decision["probability"], decision["threshold"]
    text = "is not known" if probability is None else f"{probability:.3f}"
    if decision.get("reason") == "language":
        text += ": the pool is in none of the model's languages"
    print(f"answer: {'yes' if decision['answer'] else 'no'} (probability {text}, threshold {threshold:g})")


def _from_service(arguments: argparse.Namespace, options: "RankOptions") -> dict[str, Any]:
    with service_of(arguments) as service:
        ranking = service.rank(arguments.turns, **options)
        answer = ranking.model_dump(mode="json", exclude_unset=True)
        if arguments.explain and ranking.results:
            to_tell = to_explain(arguments.turns, answer, crossed=arguments.rerank)
            answer["explanation"] = service.explain(**to_tell).model_dump(mode="json")
    return answer


def to_explain(turns: Sequence[str], answer: dict[str, Any], crossed: bool) -> dict[str, Any]:
    """Return the body of `POST /explain` for the first replies of a ranking."""
    candidates = [{"id": result["id"]} for result in answer["results"][:MOST_EXPLAINED]]
    of = {"context": [*turns], "candidates": candidates, "generation": answer["generation"]}
    return {**of, "codes": 0, "cross": "turns" if crossed else None}


def print_explained(answer: dict[str, Any]) -> None:
    """Print a ranking's first replies, and beneath each what speaks for it and against it."""
    explanation = answer.get("explanation")
    if explanation is None:
        print("there is nothing to explain")
        return
    for left_out in explanation["unexplained"]:
        print(f"not explained: {left_out['part'].replace('_', ' ')} ({left_out['why']})")
    tokens = explanation["context"]["tokens"]
    by_id = {each["id"]: each for each in explanation["candidates"]}
    alone = len(by_id) == 1
    for result in answer["results"]:
        print(f"{result['rank']:3}  {result['score']:8.3f}  {harmless(result['text'])}")
        if (candidate := by_id.get(result["id"])) is not None:
            for title, numbers in _lines(tokens, candidate, alone):
                print(f"               {title:<9} {numbers}")


def _lines(tokens: Sequence[dict[str, Any]], candidate: dict[str, Any], alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the lines beneath a reply: what they are about, and the numbers."""
    numbers = candidate["tokens"] if alone else candidate["relative"]
    if numbers is not None:
        yield "score" if alone else "relative", _strip(_summed(tokens, numbers))
    if candidate["effective_codes"] is not None and candidate["effective_codes"] > 1:
        yield "codes", f"{candidate['effective_codes']:.0f} took part"
    if candidate["words"] is not None and candidate["words"]["terms"]:
        terms = [(each["word"] or each["feature"], each["value"]) for each in candidate["words"]["terms"]]
        yield "words", _strip(terms)
    if candidate["cross"] is not None:
        drops = [
            (f"fact {unit['persona'] + 1}" if unit["turn"] is None else f"turn {unit['turn'] + 1}", unit["drop"])
            for unit in candidate["cross"]["units"]
        ]
        yield "reranker", _strip(drops)


def _summed(tokens: Sequence[dict[str, Any]], numbers: Sequence[float]) -> list[tuple[str, float]]:
    """Add up the numbers of each word, in the order of the context; special tokens go under their names."""
    words: dict[object, tuple[str, float]] = {}
    for token, number in zip(tokens, numbers, strict=True):
        key = token["text"] if token["word"] is None else token["word"]
        text, value = words.get(key, ("", 0.0))
        words[key] = (text if token["word"] is None and text else text + token["text"], value + number)
    return [*words.values()]


def _strip(parts: Sequence[tuple[str, float]]) -> str:
    """Write parts with their numbers, the largest ones in their order, and the sum of the others."""
    largest = sorted(range(len(parts)), key=lambda at: -abs(parts[at][1]))[:_MOST_WORDS]
    shown = [f"{parts[at][0]} {_signed(parts[at][1])}" for at in sorted(largest)]
    others = [value for at, (_, value) in enumerate(parts) if at not in largest]
    return "  ".join([*shown, *([f"{len(others)} others {_signed(sum(others))}"] if others else [])])


def _signed(number: float) -> str:
    text = f"{number:+.2f}"
    if not (sys.stdout.isatty() and "NO_COLOR" not in os.environ):
        return text
    return f"{_FOR if number > 0 else _AGAINST}{text}{_PLAIN}"


def from_store(
    root: Path, turns: list[str], options: "RankOptions", reranker: str | None = None, explain: bool = False
) -> dict[str, Any]:
    """Rank over a store's active generation in this process; returns what the service answers, without timings.

    `options`: what the service would be asked. `explain` adds what the service answers to `POST /explain` for the first
    replies, as `explanation`.

    What the service would refuse, a store without a generation and a reranker that is none are refused before torch is
    imported.
    """
    from pydantic import ValidationError

    from polyrank.index_builder.store.generation_store import GenerationStore
    from polyrank.model.checkpoint.lookup import require_pair_scorer
    from polyrank.service.api.findings import refusal
    from polyrank.service.api.requests import ExplainIn, RankIn
    from polyrank.service.client.attempts import in_json

    try:
        body = RankIn.model_validate_json(in_json({"context": turns, **options}))
    except ValidationError as error:
        raise refusal(error, RankIn) from None
    require_store(root)
    if reranker:
        with of_flag("--reranker "):
            require_pair_scorer(reranker)
    store = GenerationStore(root)
    parts, refusals = store.open_to_serve()
    for which, why in refusals:
        print(f"{which} was passed over: {why}", file=sys.stderr)
    import asyncio

    from polyrank.model.inference import disk_cache
    from polyrank.model.rankers.load import load, load_reranker
    from polyrank.model.text.reading import finish
    from polyrank.service.http.native import explain as explaining
    from polyrank.service.http.native.rank import answer_of, to_request, with_unread
    from polyrank.service.live.models import VectorScorer
    from polyrank.service.live.searchable import Opener
    from polyrank.service.observe.metrics import Metrics
    from polyrank.service.ranking.engine import Engine
    from polyrank.service.ranking.explaining import explain as explain_scores
    from polyrank.service.ranking.here import serve
    from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
    from polyrank.service.scheduling.stages import Journey
    from polyrank.service.settings import Settings

    settings = Settings(store={"": store.root})
    request = to_request(body, settings)
    disk = disk_cache.configured(os.environ)
    # As a server would choose, because compiling and measuring are kept. Without a cache the reference, which needs
    # neither: one request would not repay them.
    runner = chosen_runner() if disk else reference_runner(os.environ.get(BACKEND), os.environ.get(PRECISION))
    runs = ("cpu", *runner, disk)

    def warm_up(ranker: VectorScorer) -> None:  # else compiling would count as the request's time
        ranker.represent_context_batch([finish(ranker.context_steps(request.conversation))[0]])

    opener = Opener(lambda *_: None, None, lambda name: load(name, *runs), warm_up=warm_up)
    serving = serve(opener, parts, store.updates.of(parts[0].manifest))
    scorer = load_reranker(reranker, *runs) if reranker else None
    if scorer is not None and scorer.evidence is not None and serving.generation.words is None:
        print(f"{reranker} {words_left_out(serving.generation.manifest.model.name)}", file=sys.stderr)
    runtime = Runtime(RuntimeSettings(), Metrics(), scorer)
    deadline = time.monotonic() + _TIMEOUT_SECONDS

    async def answered() -> dict[str, Any]:
        outcome = await Engine(runtime).rank(serving, request, Journey(deadline))
        cut = with_unread(outcome.truncation, body, request.conversation)
        answer = answer_of(serving, replace(outcome, truncation=cut))
        if explain and answer["results"]:
            explain_body = ExplainIn.model_validate(to_explain(turns, answer, crossed=reranker is not None))
            todo = explaining.to_request(explain_body, settings)
            explanation = await explain_scores(runtime, serving, todo, Journey(deadline))
            answer["explanation"] = explaining.answer_of(serving, explanation, explain_body, todo.ranking.conversation)
        return answer

    try:
        return asyncio.run(answered())
    finally:
        runtime.close()
