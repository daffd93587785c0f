"""The use case: a context and candidates in, a ranking out. Knows no HTTP; runs in the thread that owns the model."""

import math
import time

from model import Truncation
from service import retrieval, shortlist
from service.errors import DeadlineExceeded, InferenceFailed, NotConfigured
from service.reranking import Reranker
from service.serving import Serving
from service.values import Place, Ranked, RankRequest, Shortlist, Stages

CACHE_UNAVAILABLE = "cache_unavailable"
RERANK_SKIPPED = "rerank_skipped_deadline"


class Ranking:
    """Ranks requests over whichever generation each of them began with; for one thread at a time.

    Args:
        reranker: for requests that ask for a second look.
        threads: of FAISS; None leaves it to FAISS.
    """

    def __init__(self, reranker: Reranker | None = None, threads: int | None = None) -> None:
        self.reranker = reranker
        self._threads = threads

    def rank(self, serving: Serving, request: RankRequest) -> Ranked:
        """Rank a request.

        Raises:
            UnknownCandidates: the generation holds none of the ids sent.
            NotConfigured: a second look is asked for, and no cross-encoder is loaded.
            DeadlineExceeded: the time was over before there was anything to answer with.
            InferenceFailed: the model gave something that is not a score.
        """
        if request.top_n is not None and self.reranker is None:
            raise NotConfigured("rerank: no cross-encoder is loaded; start the server with --reranker MODEL")
        if time.monotonic() > request.deadline:
            raise DeadlineExceeded("waiting for the model")
        stages = Stages()
        with stages.timed("tokenize"):
            context, truncation = serving.ranker.tokenize_context(request.conversation)
        encoded = shortlist.encode(serving, request, context, stages)
        if request.candidates is not None:
            found = shortlist.over_given(serving, request, encoded, stages)
        else:
            found = retrieval.over_generation(serving, request, encoded, stages, self._threads)
        truncation = Truncation(truncation.turns, truncation.tokens, found.cut)
        with stages.timed("rerank"):
            places, pairs_cut, degraded = self._second_look(request, found)
        return Ranked(
            places=_finite(places[: request.top_k]),
            exact=found.exact,
            scored=found.scored,
            missing_ids=found.missing_ids,
            degraded=degraded if found.cache_available else [CACHE_UNAVAILABLE, *degraded],
            truncation=_most(truncation, pairs_cut),
            seconds=stages.seconds,
            plan=found.plan,
        )

    def _second_look(self, request: RankRequest, found: Shortlist) -> tuple[list[Place], Truncation, list[str]]:
        """The shortlist with its first `top_n` in the cross-encoder's order; what was cut; what was left out."""
        places = found.places
        first = places[: request.top_n or 0]
        if self.reranker is None or not first:
            return places, Truncation(), []
        if not self.reranker.fits(len(first), request.deadline):
            return places, Truncation(), [RERANK_SKIPPED]
        reranked, cut = self.reranker.rerank(request.conversation, first)
        return reranked + places[len(first) :], cut, []


def _most(one: Truncation, other: Truncation) -> Truncation:
    """What the two encoders did not see, whichever saw less."""
    return Truncation(max(one.turns, other.turns), max(one.tokens, other.tokens), max(one.candidates, other.candidates))


def _finite(places: list[Place]) -> list[Place]:
    if not all(math.isfinite(place.late) for place in places):
        raise InferenceFailed("a score is not finite")
    return places
