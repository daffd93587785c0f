"""Ranks over a store in this process, without a service."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.kind import require_pair_scorer
from polyrank.model.inference import disk_cache
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.runners import Runner
from polyrank.service import BACKEND, PRECISION
from polyrank.service.cli.explained import to_explain
from polyrank.service.cli.files import require_store
from polyrank.service.cli.models import chosen_runner, reference_runner, usage, words_left_out

_TIMEOUT_SECONDS = 30.0


def from_store(
    root: Path, turns: list[str], top_k: int, reranker: str | None = None, explain: bool = False
) -> dict[str, Any]:
    """Rank over a store's active generation in this process; returns what the service answers, without timings.

    `explain` adds what the service answers to `POST /explain` for the first replies, as `explanation`.

    A store without a generation and a reranker that is none are refused before torch is imported.
    """
    require_store(root)
    if reranker:
        with usage("--reranker "):
            require_pair_scorer(reranker)
    store = GenerationStore(root)
    generation, refused = store.open_to_serve()
    for which, why in refused:
        print(f"{which} was passed over: {why}", file=sys.stderr)
    return _ranked(store, generation, turns, top_k, reranker, explain)


def _ranked(
    store: GenerationStore, generation: Generation, turns: list[str], top_k: int, reranker: str | None, explain: bool
) -> dict[str, Any]:
    from polyrank.model.rankers.load import load, load_cross
    from polyrank.model.text.assembly import Conversation
    from polyrank.model.text.reading import finish
    from polyrank.service.api.requests import TOP_N, ExplainIn
    from polyrank.service.http.native import explain as explaining
    from polyrank.service.http.native.rank import answer_of
    from polyrank.service.live.models import LateScorer
    from polyrank.service.live.serving import Opener
    from polyrank.service.observe.metrics import Metrics
    from polyrank.service.ranking.engine import Engine
    from polyrank.service.ranking.explaining import explain as explain_scores
    from polyrank.service.ranking.local_part import serve
    from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
    from polyrank.service.ranking.stages import Journey
    from polyrank.service.ranking.values import RankRequest
    from polyrank.service.settings import Settings

    conversation = Conversation.of(turns)
    disk = disk_cache.configured(os.environ)
    runs = ("cpu", *_runner(disk), disk)

    def warm_up(ranker: LateScorer) -> None:  # else compiling would count as the request's time
        ranker.represent_context_batch([finish(ranker.context_steps(conversation))[0]])

    opener = Opener(lambda *_: None, None, lambda name: load(name, *runs), warm_up=warm_up)
    serving = serve(opener, generation, store.updates.of(generation.manifest))
    scorer = load_cross(reranker, *runs) if reranker else None
    if scorer is not None and scorer.evidence is not None and serving.generation.words is None:
        print(f"{reranker} {words_left_out(serving.generation.manifest.model.name)}", file=sys.stderr)
    runtime = Runtime(RuntimeSettings(), Metrics(), scorer)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    request = RankRequest(conversation=conversation, top_k=top_k, top_n=TOP_N if reranker else None)

    async def answer() -> dict[str, Any]:
        ranked = answer_of(serving, await Engine(runtime).rank(serving, request, Journey(deadline)))
        if explain and ranked["results"]:
            asked = ExplainIn.model_validate(to_explain(turns, ranked, crossed=reranker is not None))
            todo = explaining.to_request(asked, Settings(store=store.root))
            explained = await explain_scores(runtime, serving, todo, Journey(deadline))
            ranked["explanation"] = explaining.answer_of(serving, explained, asked)
        return ranked

    try:
        return asyncio.run(answer())
    finally:
        runtime.close()


def _runner(disk: DiskCache | None) -> Runner:
    """Return what is to run the models: what a server would choose, because compiling and measuring are kept.

    Without a cache the reference, which needs neither: one request would not repay them.
    """
    return chosen_runner() if disk else reference_runner(os.environ.get(BACKEND), os.environ.get(PRECISION))
