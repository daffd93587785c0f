"""Updates of the generation that is served."""

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.errors import DiskFull, GenerationError, UpdatesBusy
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.errors import NotReady, Overloaded, StoreReadOnly, TooManyCandidates
from polyrank.service.http.native.responses import DeletedOut, UpsertedOut
from polyrank.service.http.native.schemas import DeleteIn, UpsertIn
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.guards import ADMIN
from polyrank.service.http.plumbing.openapi import fails, takes
from polyrank.service.resources import resources, writing

_WRITES = (NotReady, Overloaded, UpdatesBusy, GenerationError, StoreReadOnly, DiskFull)

router = APIRouter(prefix="/index/candidates", tags=["index"], dependencies=[ADMIN])


@router.put(
    "",
    response_model=UpsertedOut,
    openapi_extra=takes(UpsertIn),
    responses=fails(TooManyCandidates, *_WRITES, body=True),
)
async def upsert(request: Request) -> Response:
    """Add candidates, or put them in the place of those with the same ids; searchable when this returns."""
    held = resources(request)
    body, _ = await bodies.read(request, UpsertIn)
    bodies.check_upsert(body, held.settings)
    candidates = [
        Candidate(candidate_id, each.text, each.metadata)
        for candidate_id, each in zip(body.ids(), body.root, strict=True)
    ]
    with writing(held):
        done = await bodies.while_connected(request, held.updating.upsert(candidates))
    return _json({"generation": done.generation, "revision": done.revision, "upserted": len(candidates)})


@router.post("/delete", response_model=DeletedOut, openapi_extra=takes(DeleteIn), responses=fails(*_WRITES, body=True))
async def delete(request: Request) -> Response:
    """Remove candidates; ids that are not there are told, and no error."""
    held = resources(request)
    body, _ = await bodies.read(request, DeleteIn)
    ids = list(dict.fromkeys(body.ids))
    with writing(held):
        done = await held.updating.delete(ids)
    deleted = len(ids) - len(done.missing)
    return _json(
        {
            "generation": done.generation,
            "revision": done.revision,
            "deleted": deleted,
            "missing_ids": list(done.missing),
        }
    )


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
