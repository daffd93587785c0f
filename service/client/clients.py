"""The clients of a running server: one that waits, one for asyncio."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

import httpx2
from tenacity import AsyncRetrying, Retrying

from polyrank.service.api import generations
from polyrank.service.client import calls
from polyrank.service.client.attempts import Attempts, Call, JobEnded, NotAnAnswer, Received, options
from polyrank.service.client.bounds import bound, reading_until

T = TypeVar("T")
P = ParamSpec("P")

LATEST_STEP_SECONDS = 0.05  # after its own bound: a connection that is not made in time is told as one


def _waits(call: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.do(call(*args, **kwargs))

    _show_as(call, method)
    return method


def _awaits(call: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.do(call(*args, **kwargs))

    _show_as(call, method)
    return method


def _show_as(call: Callable[..., Any], method: Any) -> None:
    """Give a method the name, the text, the parameters and the result of a call, for `help` and editors."""
    own, shown = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), inspect.signature(call)
    [result] = get_args(shown.return_annotation)
    method.__name__, method.__doc__ = call.__name__, call.__doc__
    method.__signature__ = shown.replace(parameters=[own, *shown.parameters.values()], return_annotation=result)


class Client:
    """Calls a running server; use it in a `with` block, or close it.

    A call that the server refuses because it is busy is tried again after its Retry-After, at most `max_retries` times;
    a change is repeated only if it was surely not made. Errors are those of `polyrank.service.client.attempts`:
    `Refused` and its kinds carry what the server says, `NoAnswer` means that it could not be reached.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        api_key: if the server has keys.
        timeout_s: of a call with all its attempts, to the end of the answer, unless it has a `timeout_ms`, which the
            server is told, too.
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
        self._url, self._timeout_s, self._max_retries = url, timeout_s, max_retries
        self._http = httpx2.Client(**options(url, api_key), transport=transport)
        bound(self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    rank = _waits(calls.rank)
    feedback = _waits(calls.feedback)
    feedback_batch = _waits(calls.feedback_batch)
    explain = _waits(calls.explain)
    rank_batch = _waits(calls.rank_batch)
    rerank = _waits(calls.rerank)
    classify = _waits(calls.classify)
    embed = _waits(calls.embed)
    candidate = _waits(calls.candidate)
    upsert = _waits(calls.upsert)
    delete = _waits(calls.delete)
    pools = _waits(calls.pools)
    index = _waits(calls.index)
    rebuild = _waits(calls.rebuild)
    job = _waits(calls.job)
    jobs = _waits(calls.jobs)
    cancel = _waits(calls.cancel)
    activate = _waits(calls.activate)
    rollback = _waits(calls.rollback)
    trial = _waits(calls.trial)
    end_trial = _waits(calls.end_trial)

    def candidates(
        self, filter: Mapping[str, Any] | None = None, page: int = 1000
    ) -> Iterator[generations.CandidateOut]:
        """Yield all stored candidates that pass the filter, fetched page by page."""
        after: str | None = None
        pages: set[str] = set()
        while True:
            batch = self.do(calls.candidates(after, page, filter))
            yield from batch.candidates
            if (after := batch.next) is None:
                return
            if after in pages:
                raise NotAnAnswer(f"{self._url}: the pages of candidates go round in a circle")
            pages.add(after)

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

    def do(self, call: Call[T]) -> T:
        """Make a call, one of `calls` or another; returns what it reads of the answer."""
        attempts = Attempts(call, self._url, self._timeout_s, self._max_retries)
        answer: T = Retrying(**attempts.policy)(self._attempt, attempts)
        return answer

    def _attempt(self, attempts: Attempts[T]) -> T:
        try:
            return attempts.read(self._answer(attempts))
        except (httpx2.RequestError, UnicodeError) as error:
            raise attempts.unanswered(error) from error

    def _answer(self, attempts: Attempts[Any]) -> Received:
        request = self._http.build_request(**attempts.next())
        with reading_until(attempts.until):
            while True:
                response = self._http.send(request, stream=True)
                answer = attempts.begun(response)
                try:
                    for part in response.iter_bytes():
                        answer.add(part)
                finally:
                    response.close()
                if (following := attempts.redirected(response)) is None:
                    return answer
                request = following


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
        self._url, self._timeout_s, self._max_retries = url, timeout_s, max_retries
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

    rank = _awaits(calls.rank)
    feedback = _awaits(calls.feedback)
    feedback_batch = _awaits(calls.feedback_batch)
    explain = _awaits(calls.explain)
    rank_batch = _awaits(calls.rank_batch)
    rerank = _awaits(calls.rerank)
    classify = _awaits(calls.classify)
    embed = _awaits(calls.embed)
    candidate = _awaits(calls.candidate)
    upsert = _awaits(calls.upsert)
    delete = _awaits(calls.delete)
    pools = _awaits(calls.pools)
    index = _awaits(calls.index)
    rebuild = _awaits(calls.rebuild)
    job = _awaits(calls.job)
    jobs = _awaits(calls.jobs)
    cancel = _awaits(calls.cancel)
    activate = _awaits(calls.activate)
    rollback = _awaits(calls.rollback)
    trial = _awaits(calls.trial)
    end_trial = _awaits(calls.end_trial)

    async def candidates(
        self, filter: Mapping[str, Any] | None = None, page: int = 1000
    ) -> AsyncIterator[generations.CandidateOut]:
        """Yield all stored candidates that pass the filter, fetched page by page."""
        after: str | None = None
        pages: set[str] = set()
        while True:
            batch = await self.do(calls.candidates(after, page, filter))
            for each in batch.candidates:
                yield each
            if (after := batch.next) is None:
                return
            if after in pages:
                raise NotAnAnswer(f"{self._url}: the pages of candidates go round in a circle")
            pages.add(after)

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

    async def do(self, call: Call[T]) -> T:
        """Make a call, one of `calls` or another; returns what it reads of the answer."""
        attempts = Attempts(call, self._url, self._timeout_s, self._max_retries)
        return await AsyncRetrying(**attempts.policy)(self._attempt, attempts)

    async def _attempt(self, attempts: Attempts[T]) -> T:
        try:
            return attempts.read(await self._answer(attempts))
        except (httpx2.RequestError, UnicodeError) as error:
            raise attempts.unanswered(error) from error

    async def _answer(self, attempts: Attempts[Any]) -> Received:
        request = self._http.build_request(**attempts.next())
        try:
            async with asyncio.timeout(attempts.until - time.monotonic() + LATEST_STEP_SECONDS):
                while True:
                    response = await self._http.send(request, stream=True)
                    answer = attempts.begun(response)
                    try:
                        async for part in response.aiter_bytes():
                            answer.add(part)
                    finally:
                        await response.aclose()
                    if (following := attempts.redirected(response)) is None:
                        return answer
                    request = following
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer did not end in time") from None
