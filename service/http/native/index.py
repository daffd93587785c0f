"""`/index`: what is served, switching to another generation, and rebuilding."""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.building.job_records import JobRecord
from polyrank.index_builder.errors import (
    DiskFull,
    FingerprintMismatch,
    GenerationCorrupt,
    GenerationError,
    GenerationNotFound,
    JobConflict,
    JobNotFound,
    MatrixMissing,
    NothingToCompact,
    StoreBusy,
)
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.pointer import LEASE_SECONDS
from polyrank.model.errors import InvalidInput
from polyrank.service.api.generations import IndexOut, JobOut, JobsOut
from polyrank.service.api.pool_requests import ActivateIn, IndexIn, PoolCandidateIn
from polyrank.service.changes.jobs import KEY_PATTERN, Rebuild, checked_key
from polyrank.service.errors import HeaderInvalid, IdempotencyMismatch, NotConfigured, NotReady, StoreReadOnly
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import ADMIN, IN_POOL
from polyrank.service.http.plumbing.middleware import base_of
from polyrank.service.http.plumbing.openapi import fails, takes
from polyrank.service.ranking.parts import Serving
from polyrank.service.resources import Resources, writing

router = APIRouter(prefix="/index", tags=["index"], dependencies=[ADMIN, IN_POOL])

RETRY_AFTER_SECONDS = "2"
_WRITES = (StoreReadOnly, StoreBusy, DiskFull)
_SWITCHES = (GenerationNotFound, GenerationError, FingerprintMismatch, MatrixMissing, *_WRITES)
_LOCATION_OUT = {"description": "of the job", "required": True, "schema": {"type": "string"}}
_LOCATED: dict[int | str, dict[str, Any]] = {202: {"headers": {"Location": _LOCATION_OUT}}}
_KEY_IN = Header(description="repeats give the same job", json_schema_extra={"pattern": KEY_PATTERN})


@router.get("", response_model=IndexOut, responses=fails())
async def index(request: Request) -> dict[str, Any]:
    """The generation that is served, the others kept, those refused, and the rebuild that is running."""
    return await _overview(request)


@router.post(
    "",
    status_code=202,
    response_model=JobOut,
    openapi_extra=takes(IndexIn),
    responses=fails(HeaderInvalid, NotConfigured, NotReady, IdempotencyMismatch, JobConflict, *_WRITES, body=True)
    | _LOCATED,
)
async def rebuild(
    request: Request, response: Response, idempotency_key: Annotated[str | None, _KEY_IN] = None
) -> dict[str, Any]:
    """Build a new generation and, unless `activate` is false, serve it. One build at a time."""
    resources: Resources = request.state.resources
    key = checked_key(idempotency_key)
    body = await bodies.read(request, IndexIn)
    sent = body.candidates or ()
    bodies.check_lengths("candidates", [candidate.text for candidate in sent], resources.settings)
    rows = map(PoolCandidateIn.model_dump, sent)  # lazily: `jobs` writes them in a thread, and there may be many
    todo = Rebuild(pool=body.pool, encoding=body.encoding, candidates=rows, model=body.model, activate=body.activate)
    with writing(resources):
        if not resources.has_pool:
            resources.live.require()
        record = await resources.jobs.start(
            todo, await request.body(), key, has_active=resources.live.current is not None
        )
    return _started(request, record, response)


@router.post(
    "/compact",
    status_code=202,
    response_model=JobOut,
    responses=fails(NotConfigured, NotReady, NothingToCompact, MatrixMissing, JobConflict, *_WRITES) | _LOCATED,
)
async def compact(request: Request, response: Response) -> dict[str, Any]:
    """Rebuild what is served with its updates, count its words anew, and switch to the result."""
    resources: Resources = request.state.resources
    serving = resources.live.require()
    await _check_compactable(resources, serving)
    with writing(resources):
        record = await resources.jobs.compact()
    return _started(request, record, response)


async def _check_compactable(resources: Resources, serving: Serving) -> None:
    if await asyncio.to_thread(resources.store.current_or_none) != serving.generation.id:
        raise NotReady("what is served stands in for the active generation, which could not be loaded")
    if not serving.snapshot.changes:
        raise NothingToCompact("what is served was not updated since it was built")
    if not all(part.has_matrix for part in serving.parts):
        raise MatrixMissing(serving.generation.id)


def _started(request: Request, record: JobRecord, response: Response) -> dict[str, Any]:
    job = _job(request, record)
    response.headers["Location"] = job["links"]["self"]
    response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    return job


