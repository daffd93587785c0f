"""`/index/candidates`: the candidates of the generation that is served, and their updates."""

import re
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.errors import DiskFull, GenerationError, StoreBusy
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.pages import page
from polyrank.model.errors import InvalidInput
from polyrank.service.changes.in_parts import not_in_parts
from polyrank.service.errors import (
    BodyInvalid,
    CandidateNotFound,
    DeadlineExceeded,
    ListOutdated,
    NotConfigured,
    NotReady,
    Overloaded,
    RevisionNotReached,
    ShardsMissing,
    StoreReadOnly,
    TooManyCandidates,
)
from polyrank.service.http.native.requests import DeleteIn, ListIn, ReadIn, UpsertIn
from polyrank.service.http.native.responses import CandidatesOut, DeletedOut, StoredOut, UpsertedOut
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.described import fails, takes
from polyrank.service.http.plumbing.guards import ADMIN
from polyrank.service.live.serving import Serving
from polyrank.service.ranking import by_parts
from polyrank.service.ranking.parts import Served, SetServing
from polyrank.service.resources import Resources, resources, writing

_UPDATES = (NotConfigured, NotReady, Overloaded, StoreBusy, GenerationError, StoreReadOnly, DiskFull)
_ROW = re.compile("[0-9]{1,18}", re.ASCII)


class _Whole(PathConvertor):
    """The rest of a path to its very end: that of Starlette leaves out a line break there, and reads another id."""

    regex = "(?s:.*)"


register_url_convertor("whole", _Whole())
router = APIRouter(prefix="/index/candidates", tags=["index"], dependencies=[ADMIN])


@router.get(
    "",
    response_model=CandidatesOut,
    responses=fails(InvalidInput, NotConfigured, NotReady, ListOutdated, RevisionNotReached, DeadlineExceeded),
)
async def listed(request: Request, wanted: Annotated[ListIn, Query()]) -> Response:
    """List candidates, page after page. A page may hold fewer than `limit`, or none: go on until `next` is null."""
    held = resources(request)
    deadline = bodies.deadline(request, held.settings)
    serving = await _reached(held, wanted, deadline)
    if isinstance(serving, SetServing):
        raise not_in_parts("listing candidates", "read one by its id, or the pool's files")
    first = 0 if wanted.after is None else _row_of(wanted.after, serving)
    found = await held.engine.read(page(serving.snapshot, first, wanted.limit, wanted.conditions), deadline)
    notes = None
    if wanted.conditions is not None and not found.candidates and found.next_row is None:
        notes = await held.engine.filter_notes(serving, wanted.conditions, deadline)
    answer = {
        "candidates": [_fields(candidate) for candidate in found.candidates],
        "next": None if found.next_row is None else f"{serving.generation.id}.{found.next_row}",
        **({"notes": notes} if notes else {}),
        **_origin(serving),
    }
    return Response(orjson.dumps(answer), media_type="application/json")


@router.put("", openapi_extra=takes(UpsertIn), responses=fails(TooManyCandidates, *_UPDATES, body=True))
async def upsert(request: Request) -> UpsertedOut:
    """Add candidates, or put them in the place of those with the same ids; searchable when this returns."""
    held = resources(request)
    body = await bodies.read(request, UpsertIn)
    bodies.check_count(body.rows, held.settings)
    bodies.check_lengths("candidates", [sent.text for sent in body.rows], held.settings)
    candidates = await bodies.beside(request, partial(_candidates, body), len(body.rows))
    with writing(held):
        done = await bodies.while_connected(request, held.updating.upsert(candidates))
    return UpsertedOut(generation=done.generation, revision=done.revision, upserted=len(candidates))


def _candidates(body: UpsertIn) -> list[Candidate]:
    sent = zip(body.ids(), body.rows, strict=True)
    return [Candidate(candidate_id, row.text, row.metadata) for candidate_id, row in sent]


@router.post("/delete", response_model=DeletedOut, openapi_extra=takes(DeleteIn), responses=fails(*_UPDATES, body=True))
async def delete(request: Request) -> Response:
    """Remove candidates; ids that are not there are listed in `missing_ids`, and are no error."""
    held = resources(request)
    body = await bodies.read(request, DeleteIn)
    ids = await bodies.beside(request, lambda: [*dict.fromkeys(body.ids)], len(body.ids))
    with writing(held):
        done = await held.updating.delete(ids)
    told = {"generation": done.generation, "revision": done.revision, "deleted": len(ids) - len(done.missing)}
    rendered = orjson.dumps({**told, "missing_ids": done.missing})
    return Response(rendered, media_type="application/json")


# The last route: its path takes in that of others, and of 405 the first one says what is allowed.
@router.get(
    "/{candidate_id:whole}",
    response_model=StoredOut,
    responses=fails(InvalidInput, CandidateNotFound, NotReady, RevisionNotReached, ShardsMissing),
)
async def stored(request: Request, candidate_id: str, wanted: Annotated[ReadIn, Query()]) -> dict[str, Any]:
    """Return a candidate by its id. In the path, percent-encode what a URL does not hold."""
    held = resources(request)
    deadline = bodies.deadline(request, held.settings)
    serving = await _reached(held, wanted, deadline)
    if isinstance(serving, SetServing):
        found = await by_parts.stored(serving, candidate_id, deadline)
    else:
        found = await held.engine.look_up(partial(_looked_up, serving, candidate_id))
    if not found:
        raise CandidateNotFound(candidate_id)
    return {**_fields(found[0]), **_origin(serving)}


async def _reached(held: Resources, wanted: ReadIn, deadline: float) -> Served:
    if wanted.min_revision is None:
        return held.live.require()
    return await held.updating.reached(wanted.min_revision, deadline)


def _row_of(after: str, serving: Serving) -> int:
    """Return the row at which a page begins.

    Raises:
        InvalidInput: it is not `next` of any page.
        ListOutdated: the page before was of another generation.
    """
    generation, _, row = after.rpartition(".")
    if not _ROW.fullmatch(row) or not generation:
        raise BodyInvalid([("query.after", "take it from `next` of the page before; leave it out to begin")])
    if generation != serving.generation.id:
        raise ListOutdated(generation, serving.generation.id)
    return int(row)


def _looked_up(serving: Serving, candidate_id: str) -> list[Candidate]:
    rows = serving.snapshot.rows([candidate_id])
    return serving.snapshot.candidates(rows[rows >= 0])


def _fields(candidate: Candidate) -> dict[str, Any]:
    return {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}


def _origin(serving: Served) -> dict[str, Any]:
    return {"generation": serving.generation.id, "revision": serving.snapshot.revision}
