"""`POST /feedback`: what became of rankings."""

import time

from fastapi import APIRouter
from starlette.requests import Request

from polyrank.index_builder.errors import DiskFull
from polyrank.service.api.answers import FeedbackOut
from polyrank.service.api.requests import FeedbackIn
from polyrank.service.errors import (
    FeedbackTooOld,
    NotConfigured,
    Overloaded,
    RateLimited,
    StoreReadOnly,
    TooMuchFeedback,
    UnknownRanking,
)
from polyrank.service.feedback.records import Event
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import IN_POOL, RANK
from polyrank.service.http.plumbing.openapi import fails, takes
from polyrank.service.resources import Resources, writing

router = APIRouter(tags=["feedback"], dependencies=[RANK, IN_POOL])


@router.post(
    "/feedback",
    openapi_extra=takes(FeedbackIn),
    responses=fails(
        NotConfigured,
        UnknownRanking,
        FeedbackTooOld,
        TooMuchFeedback,
        RateLimited,
        Overloaded,
        StoreReadOnly,
        DiskFull,
        body=True,
    ),
)
async def feedback(request: Request) -> FeedbackOut:
    """Record what became of rankings, but for events about what was not shown; they are on the disk when it returns."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, FeedbackIn)
    if resources.feedback is None:
        raise NotConfigured("feedback: this server records none; start it with --feedback ids or --feedback texts")
    bodies.check_lengths("events", [event.text for event in body.events if event.text is not None], resources.settings)
    now = time.time()
    events = [
        Event(id=each.event_id, at=now, ranking=each.ranking_id, kind=each.kind, reply=each.id, text=each.text)
        for each in body.events
    ]
    with writing(resources):
        async with bodies.journey(request, resources.settings).in_time():
            counts = await resources.feedback.add(events, request.state.principal.name)
    return FeedbackOut(**counts._asdict(), request_id=request.state.request_id)
