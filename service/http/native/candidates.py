"""`/index/candidates`: the candidates of the generation that is served, and their updates."""

import re
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.errors import DiskFull, GenerationError, StoreBusy
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.errors import InvalidInput
from polyrank.service.api.generations import CandidatesOut, DeletedOut, StoredOut, UpsertedOut
from polyrank.service.api.pool_requests import DeleteIn, ListIn, ReadIn, UpsertIn
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
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import ADMIN, IN_POOL
from polyrank.service.http.plumbing.openapi import fails, takes
from polyrank.service.ranking.engine import Pool
from polyrank.service.ranking.parts import Serving
from polyrank.service.resources import Resources, writing
from polyrank.service.scheduling.stages import Journey

_UPDATES = (NotConfigured, NotReady, Overloaded, StoreBusy, GenerationError, StoreReadOnly, DiskFull)
_NUMBER = re.compile("[0-9]{1,18}", re.ASCII)


class _Whole(PathConvertor):
    """The rest of a path to its very end: that of Starlette leaves out a line break there, and reads another id."""

    regex = "(?s:.*)"


register_url_convertor("whole", _Whole())
router = APIRouter(prefix="/index/candidates", tags=["index"], dependencies=[ADMIN, IN_POOL])


@router.get(
    "",
    response_model=CandidatesOut,
    responses=fails(InvalidInput, NotReady, ListOutdated, RevisionNotReached, DeadlineExceeded, ShardsMissing),
)
async def listed(request: Request, query: Annotated[ListIn, Query()]) -> Response:
    """List candidates, page after page. A page may hold fewer than `limit`, or none: go on until `next` is null."""
    resources: Resources = request.state.resources
    journey = bodies.journey(request, resources.settings)
    serving = await _reached(resources, query, journey)
    pool, at = Pool(resources.runtime, serving, journey), (0, 0)
    if query.after is not None:
        at = _position(query.after, serving)
    page, after = await pool.page(*at, query.limit, query.conditions)
    notes = None
    if query.conditions is not None and not page.candidates and after is None:
        notes = await pool.filter_notes(query.conditions)
    answer = {
        "candidates": [_fields(candidate) for candidate in page.candidates],
        "next": None if after is None else f"{serving.generation.id}.{after[0]}.{after[1]}",
        **({"notes": notes} if notes else {}),
        **_origin(serving),
    }
    return Response(orjson.dumps(answer), media_type="application/json")


@router.put("", openapi_extra=takes(UpsertIn), responses=fails(TooManyCandidates, *_UPDATES, body=True))
async def upsert(request: Request) -> UpsertedOut:
    """Add candidates, or put them in the place of those with the same ids; searchable when this returns."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, UpsertIn)
    rows = body.rows
    bodies.check_count(rows, resources.settings)
    bodies.check_lengths("candidates", [sent.text for sent in rows], resources.settings)

    def to_candidates() -> list[Candidate]:
        return [Candidate(each, row.text, row.metadata) for each, row in zip(body.ids, rows, strict=True)]

    candidates = await bodies.beside(request, to_candidates, len(rows))
    with writing(resources):
        update = await bodies.while_connected(request, resources.updating.upsert(candidates))
    return UpsertedOut(generation=update.generation, revision=update.revision, upserted=len(candidates))


@router.post("/delete", response_model=DeletedOut, openapi_extra=takes(DeleteIn), responses=fails(*_UPDATES, body=True))
async def delete(request: Request) -> Response:
    """Remove candidates; ids that are not there are listed in `missing_ids`, and are no error."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, DeleteIn)
    ids = await bodies.beside(request, lambda: [*dict.fromkeys(body.ids)], len(body.ids))
    with writing(resources):
        update = await resources.updating.delete(ids)
    answer = {"generation": update.generation, "revision": update.revision, "deleted": len(ids) - len(update.missing)}
    rendered = orjson.dumps({**answer, "missing_ids": update.missing})
    return Response(rendered, media_type="application/json")


# The last route: its path takes in that of others, and of 405 the first one says what is allowed.
@router.get(
    "/{candidate_id:whole}",
    response_model=StoredOut,
    responses=fails(InvalidInput, CandidateNotFound, NotReady, RevisionNotReached, ShardsMissing),
)
async def stored(request: Request, candidate_id: str, query: Annotated[ReadIn, Query()]) -> dict[str, Any]:
    """Return a candidate by its id. In the path, percent-encode what a URL does not hold."""
    resources: Resources = request.state.resources
    journey = bodies.journey(request, resources.settings)
    serving = await _reached(resources, query, journey)
    candidate = await Pool(resources.runtime, serving, journey).candidate(candidate_id)
    if candidate is None:
        raise CandidateNotFound(candidate_id)
    return {**_fields(candidate), **_origin(serving)}


async def _reached(resources: Resources, query: ReadIn, journey: Journey) -> Serving:
    if query.min_revision is None:
        return resources.live.require()
    return await resources.updating.reached(query.min_revision, journey)


def _position(after: str, serving: Serving) -> tuple[int, int]:
    """Return the number of the part, and the row in it, at which a page begins.

    Raises:
        InvalidInput: it is not `next` of any page.
        ListOutdated: the page before was of another generation.
    """
    generation, *numbers = after.split(".")
    is_one = len(numbers) == 2 and generation and all(map(_NUMBER.fullmatch, numbers))
    if is_one and generation != serving.generation.id:
        raise ListOutdated(generation, serving.generation.id)
    if not is_one or int(numbers[0]) >= len(serving.parts):
        raise BodyInvalid([("query.after", "take it from `next` of the page before; leave it out to begin")])
    return int(numbers[0]), int(numbers[1])


def _fields(candidate: Candidate) -> dict[str, Any]:
    return {"id": candidate.id, "text": candidate.text, "metadata": candidate.metadata}


def _origin(serving: Serving) -> dict[str, Any]:
    return {"generation": serving.generation.id, "revision": serving.snapshot.revision}
