"""The client of a running server, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2
import numpy as np
from numpy.typing import NDArray

from polyrank.service.client import answers, calls
from polyrank.service.client.attempts import Attempts, options
from polyrank.service.client.failures import JobEnded, Refused

T = TypeVar("T")


class AsyncClient:
    """Calls a running server from asyncio, as `Client` does; use it in an `async with` block, or close it.

    Arguments, repetition and errors are those of `Client`. `transport` is an asynchronous one of httpx2.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        max_retries: int = 2,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s, self._max_retries = timeout_s, max_retries
        self._http = httpx2.AsyncClient(**options(url, api_key), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def rank(self, context: calls.Context, **options: Unpack[calls.RankOptions]) -> answers.Ranking:
        """Rank replies, those sent as `candidates` or the served ones, for a conversation, oldest turn first."""
        return await self._do(calls.rank(context, options))

    async def explain(
        self, context: calls.Context, candidates: calls.Documents, **options: Unpack[calls.ExplainOptions]
    ) -> answers.ScoresExplained:
        """Tell where the scores of candidates come from, 1 to 10 of them: texts, or ids as `{"id": …}`."""
        return await self._do(calls.explain(context, candidates, options))

    async def rank_batch(
        self, requests: Sequence[Mapping[str, Any]], *, timeout_ms: int | None = None
    ) -> list[answers.Ranking | Refused]:
        """Rank several bodies of `POST /rank` in one call; what is refused is returned in its place, not raised."""
        return await self._do(calls.rank_batch(requests, timeout_ms))

    async def rerank(
        self, query: str, documents: calls.Documents, **options: Unpack[calls.RerankOptions]
    ) -> list[answers.RerankedDocument]:
        """Order documents by the server's reranker, or by its model where it has none; the best first."""
        return await self._do(calls.rerank(query, documents, options))

    async def classify(
        self, context: calls.Context, texts: Sequence[str], **options: Unpack[calls.ClassifyOptions]
    ) -> answers.Classification:
        """Tell which of the served classifier's classes each text is; `context` may be empty for single texts."""
        return await self._do(calls.classify(context, texts, options))

    async def embed(self, texts: Sequence[str], *, timeout_ms: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of texts as candidates, (N, D), of length 1."""
        return await self._do(calls.embed(texts, timeout_ms))

    async def candidate(self, candidate_id: str) -> answers.StoredCandidate:
        """Return a stored candidate; raises NotThere if there is none."""
        return await self._do(calls.candidate(candidate_id))

    async def candidates(
        self, filter: Mapping[str, Any] | None = None, page: int = 1000
    ) -> AsyncIterator[answers.StoredCandidate]:
        """Yield all stored candidates that pass the filter, fetched page by page."""
        after: str | None = None
        while True:
            found = await self._do(calls.candidates(after, page, filter))
            for each in found.candidates:
                yield each
            if (after := found.next) is None:
                return

    async def upsert(self, candidates: Iterable[Mapping[str, Any]]) -> answers.Upserted:
        """Add candidates (`text`, `id`, `metadata`), or replace those with the same ids; searchable on return."""
        return await self._do(calls.upsert(candidates))

    async def delete(self, ids: Iterable[str]) -> answers.Deleted:
        """Remove candidates; ids that are not there are no error."""
        return await self._do(calls.delete(ids))

    async def index(self) -> answers.ServedIndex:
        """Return what is served, what is kept, and the job that runs."""
        return await self._do(calls.index())

    async def rebuild(self, **options: Unpack[calls.RebuildOptions]) -> answers.IndexJob:
        """Start a rebuild from a `pool` under the server's pool root, or from `candidates`; `watch` follows it."""
        return await self._do(calls.rebuild(options))

    async def job(self, job_id: str) -> answers.IndexJob:
        """Return how far a job is."""
        return await self._do(calls.job(job_id))

    async def jobs(self, limit: int = 20) -> list[answers.IndexJob]:
        """Return the latest jobs, newest first."""
        return await self._do(calls.jobs(limit))

    async def watch(self, job_id: str, every_s: float = 1.0) -> AsyncIterator[answers.IndexJob]:
        """Yield a job's state every so many seconds until it has ended; raises JobEnded if it did not succeed."""
        while True:
            job = await self.job(job_id)
            yield job
            if job.is_finished:
                break
            await asyncio.sleep(every_s)
        if job.state != "succeeded":
            raise JobEnded(f"job {job.id} {job.state}: {job.error or 'no reason was given'}")

    async def cancel(self, job_id: str) -> answers.IndexJob:
        """Stop a job and remove what it has built."""
        return await self._do(calls.cancel(job_id))

    async def activate(self, generation: str) -> answers.ServedIndex:
        """Switch to a generation."""
        return await self._do(calls.activate(generation))

    async def rollback(self) -> answers.ServedIndex:
        """Switch back to the generation that was active before."""
        return await self._do(calls.rollback())

    async def trial(self, generation: str) -> answers.ServedIndex:
        """Load a generation beside the live one; `generation="trial"` of `rank` and `explain` asks for it."""
        return await self._do(calls.trial(generation))

    async def end_trial(self) -> answers.ServedIndex:
        """End the trial, if there is one."""
        return await self._do(calls.end_trial())

    async def _do(self, call: calls.Call[T]) -> T:
        attempts = Attempts(call, self._timeout_s, self._max_retries)
        while True:
            try:
                response = await self._http.request(**attempts.next())
            except httpx2.RequestError as error:
                pause = attempts.after_failure(error)
            else:
                if response.is_success:
                    return attempts.read(response)
                pause = attempts.after_refusal(response)
            await asyncio.sleep(pause)
