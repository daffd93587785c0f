"""Traces by OpenTelemetry: a span for each request with its stages below it, and one for each batch, with links to its
requests.

With the setting `tracing` off nothing is recorded, but the trace id of a request's `traceparent` still goes to the log.
OpenTelemetry's own variables (OTEL_*) say where spans go, and how many.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from polyrank.service.observe.labels import QUIET, Account

SCOPE = "polyrank"
# A collector that does not answer must not keep a server from ending.
CLOSE_SECONDS = 5.0

_UNRECORDED = NoOpTracer()
_W3C = TraceContextTextMapPropagator()
_OF_POOL = re.compile(r"^/pools/[^/]+(?=/)")  # before a route's path


class Tracing:
    """Makes spans; by default they are not recorded. `close` sends those not sent yet."""

    def __init__(self, tracer: Tracer = _UNRECORDED, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.close = close

    def request(self, path: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Open a request's span, below the caller's where there is a valid `traceparent`; current in the block."""
        tracer = _UNRECORDED if _OF_POOL.sub("", path) in QUIET else self._tracer
        if tracer is _UNRECORDED and "traceparent" not in headers:
            return nullcontext(INVALID_SPAN)
        span = tracer.start_span("request", _W3C.extract(headers, Context()), SpanKind.SERVER)
        return trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False)

    def complete(self, span: Span, method: str, route: str, status: int, account: Account, began: int) -> str | None:
        """Complete a request's span before it ends; the request began so many nanoseconds after the epoch.

        The stages of the account become spans laid end to end, because only their order is known. Returns the trace's
        id as W3C writes it; None: there is no trace.
        """
        context = span.get_span_context()
        trace_id = f"{context.trace_id:032x}" if context.is_valid else None
        if not span.is_recording():
            return trace_id
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.request.method": method, "http.route": route, "http.response.status_code": status})
        if account.generation is not None:
            span.set_attribute("polyrank.generation", account.generation)
            span.set_attribute("polyrank.degraded", list(account.degraded))
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        below = trace.set_span_in_context(span, Context())
        for stage, seconds in account.seconds.items():
            ended = began + round(seconds * 1e9)
            if ended > began:
                self._tracer.start_span(stage, below, start_time=began).end(ended)
            began = ended
        return trace_id

    def batch(self, lane: str, lengths: list[int], requests: Iterable[SpanContext], seconds: float) -> None:
        """Record a batch that has just ended, with links to the valid spans of its requests; lengths are in tokens."""
        if self._tracer is _UNRECORDED:
            return
        links = [Link(span) for span in {span.span_id: span for span in requests if span.is_valid}.values()]
        ended = time.time_ns()
        attributes: Attributes = {
            "polyrank.lane": lane,
            "polyrank.sequences": len(lengths),
            "polyrank.tokens": sum(lengths),
        }
        began = ended - round(seconds * 1e9)
        self._tracer.start_span("batch", Context(), attributes=attributes, links=links, start_time=began).end(ended)


OFF = Tracing()


def exporting() -> Tracing:
    """Return tracing that sends spans to a collector, by OTLP over HTTP; needs the extra `otel`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SCOPE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))

    def close() -> None:
        sending = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)
        if sending.is_alive():
            exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its retries

    return Tracing(provider.get_tracer(SCOPE), close)
