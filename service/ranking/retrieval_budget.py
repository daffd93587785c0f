"""How many candidates there is time to retrieve."""

import math
import time
from dataclasses import replace

from polyrank.service.live.serving import Serving
from polyrank.service.ranking.rates import Rate
from polyrank.service.ranking.values import RankRequest

# Retrieval may take this share of the time left; fewer than so many candidates are never retrieved.
SHARE_OF_TIME = 0.5
FEWEST = 32
# A search costs as much as so many candidates before it has found one.
FIXED = 200


class RetrievalBudget:
    """Learns what searching an index takes."""

    def __init__(self) -> None:
        self._rate = Rate()

    def affordable(self, serving: Serving, request: RankRequest) -> RankRequest:
        """The request with as many candidates to retrieve as there is time for."""
        if serving.scans_all or request.exact or math.isinf(request.deadline):
            return request
        seconds = SHARE_OF_TIME * max(0.0, request.deadline - time.monotonic())
        predicted = self._rate.predict(_units(request))
        if predicted <= seconds:
            return request
        self._rate.doubt()
        units = int(_units(request) * seconds / predicted)
        return replace(request, retrieve_k=min(request.retrieve_k, max(request.depth, FEWEST, units - FIXED)))

    def learn(self, request: RankRequest, seconds: float) -> None:
        """Take in how long an index was searched."""
        self._rate.learn(_units(request), seconds)


def _units(request: RankRequest) -> int:
    return FIXED + max(request.retrieve_k, request.depth)
