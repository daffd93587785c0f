"""`POST /classify`: the classes of texts, beside a conversation or alone."""

import time

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request

from polyrank.model.errors import InvalidInput
from polyrank.service.api.answers import ClassedOut, ClassifyOut, ModelOut, TimingsOut, TruncatedOut
from polyrank.service.api.requests import ClassifyIn
from polyrank.service.errors import NotConfigured
from polyrank.service.http.native.rank import checked_conversation, with_unread
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import RANK
from polyrank.service.http.plumbing.openapi import DEADLINE_IN, READS, fails, takes
from polyrank.service.observe.labels import Account
from polyrank.service.ranking import unranked
from polyrank.service.resources import Resources

router = APIRouter(tags=["classify"], dependencies=[RANK])


@router.post(
    "/classify",
    response_model=ClassifyOut,
    openapi_extra=takes(ClassifyIn, DEADLINE_IN),
    responses=fails(*READS, NotConfigured, body=True),
)
async def classify(request: Request) -> ClassifyOut:
    """Tell for each text which class it is beside the conversation, with the probability of every class.

    A classifier of pairs needs a conversation. For one of single texts each text is the last turn of it.
    """
    resources: Resources = request.state.resources
    body = await bodies.read(request, ClassifyIn)
    journey = bodies.journey(request, resources.settings, body.timeout_ms)
    bodies.check_count(body.texts, resources.settings)
    conversation = checked_conversation(body, resources.settings)
    bodies.check_lengths("texts", body.texts, resources.settings)
    classifier = resources.runtime.required_classifier()
    if classifier.reads_pairs and not conversation.turns:
        raise InvalidInput("context: is required: the classifier reads a context and a text")
    doing = unranked.classify(resources.runtime, conversation, body.texts, journey)
    output = await bodies.while_connected(request, doing)
    request.state.account = Account(None, [], output.seconds)
    cut = with_unread(output.truncation, body, conversation)
    stages = {**output.seconds, "total": time.monotonic() - request.state.arrived}
    best = np.argmax(output.probabilities, axis=1).tolist()
    return ClassifyOut(
        results=[
            ClassedOut(label=classifier.labels[at], probability=float(row[at]), probabilities=classifier.by_label(row))
            for at, row in zip(best, output.probabilities, strict=True)
        ],
        model=ModelOut(
            name=classifier.name, architecture=classifier.network.architecture, fingerprint=classifier.fingerprint
        ),
        truncated=TruncatedOut(turns=cut.turns, tokens=cut.tokens, candidates=cut.candidates),
        timings_ms=TimingsOut(**{stage: round(seconds * 1000, 3) for stage, seconds in stages.items()}),
        request_id=request.state.request_id,
    )
