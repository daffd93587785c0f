"""The clients of a running server: one that waits, one for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2
import numpy as np
from numpy.typing import NDArray

from polyrank.service.api import answers, generations
from polyrank.service.client import calls
from polyrank.service.client.attempts import Attempts, Call, JobEnded, Refused, options

T = TypeVar("T")


class Client:
    """Calls a running server; use it in a `with` block, or close it.

    A call that the server refuses because it is busy is tried again after its Retry-After, at most `max_retries` times;
    a change is repeated only if it was surely not made. Errors are those of `polyrank.service.client.attempts`:
    `Refused` and its kinds carry what the server says, `NoAnswer` means that it could not be reached.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        api_key: if the server has keys.
        timeout_s: of a call with all its attempts, unless it has a `timeout_ms`, which the server is told, too.
        max_retries: attempts after the first.
        transport: of httpx2, for TLS or proxies of one's own.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        max_retries: int = 2,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._timeout_s, self._max_retries = timeout_s, max_retries
        self._http = httpx2.Client(**options(url, api_key), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def rank(self, context: calls.Context, **options: Unpack[calls.RankOptions]) -> answers.RankOut:
        """Rank replies, those sent as `candidates` or the served ones, for a conversation, oldest turn first."""
        return self.do(calls.rank(context, options))

    def explain(
        self, context: calls.Context, candidates: calls.Documents, **options: Unpack[calls.ExplainOptions]
    ) -> answers.ExplainOut:
        """Tell where the scores of candidates come from, 1 to 10 of them: texts, or ids as `{"id": …}`."""
        return self.do(calls.explain(context, candidates, options))

    def rank_batch(
        self, requests: Sequence[Mapping[str, Any]], *, timeout_ms: int | None = None
    ) -> list[answers.RankOut | Refused]:
        """Rank several bodies of `POST /rank` in one call; what is refused is returned in its place, not raised."""
        return self.do(calls.rank_batch(requests, timeout_ms))

    def rerank(
        self, query: str, documents: calls.Documents, **options: Unpack[calls.RerankOptions]
    ) -> list[answers.RerankResultOut]:
        """Order documents by the server's reranker, or by its model where it has none; the best first."""
        return self.do(calls.rerank(query, documents, options))

    def classify(
        self, context: calls.Context, texts: Sequence[str], **options: Unpack[calls.ClassifyOptions]
    ) -> answers.ClassifyOut:
        """Tell which of the served classifier's classes each text is; `context` may be empty for single texts."""
        return self.do(calls.classify(context, texts, options))

    def embed(self, texts: Sequence[str], *, timeout_ms: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of texts as candidates, (N, D), of length 1."""
        return self.do(calls.embed(texts, timeout_ms))

    def candidate(self, candidate_id: str) -> generations.StoredOut:
        """Return a stored candidate; raises NotThere if there is none."""
        return self.do(calls.candidate(candidate_id))

    def candidates(
        self, filter: Mapping[str, Any] | None = None, page: int = 1000
    ) -> Iterator[generations.CandidateOut]:
        """Yield all stored candidates that pass the filter, fetched page by page."""
        after: str | None = None
        while True:
            found = self.do(calls.candidates(after, page, filter))
            yield from found.candidates
            if (after := found.next) is None:
                return

    def upsert(self, candidates: Iterable[Mapping[str, Any]]) -> generations.UpsertedOut:
        """Add candidates (`text`, `id`, `metadata`), or replace those with the same ids; searchable on return."""
        return self.do(calls.upsert(candidates))

    def delete(self, ids: Iterable[str]) -> generations.DeletedOut:
        """Remove candidates; ids that are not there are no error."""
        return self.do(calls.delete(ids))

    def index(self) -> generations.IndexOut:
        """Return what is served, what is kept, and the job that runs."""
        return self.do(calls.index())

    def rebuild(self, **options: Unpack[calls.RebuildOptions]) -> generations.JobOut:
        """Start a rebuild from a `pool` under the server's pool root, or from `candidates`; `watch` follows it."""
        return self.do(calls.rebuild(options))

    def job(self, job_id: str) -> generations.JobOut:
        """Return how far a job is."""
        return self.do(calls.job(job_id))

    def jobs(self, limit: int = 20) -> list[generations.JobOut]:
        """Return the latest jobs, newest first."""
        return self.do(calls.jobs(limit))

    def watch(self, job_id: str, every_s: float = 1.0) -> Iterator[generations.JobOut]:
        """Yield a job's state every so many seconds until it has ended; raises JobEnded if it did not succeed."""
        while True:
            job = self.job(job_id)
            yield job
            if job.is_finished:
                break
            time.sleep(every_s)
        if job.state != "succeeded":
            raise JobEnded(f"job {job.id} {job.state}: {job.error or 'no reason was given'}")

    def cancel(self, job_id: str) -> generations.JobOut:
        """Stop a job and remove what it has built."""
        return self.do(calls.cancel(job_id))

    def activate(self, generation: str) -> generations.IndexOut:
        """Switch to a generation."""
        return self.do(calls.activate(generation))

    def rollback(self) -> generations.IndexOut:
        """Switch back to the generation that was active before."""
        return self.do(calls.rollback())

    def trial(self, generation: str) -> generations.IndexOut:
        """Load a generation beside the live one; `generation="trial"` of `rank` and `explain` asks for it."""
        return self.do(calls.trial(generation))

    def end_trial(self) -> generations.IndexOut:
        """End the trial, if there is one."""
        return self.do(calls.end_trial())

    def do(self, call: Call[T]) -> T:
        """Make a call, one of `calls` or another; returns what it reads of the answer."""
        attempts = Attempts(call, self._timeout_s, self._max_retries)
        while True:
            try:
                response = self._http.request(**attempts.next())
            except httpx2.RequestError as error:
                pause = attempts.after_failure(error)
            else:
                if response.is_success:
                    return attempts.read(response)
                pause = attempts.after_refusal(response)
            time.sleep(pause)


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

    async def rank(self, context: calls.Context, **options: Unpack[calls.RankOptions]) -> answers.RankOut:
        """Rank replies, those sent as `candidates` or the served ones, for a conversation, oldest turn first."""
        return await self.do(calls.rank(context, options))

    async def explain(
        self, context: calls.Context, candidates: calls.Documents, **options: Unpack[calls.ExplainOptions]
    ) -> answers.ExplainOut:
        """Tell where the scores of candidates come from, 1 to 10 of them: texts, or ids as `{"id": …}`."""
        return await self.do(calls.explain(context, candidates, options))

    async def rank_batch(
        self, requests: Sequence[Mapping[str, Any]], *, timeout_ms: int | None = None
    ) -> list[answers.RankOut | Refused]:
        """Rank several bodies of `POST /rank` in one call; what is refused is returned in its place, not raised."""
        return await self.do(calls.rank_batch(requests, timeout_ms))

    async def rerank(
        self, query: str, documents: calls.Documents, **options: Unpack[calls.RerankOptions]
    ) -> list[answers.RerankResultOut]:
        """Order documents by the server's reranker, or by its model where it has none; the best first."""
        return await self.do(calls.rerank(query, documents, options))

    async def classify(
        self, context: calls.Context, texts: Sequence[str], **options: Unpack[calls.ClassifyOptions]
    ) -> answers.ClassifyOut:
        """Tell which of the served classifier's classes each text is; `context` may be empty for single texts."""
        return await self.do(calls.classify(context, texts, options))

    async def embed(self, texts: Sequence[str], *, timeout_ms: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of texts as candidates, (N, D), of length 1."""
        return await self.do(calls.embed(texts, timeout_ms))

    async def candidate(self, candidate_id: str) -> generations.StoredOut:
        """Return a stored candidate; raises NotThere if there is none."""
        return await self.do(calls.candidate(candidate_id))

    async def candidates(
        self, filter: Mapping[str, Any] | None = None, page: int = 1000
    ) -> AsyncIterator[generations.CandidateOut]:
        """Yield all stored candidates that pass the filter, fetched page by page."""
        after: str | None = None
        while True:
            found = await self.do(calls.candidates(after, page, filter))
            for each in found.candidates:
                yield each
            if (after := found.next) is None:
                return

    async def upsert(self, candidates: Iterable[Mapping[str, Any]]) -> generations.UpsertedOut:
        """Add candidates (`text`, `id`, `metadata`), or replace those with the same ids; searchable on return."""
        return await self.do(calls.upsert(candidates))

    async def delete(self, ids: Iterable[str]) -> generations.DeletedOut:
        """Remove candidates; ids that are not there are no error."""
        return await self.do(calls.delete(ids))

    async def index(self) -> generations.IndexOut:
        """Return what is served, what is kept, and the job that runs."""
        return await self.do(calls.index())

    async def rebuild(self, **options: Unpack[calls.RebuildOptions]) -> generations.JobOut:
        """Start a rebuild from a `pool` under the server's pool root, or from `candidates`; `watch` follows it."""
        return await self.do(calls.rebuild(options))

    async def job(self, job_id: str) -> generations.JobOut:
        """Return how far a job is."""
        return await self.do(calls.job(job_id))

    async def jobs(self, limit: int = 20) -> list[generations.JobOut]:
        """Return the latest jobs, newest first."""
        return await self.do(calls.jobs(limit))

    async def watch(self, job_id: str, every_s: float = 1.0) -> AsyncIterator[generations.JobOut]:
        """Yield a job's state every so many seconds until it has ended; raises JobEnded if it did not succeed."""
        while True:
            job = await self.job(job_id)
            yield job
            if job.is_finished:
                break
            await asyncio.sleep(every_s)
        if job.state != "succeeded":
            raise JobEnded(f"job {job.id} {job.state}: {job.error or 'no reason was given'}")

    async def cancel(self, job_id: str) -> generations.JobOut:
        """Stop a job and remove what it has built."""
        return await self.do(calls.cancel(job_id))

    async def activate(self, generation: str) -> generations.IndexOut:
        """Switch to a generation."""
        return await self.do(calls.activate(generation))

    async def rollback(self) -> generations.IndexOut:
        """Switch back to the generation that was active before."""
        return await self.do(calls.rollback())

    async def trial(self, generation: str) -> generations.IndexOut:
        """Load a generation beside the live one; `generation="trial"` of `rank` and `explain` asks for it."""
        return await self.do(calls.trial(generation))

    async def end_trial(self) -> generations.IndexOut:
        """End the trial, if there is one."""
        return await self.do(calls.end_trial())

    async def do(self, call: Call[T]) -> T:
        """Make a call, one of `calls` or another; returns what it reads of the answer."""
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
