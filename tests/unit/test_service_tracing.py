"""Spans of requests, stages and batches, as the SDK exports them."""

import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanKind, StatusCode, get_current_span

from polyrank.service.observe.labels import QUIET, Account
from polyrank.service.observe.tracing import OFF, Tracing

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
NS = 1_000_000_000


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(provider.get_tracer("test"))


def _spans(exported: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exported.get_finished_spans()}


def test_a_request_has_a_span_below_its_callers_and_its_stages_below_it(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    account = Account("7-abc", ["cache_unavailable"], {"queue": 0.0, "tokenize": 0.25, "encode": 0.5})
    began = time.time_ns()
    with tracing.request("/rank", TRACEPARENT) as span:
        assert get_current_span().get_span_context().span_id == span.get_span_context().span_id
        tracing.complete(span, "POST", "/rank", 200, account, began)
    assert not get_current_span().get_span_context().is_valid
    spans = _spans(exported)
    assert set(spans) == {"POST /rank", "tokenize", "encode"}  # what took no time is left out
    request = spans["POST /rank"]
    assert request.kind is SpanKind.SERVER
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST", "http.route": "/rank", "http.response.status_code": 200,
        "polyrank.generation": "7-abc", "polyrank.degraded": ("cache_unavailable",),
    }  # fmt: skip
    assert request.status.status_code is StatusCode.UNSET
    for stage in ("tokenize", "encode"):
        assert spans[stage].parent == request.context
    assert (spans["tokenize"].start_time, spans["tokenize"].end_time) == (began, began + NS // 4)
    assert (spans["encode"].start_time, spans["encode"].end_time) == (began + NS // 4, began + 3 * NS // 4)


def test_a_failure_of_ours_is_an_error_and_a_callers_is_not(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    for route, status in (("/one", 503), ("/two", 422)):
        with tracing.request(route, {}) as span:
            tracing.complete(span, "GET", route, status, Account(), 0)
    statuses = {name: span.status.status_code for name, span in _spans(exported).items()}
    assert statuses == {"GET /one": StatusCode.ERROR, "GET /two": StatusCode.UNSET}


@pytest.mark.parametrize("bad", [
    "", "00", f"00-{TRACE.upper()}-{CALLER}-01", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01",
    f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{CALLER}-01-more", f"00-{TRACE}-{CALLER}-zz", "é" * 60,
])  # fmt: skip
def test_a_bad_traceparent_is_ignored(tracing: Tracing, exported: InMemorySpanExporter, bad: str) -> None:
    with tracing.request("/rank", {"traceparent": bad}) as span:
        assert tracing.complete(span, "POST", "/rank", 200, Account(), time.time_ns()) not in (None, TRACE)
    (finished,) = exported.get_finished_spans()
    assert finished.parent is None
    with OFF.request("/rank", {"traceparent": bad}) as span:
        assert OFF.complete(span, "POST", "/rank", 200, Account(), time.time_ns()) is None


def test_without_an_sdk_the_callers_trace_is_known_and_nothing_recorded() -> None:
    with OFF.request("/rank", TRACEPARENT) as span:
        assert not span.is_recording()
        account = Account("7-abc", [], {"encode": 0.5})
        assert OFF.complete(span, "POST", "/rank", 200, account, time.time_ns()) == TRACE
    OFF.batch("context", [3], [INVALID_SPAN_CONTEXT], 0.1)
    OFF.close()


def test_what_a_caller_does_not_sample_is_not_recorded(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    with tracing.request("/rank", {"traceparent": f"00-{TRACE}-{CALLER}-00"}) as span:
        account = Account("7-abc", [], {"encode": 0.5})
        assert tracing.complete(span, "POST", "/rank", 200, account, time.time_ns()) == TRACE
    assert exported.get_finished_spans() == ()


def test_probes_are_not_recorded(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    for path in (*QUIET, *(f"/pools/shop{path}" for path in QUIET)):
        with tracing.request(path, {}) as span:
            tracing.complete(span, "GET", path, 200, Account(), time.time_ns())
    assert exported.get_finished_spans() == ()


def test_a_batch_links_to_each_request_in_it_once(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    with tracing.request("/rank", TRACEPARENT):
        one = get_current_span().get_span_context()
    with tracing.request("/rank", {}):
        other = get_current_span().get_span_context()
    tracing.batch("pair", [5, 7, 9], [one, other, one, INVALID_SPAN_CONTEXT], 0.5)
    batch = _spans(exported)["batch"]
    assert [link.context.span_id for link in batch.links] == [one.span_id, other.span_id]
    assert batch.parent is None
    assert dict(batch.attributes or {}) == {"polyrank.lane": "pair", "polyrank.sequences": 3, "polyrank.tokens": 21}
    assert batch.start_time is not None
    assert batch.end_time is not None
    assert batch.end_time - batch.start_time == NS // 2
