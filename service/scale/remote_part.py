"""A part that shards hold: its replicas are asked. For the event loop's thread.

Every call names the generation and the revision. A part that gives no answer in time is missing.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import KnownTexts
from polyrank.index_builder.generation.slots import Slots
from polyrank.index_builder.store.membership import Counts, Membership
from polyrank.index_builder.store.pages import Page
from polyrank.index_builder.store.unmatched import Looked
from polyrank.index_builder.store.update_log import Update
from polyrank.model.representations import Representations
from polyrank.service.live.searchable import SearchStatus
from polyrank.service.ranking.parts import PartMissing, Stock, Wanted
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Hits, PoolQuery
from polyrank.service.scale.calls import Holding, PartQuery, PartStored
from polyrank.service.scale.replica_choice import ReplicaChoice
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.stages import Journey

Rows = NDArray[np.int64]
# Searches that share a call.
MOST_SHARED = 16


class Calls:
    """The calls for one part of a generation; the searches that wait share one."""

    def __init__(self, choice: ReplicaChoice, holding: Holding) -> None:
        self._choice, self._holding = choice, holding
        self._waiting: list[tuple[PartQuery, float, asyncio.Future[Hits]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, journey: Journey, *arguments: Any) -> Any:
        """Call a method of a shard that holds the part; raises PartMissing."""
        end = journey.before_answer().deadline
        return await self._choice.ask(self._holding.part, method, lambda: (self._holding, *arguments), end)

    async def search(self, query: PartQuery, deadline: float) -> Hits:
        """Find the best candidates of the part; raises PartMissing."""
        own: asyncio.Future[Hits] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, deadline, own))
        self._send()
        try:
            async with asyncio.timeout(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())):
                return await own
        except TimeoutError:
            raise PartMissing(f"part {self._holding.part}: no answer in time") from None

    def _send(self) -> None:
        # One call more than there are replicas, so that none of them waits for its next call.
        while self._waiting and len(self._calls) <= self._choice.replicas(self._holding.part):
            batch = [each for each in self._waiting[:MOST_SHARED] if not each[2].done()]
            del self._waiting[:MOST_SHARED]
            if batch:
                call = asyncio.get_running_loop().create_task(self._call(batch))
                self._calls.add(call)
                call.add_done_callback(self._sent)

    def _sent(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._send()

    async def _call(self, batch: Sequence[tuple[PartQuery, float, "asyncio.Future[Hits]"]]) -> None:
        queries = [query for query, _, _ in batch]
        deadlines = [deadline for _, deadline, _ in batch]

        def arguments() -> tuple[Any, ...]:
            return self._holding, queries, [deadline - time.monotonic() for deadline in deadlines]

        try:
            replies = await self._choice.ask(self._holding.part, "search", arguments, max(deadlines))
        except BaseException as error:  # whatever it is, nobody shall wait any longer
            for _, _, own in batch:
                if not own.done():
                    own.set_exception(PartMissing(str(error) or f"part {self._holding.part}: the server ends"))
            if not isinstance(error, PartMissing):
                raise
        else:
            for (_, _, own), each in zip(batch, replies, strict=True):
                if not own.done():
                    own.set_result(each)


@dataclass(frozen=True, slots=True, eq=False)
class RemotePart:
    """A part that shards hold; `members`: which candidates are in it at the latest revision."""

    is_here: ClassVar[bool] = False

    slots: Slots
    status: SearchStatus
    calls: Calls
    members: Membership
    counts: Counts
    revision: int

    @property
    def search_status(self) -> SearchStatus:
        """How shards find candidates."""
        return self.status

    @property
    def has_matrix(self) -> bool:
        """Shards search what is on the store's disk."""
        return True

    def updated(self, updates: Sequence[Update]) -> "RemotePart":
        self.members.update(updates)
        return replace(self, counts=self.members.counts(), revision=updates[-1].revision)

    def missing(self, ids: Sequence[str]) -> list[str]:
        return self.members.missing(ids)

    def texts_here(self, texts: Sequence[str]) -> KnownTexts | None:
        return None

    async def search(self, runtime: Runtime, query: PoolQuery, context: ContextOnce, journey: Journey) -> Hits:
        encoded = await context.encoded(journey)
        with journey.timed("retrieve"):
            part_query = PartQuery(self.revision, query, encoded.encoding.codes)
            return await self.calls.search(part_query, journey.before_last().deadline)

    async def read(self, runtime: Runtime, request: Wanted, journey: Journey) -> Stock:
        """See `Part.read`; what is wanted is fetched at once."""
        with journey.timed("fetch"):
            stored: PartStored = await self.calls.ask("stored", journey, self.revision, request)
        return Stock(
            positions=stored.positions,
            words=stored.words,
            longest=stored.longest,
            candidates=lambda places: [stored.candidates[at] for at in places.tolist()],
            gather=lambda places, first_only=False: (
                Representations(stored.vectors.first[places]) if first_only else stored.vectors.take(places),
                True,
            ),
        )

    async def page(
        self, runtime: Runtime, first: int, limit: int, filter_: Mapping[str, Any] | None, journey: Journey
    ) -> Page:
        answer: Page = await self.calls.ask("page", journey, self.revision, first, limit, filter_)
        return answer

    async def looked(self, runtime: Runtime, filter_: Mapping[str, Any], journey: Journey) -> Looked:
        answer: Looked = await self.calls.ask("looked", journey, self.revision, filter_)
        return answer
