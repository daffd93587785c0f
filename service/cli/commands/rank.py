"""`polyrank rank`: one ranking, from a running service or straight from a store."""

import argparse
import asyncio
import http.client
import ipaddress
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.cli.models import BACKEND, PRECISION, reference_runner
from polyrank.service.cli.output import UsageError, print_json, quiet_libraries
from polyrank.service.errors import ServiceUnreachable
from polyrank.service.settings import API_KEY

DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_SECONDS = 30.0


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("rank", help="rank the pool's replies for a conversation")
    parser.add_argument("turns", nargs="+", metavar="TURN", help="the conversation, oldest turn first")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", help=f"a running service; default: {DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY", help=f"the service's; better {API_KEY}: other users see arguments")
    source.add_argument("--store", type=Path, help="a store's directory, no service needed")
    parser.add_argument("--top-k", type=int, default=10, metavar="K", help="default: 10")
    parser.add_argument("--rerank", action="store_true", help="let the service's cross-encoder read the first ones")
    parser.add_argument("--reranker", metavar="MODEL", help="with --store: the cross-encoder that reads the first ones")
    parser.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Rank, and print the best replies."""
    if not 1 <= arguments.top_k <= 1000:
        raise UsageError("--top-k must be from 1 to 1000")
    if arguments.store and arguments.rerank and not arguments.reranker:
        raise UsageError("--rerank with --store needs --reranker MODEL")
    if arguments.reranker and not arguments.store:
        raise UsageError("--reranker goes with --store; a service has its own")
    if arguments.api_key and arguments.store:
        raise UsageError("--api-key goes with a service, not with --store")
    if arguments.store:
        answer = from_store(arguments.store, arguments.turns, arguments.top_k, arguments.reranker)
    else:
        key = _checked(arguments.api_key or os.environ.get(API_KEY, ""))
        answer = _from_service(arguments.url or DEFAULT_URL, arguments.turns, arguments.top_k, arguments.rerank, key)
    if arguments.json:
        print_json(answer)
    else:
        print_results(answer)
    return 0


def print_results(answer: dict[str, Any]) -> None:
    """Print an answer's replies, best first, with both scores where the cross-encoder has read some."""
    results = answer["results"]
    both = any(result["scores"].get("cross") is not None for result in results)
    if both:
        print("        cross      late")
    for result in results:
        columns = [result["scores"].get("cross"), result["scores"]["late"]] if both else [result["score"]]
        scores = "  ".join(f"{'-':>8}" if score is None else f"{score:8.3f}" for score in columns)
        print(f"{result['rank']:3}  {scores}  {result['text']}")


def from_store(root: Path, turns: list[str], top_k: int, reranker: str | None = None) -> dict[str, Any]:
    """Rank over a store's active generation in this process; returns what the service answers, without timings."""
    quiet_libraries()
    from polyrank.model.rankers.load import load, load_cross
    from polyrank.model.text.assembly import Conversation
    from polyrank.service.http.native.responses import answer_of
    from polyrank.service.live.serving import Opener
    from polyrank.service.observe.metrics import Metrics
    from polyrank.service.ranking.engine import Engine, EngineSettings
    from polyrank.service.ranking.values import TOP_N, RankRequest

    if not root.is_dir():
        raise UsageError(f"{root} is no directory; polyrank build makes a store")
    conversation = Conversation.of(turns)
    store = GenerationStore(root)
    generation, refused = store.open_to_serve()
    for which, why in refused:
        print(f"{which} was passed over: {why}", file=sys.stderr)
    # The reference needs no compiling and no measuring, which one request would not repay.
    backend, precision = reference_runner(os.environ.get(BACKEND), os.environ.get(PRECISION))
    serving = Opener(lambda *_: None, None, partial(load, backend=backend, precision=precision)).serve(
        generation, store.updates.of(generation.manifest)
    )
    scorer = load_cross(reranker, backend=backend, precision=precision) if reranker else None
    engine = Engine(EngineSettings(), Metrics(), scorer)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    request = RankRequest(conversation=conversation, deadline=deadline, top_k=top_k, top_n=TOP_N if reranker else None)
    try:
        return answer_of(serving, asyncio.run(engine.rank(serving, request)))
    finally:
        engine.close()


def _checked(key: str) -> str:
    """Return a key that can be sent; the error for one that cannot must not quote it."""
    stripped = key.strip()
    if not stripped.isascii() or not stripped.isprintable():
        raise UsageError(f"the API key (--api-key or {API_KEY}) has characters that no key has")
    return stripped


def _from_service(url: str, turns: list[str], top_k: int, rerank: bool, key: str) -> dict[str, Any]:
    body = json.dumps({"context": turns, "top_k": top_k, "rerank": rerank}).encode()
    try:
        request = urllib.request.Request(
            f"{url.rstrip('/')}/rank", data=body, headers={"Content-Type": "application/json"}
        )
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")  # for this server alone
        with _opener(request.host).open(request, timeout=_TIMEOUT_SECONDS) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise ServiceUnreachable(f"{url}: {_problem(error)}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise ServiceUnreachable(f"{url} does not answer ({why}); is polyrank serve running?") from error
    if not isinstance(answer, dict) or "results" not in answer:
        raise ServiceUnreachable(f"{url} answers, but not as polyrank serve does")
    return answer


def _opener(host: str) -> urllib.request.OpenerDirector:
    """Use the environment's proxies, except for this machine: a proxy would connect to its own."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    try:
        is_here = ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_here = name == "localhost"
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_here else []))


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return f"status {error.code}"
