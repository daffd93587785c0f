"""`/index/candidates`: updates of the generation that is served."""

from fastapi import APIRouter
from starlette.requests import Request

from polyrank.index_builder.errors import DiskFull, GenerationError, StoreBusy
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.errors import NotReady, Overloaded, StoreReadOnly, TooManyCandidates
from polyrank.service.http.native.requests import DeleteIn, UpsertIn
from polyrank.service.http.native.responses import DeletedOut, UpsertedOut
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.described import fails, takes
from polyrank.service.http.plumbing.guards import ADMIN
from polyrank.service.resources import resources, writing

_UPDATES = (NotReady, Overloaded, StoreBusy, GenerationError, StoreReadOnly, DiskFull)

router = APIRouter(prefix="/index/candidates", tags=["index"], dependencies=[ADMIN])


@router.put("", openapi_extra=takes(UpsertIn), responses=fails(TooManyCandidates, *_UPDATES, body=True))
async def upsert(request: Request) -> UpsertedOut:
    """Add candidates, or put them in the place of those with the same ids; searchable when this returns."""
    held = resources(request)
    body = await bodies.read(request, UpsertIn, held.settings)
    bodies.check_count(body.rows, held.settings)
    bodies.check_lengths("candidates", [sent.text for sent in body.rows], held.settings)
    sent = zip(body.ids(), body.rows, strict=True)
    candidates = [Candidate(candidate_id, row.text, row.metadata) for candidate_id, row in sent]
    with writing(held):
        done = await bodies.while_connected(request, held.updating.upsert(candidates))
    return UpsertedOut(generation=done.generation, revision=done.revision, upserted=len(candidates))


@router.post("/delete", openapi_extra=takes(DeleteIn), responses=fails(*_UPDATES, body=True))
async def delete(request: Request) -> DeletedOut:
    """Remove candidates; ids that are not there are listed in `missing_ids`, and are no error."""
    held = resources(request)
    body = await bodies.read(request, DeleteIn, held.settings)
    ids = list(dict.fromkeys(body.ids))
    with writing(held):
        done = await held.updating.delete(ids)
    deleted, missing = len(ids) - len(done.missing), list(done.missing)
    return DeletedOut(generation=done.generation, revision=done.revision, deleted=deleted, missing_ids=missing)