@router.get("/jobs", response_model=JobsOut, responses=fails(InvalidInput))
async def jobs(request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> dict[str, Any]:
    """The latest jobs, newest first."""
    resources: Resources = request.state.resources
    return {"jobs": [_job(request, record) for record in await resources.jobs.list(limit)]}


@router.get("/jobs/{job_id}", response_model=JobOut, responses=fails(JobNotFound))
async def job(request: Request, response: Response, job_id: str) -> dict[str, Any]:
    """How far a job is, or how it ended."""
    resources: Resources = request.state.resources
    record = await resources.jobs.get(job_id)
    if not record.is_finished:
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    return _job(request, record)


@router.post("/jobs/{job_id}/cancel", status_code=202, response_model=JobOut, responses=fails(JobNotFound, *_WRITES))
async def cancel(request: Request, job_id: str) -> dict[str, Any]:
    """Stop a job and remove what it has built. One that has ended stays as it is; one that publishes goes on."""
    resources: Resources = request.state.resources
    with writing(resources):
        record = await resources.jobs.cancel(job_id)
    return _job(request, record)


@router.post(
    "/activate", response_model=IndexOut, openapi_extra=takes(ActivateIn), responses=fails(*_SWITCHES, body=True)
)
async def activate(request: Request) -> dict[str, Any]:
    """Switch to a generation; requests in progress end on the one they began with."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, ActivateIn)
    return await _overview_after(
        request, partial(resources.live.activate, body.generation), resources.trials.try_to_follow_trial
    )


@router.post("/rollback", response_model=IndexOut, responses=fails(*_SWITCHES))
async def rollback(request: Request) -> dict[str, Any]:
    """Switch back to the generation that was active before."""
    resources: Resources = request.state.resources
    return await _overview_after(request, resources.live.rollback, resources.trials.try_to_follow_trial)


@router.post(
    "/trial",
    response_model=IndexOut,
    openapi_extra=takes(ActivateIn),
    responses=fails(NotConfigured, NotReady, *_SWITCHES, body=True),
)
async def trial(request: Request) -> dict[str, Any]:
    """Load a generation beside the live one: rankings and explanations may ask for it. Nothing else changes."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, ActivateIn)
    return await _overview_after(request, partial(resources.trials.begin, body.generation))


@router.post("/trial/end", response_model=IndexOut, responses=fails(*_WRITES))
async def end_trial(request: Request) -> dict[str, Any]:
    """End the trial, if there is one, and free its memory."""
    resources: Resources = request.state.resources
    return await _overview_after(request, resources.trials.end)


async def _overview_after(request: Request, *steps: Callable[[], object]) -> dict[str, Any]:
    """Take steps on the thread that switches generations; returns what is served then."""
    resources: Resources = request.state.resources
    with writing(resources):
        for step in steps:
            await asyncio.get_running_loop().run_in_executor(resources.loader, step)
    return await _overview(request)


async def _overview(request: Request) -> dict[str, Any]:
    resources: Resources = request.state.resources
    running = await resources.jobs.running()
    return {**await asyncio.to_thread(_generations, resources), "job": running and _job(request, running)}


def _generations(resources: Resources) -> dict[str, Any]:
    current, trial, lease = resources.live.current, resources.trials.current, resources.trials.trial
    refused = {**resources.live.refused, **resources.trials.refused}
    served_ids = {serving.generation.id for serving in (current, trial) if serving is not None}
    others = []
    for generation in reversed(resources.store.ids()):
        if generation in served_ids:
            continue
        try:
            others.append(_generation(resources.store.manifest(generation)))
        except (FileNotFoundError, GenerationNotFound):
            continue  # removed a moment ago
        except GenerationCorrupt as error:
            refused.setdefault(generation, error.reason)
    refusals = [{"id": generation, "reason": why} for generation, why in sorted(refused.items())]
    on_trial = (
        trial
        and lease
        and {
            **_active(trial),
            "share": lease.share,
            "until": lease.renewed and _time(lease.renewed + LEASE_SECONDS),
            "memory_bytes": resources.trials.bytes,
        }
    )
    history = resources.store.history()
    return {
        "active": current and _active(current),
        "trial": on_trial,
        "others": others,
        "refused": refusals,
        "previous": history[-1] if history else None,
        "writable": os.access(resources.store.root, os.W_OK, effective_ids=True),
        "takes_pools": resources.settings.pool_root is not None,
        "takes_models": resources.settings.model_root is not None,
    }


def _active(serving: Serving) -> dict[str, Any]:
    snapshot = serving.snapshot
    return {
        **_generation(serving.generation.manifest),
        "count": snapshot.count,
        "revision": snapshot.revision,
        "added": snapshot.added,
        "removed": snapshot.removed,
        "loaded_at": _time(serving.loaded_at),
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _generation(manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "count": manifest.count,
        "dim": manifest.dim,
        "dtype": manifest.dtype,
        "late": manifest.late,
        "backend": manifest.backend,
        "precision": manifest.precision,
        "model": manifest.model,
        "index": manifest.index.kind,
        "index_factory": manifest.index.factory,
        "index_times": manifest.index.times,
        "recall": manifest.recall,
        "built_at": manifest.created_at,
    }


def _job(request: Request, record: JobRecord) -> dict[str, Any]:
    here = f"{base_of(request.scope)}/index/jobs/{record.id}"
    return {
        "id": record.id,
        "state": record.state,
        "stage": record.stage,
        "progress": {"done": record.done, "total": record.total},
        "rate": record.rate,
        "eta": record.eta_seconds,
        "error": record.error,
        "generation": record.generation,
        "notes": record.notes,
        "activate": record.request.activate,
        "compacts": record.request.compacts,
        "created": record.created,
        "started": record.started,
        "finished": record.finished,
        "links": {"self": here, "cancel": f"{here}/cancel"},
    }
