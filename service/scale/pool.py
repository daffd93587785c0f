"""Asks the parts of a set for one request, and makes one answer of theirs. For the event loop's thread."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.texts import KnownTexts
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.scale.slots import slots_of
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.caching.redis_server import Budget
from polyrank.service.errors import DeadlineExceeded
from polyrank.service.ranking.parts import (
    Known,
    PoolFetched,
    PoolFound,
    SetServing,
    most_of,
    shards_missing,
    share_without,
)
from polyrank.service.ranking.stages import ANSWER_SECONDS
from polyrank.service.ranking.values import RankRequest
from polyrank.service.scale.asking import Asking, PartMissing
from polyrank.service.scale.calls import Holding, PartFound, PartQuery, PartStored, Wanted
from polyrank.service.scale.merge import merged

# Searches that share a call.
MOST_SHARED = 16
# Parts send the candidates along with what they find if all of them send so many at most: that spares a second call.
MOST_SENT_ALONG = 128


class WatchPool(Protocol):
    """Is told what happens."""

    def observe_searched(self, share: float) -> None:
        """The parts that answered a search hold this share of the pool."""


class _Shared:
    """The searches of one part of a set: those that wait share a call."""

    def __init__(self, asking: Asking, holding: Holding) -> None:
        self._asking, self._holding = asking, holding
        self._waiting: list[tuple[PartQuery, float, asyncio.Future[PartFound]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def search(self, query: PartQuery, deadline: float) -> PartFound:
        """Find the best candidates of the part; raises PartMissing."""
        own: asyncio.Future[PartFound] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, deadline, own))
        self._send()
        try:
            async with asyncio.timeout(_seconds(deadline)):
                return await own
        except TimeoutError:
            raise PartMissing(f"part {self._holding.part}: no answer in time") from None

    def _send(self) -> None:
        # One call more than there are replicas, so that none of them waits for its next call.
        while self._waiting and len(self._calls) <= self._asking.replicas(self._holding.part):
            batch = [each for each in self._waiting[:MOST_SHARED] if not each[2].done()]
            del self._waiting[:MOST_SHARED]
            if batch:
                call = asyncio.get_running_loop().create_task(self._call(batch))
                self._calls.add(call)
                call.add_done_callback(self._sent)

    def _sent(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._send()

    async def _call(self, batch: Sequence[tuple[PartQuery, float, "asyncio.Future[PartFound]"]]) -> None:
        queries = [query for query, _, _ in batch]
        deadlines = [deadline for _, deadline, _ in batch]

        def arguments() -> tuple[Any, ...]:
            return self._holding, queries, [_left(deadline) for deadline in deadlines]

        try:
            found = await self._asking.ask(self._holding.part, "search", arguments, max(deadlines))
        except BaseException as error:  # whatever it is, nobody shall wait any longer
            for _, _, own in batch:
                if not own.done():
                    own.set_exception(PartMissing(str(error) or f"part {self._holding.part}: the server ends"))
            if not isinstance(error, PartMissing):
                raise
        else:
            for (_, _, own), each in zip(batch, found, strict=True):
                if not own.done():
                    own.set_result(each)


class Pool:
    """See `PoolParts`.

    Args:
        asking: the replicas.
        min_searched: an answer of parts that hold less than this share of the pool is refused.
        watch: is told what happens.
    """

    def __init__(self, asking: Asking, min_searched: float, watch: WatchPool) -> None:
        self._asking, self._min_searched, self._watch = asking, min_searched, watch
        self._shared: dict[Holding, _Shared] = {}

    def forget(self, set_id: str) -> None:
        """Let go of what belongs to a set that is served no more. May be called from any thread."""
        known = [*self._shared.items()]  # a copy: the event loop may add to it meanwhile
        self._shared = {holding: each for holding, each in known if holding.set_id != set_id}

    def searched(self, serving: SetServing, missing: Collection[int]) -> float:
        """See `PoolParts.searched`."""
        share = share_without(serving, missing)
        if missing and (share < self._min_searched or len(missing) == len(serving.made.parts)):
            raise shards_missing(serving, missing)
        return share

    async def search(self, serving: SetServing, request: RankRequest, codes: NDArray[np.float32]) -> PoolFound:
        """See `PoolParts.search`."""
        deadline = most_of(request.deadline)
        asked = replace(request, deadline=math.inf, budget=Budget())
        parts = range(len(serving.made.parts))
        query = PartQuery(asked, codes, serving.snapshot.revision, len(parts) * request.depth <= MOST_SENT_ALONG)
        found = await self._of_each(parts, lambda part: self._of(serving, part).search(query, deadline))
        if not found and time.monotonic() >= deadline:
            raise DeadlineExceeded("before a shard answered")
        missing = [part for part in parts if part not in found]
        self._watch.observe_searched(self.searched(serving, missing))
        return merged(found, request.depth, missing)

    async def fetch(
        self, serving: SetServing, places: NDArray[np.int64], with_vectors: bool, deadline: float
    ) -> PoolFetched:
        """See `PoolParts.fetch`."""
        of_part = {part: np.flatnonzero(places[:, 0] == part) for part in np.unique(places[:, 0]).tolist()}

        async def stored(part: int) -> PartStored:
            wanted = Wanted(serving.snapshot.revision, places[of_part[part], 1], (), not with_vectors, with_vectors)
            return await self._stored(serving, part, wanted, deadline)

        found = await self._of_each(of_part, stored)
        positions = np.concatenate([np.empty(0, np.int64), *(of_part[part] for part in found)])
        order = np.argsort(positions)
        return PoolFetched(positions[order], _candidates(found, order), _made(found, order))

    async def known(
        self, serving: SetServing, ids: Sequence[str], conversation: Conversation | None, deadline: float
    ) -> Known:
        """See `PoolParts.known`."""
        ends = np.array([part.end_slot for part in serving.made.parts])
        parts = np.searchsorted(ends, slots_of(ids), side="right")
        of_part = {part: np.flatnonzero(parts == part) for part in np.unique(parts).tolist()}

        async def stored(part: int) -> PartStored:
            asked = tuple(ids[at] for at in of_part[part].tolist())
            wanted = Wanted(serving.snapshot.revision, None, asked, True, True, conversation)
            return await self._stored(serving, part, wanted, deadline)

        found = await self._of_each(of_part, stored)
        missing = [part for part in of_part if part not in found]
        self.searched(serving, missing)
        positions = np.concatenate(
            [np.empty(0, np.int64), *(of_part[part][each.positions] for part, each in found.items())]
        )
        if missing and not len(positions):
            raise shards_missing(serving, missing)
        order = np.argsort(positions)
        words = [each.words for each in found.values() if each.words is not None]
        return Known(
            positions[order],
            _candidates(found, order),
            _made(found, order) or Representations.none(serving.made.dim, serving.made.late),
            np.concatenate(words)[order] if words else None,
            max((each.longest for each in found.values()), default=0.0),
            frozenset(missing),
        )

    async def stored_texts(self, serving: SetServing, texts: Sequence[str], deadline: float) -> KnownTexts:
        """See `PoolParts.stored_texts`."""
        wanted = Wanted(serving.snapshot.revision, None, (), False, True, None, tuple(texts))
        parts = range(len(serving.made.parts))
        found = await self._of_each(parts, lambda part: self._stored(serving, part, wanted, deadline))
        made = [each.made for each in found.values() if each.made is not None]
        none = Representations.none(serving.made.dim, serving.made.late)
        positions, first = np.unique(
            np.concatenate([np.empty(0, np.int64), *(each.positions for each in found.values())]), return_index=True
        )
        return KnownTexts(positions, Representations.join([*made, none]).take(first) if len(first) else none)

    async def _stored(self, serving: SetServing, part: int, wanted: Wanted, deadline: float) -> PartStored:
        holding = Holding(serving.made.id, serving.made.parts[part].name)
        end = deadline - ANSWER_SECONDS
        stored: PartStored = await self._asking.ask(holding.part, "stored", lambda: (holding, wanted), end)
        return stored

    def _of(self, serving: SetServing, part: int) -> _Shared:
        holding = Holding(serving.made.id, serving.made.parts[part].name)
        return self._shared.setdefault(holding, _Shared(self._asking, holding))

    async def _of_each(self, parts: Iterable[int], ask: Callable[[int], Any]) -> dict[int, Any]:
        """Ask parts at the same time; returns what those say that answer."""
        asked = list(parts)
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        found = {}
        for part, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[part] = answer
            elif not isinstance(answer, PartMissing):
                raise answer
        return found


def _candidates(found: Mapping[int, PartStored], order: NDArray[np.int64]) -> list[Candidate]:
    candidates = [candidate for each in found.values() for candidate in each.candidates]
    return [candidates[at] for at in order.tolist()] if candidates else []


def _made(found: Mapping[int, PartStored], order: NDArray[np.int64]) -> Representations | None:
    made = [each.made for each in found.values() if each.made is not None]
    return Representations.join(made).take(order) if made else None


def _seconds(deadline: float) -> float | None:
    return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())


def _left(deadline: float) -> float:
    return deadline - time.monotonic()
