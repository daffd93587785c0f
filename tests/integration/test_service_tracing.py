"""A running server's spans, at a collector that speaks OTLP over HTTP; and its log lines."""

import gzip
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from served import serve
from service_fakes import build_store, pool, words_app

from polyrank.service.observe import tracing
from polyrank.service.observe.logs import JsonFormat
from polyrank.service.ranking.values import Ranked

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
SECRET = "w7 a sentence that belongs into no log"


class Collector(HTTPServer):
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received: list[ResourceSpans] = []

    @property
    def spans(self) -> list[Span]:
        return [span for each in self.received for scope in each.scope_spans for span in scope.spans]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.received.extend(ExportTraceServiceRequest.FromString(sent).resource_spans)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Collector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_store(tmp_path, pool(30))
    return tmp_path


def _attributes(holder: Span | ResourceSpans) -> dict[str, str]:
    listed = holder.resource.attributes if isinstance(holder, ResourceSpans) else holder.attributes
    return {each.key: each.value.string_value for each in listed}


def test_spans_of_a_ranking_reach_the_collector_when_the_server_ends(collector: Collector, store: Path) -> None:
    with serve(words_app(store, tracing=True)) as server:
        generation = server.client.post("/rank", json={"context": SECRET}, headers=TRACEPARENT).json()["generation"]
        assert server.client.get("/readyz").status_code == 200
    (resource,) = {_attributes(each)["service.name"] for each in collector.received}
    assert resource == "polyrank"
    (request,) = [span for span in collector.spans if span.name == "POST /rank"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, CALLER)
    assert _attributes(request)["polyrank.generation"] == generation
    stages = {span.name for span in collector.spans if span.parent_span_id == request.span_id}
    assert {"tokenize", "encode", "retrieve"} <= stages
    batches = [span for span in collector.spans if span.name == "batch"]
    assert [[link.span_id for link in span.links] for span in batches] == [[request.span_id]]
    assert len(collector.spans) == 1 + len(stages) + len(batches)
    assert not any(b"sentence" in each.SerializeToString() for each in collector.received)


def test_a_collector_that_does_not_answer_keeps_no_request_and_no_end_waiting(store: Path, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.2)
    with serve(words_app(store, tracing=True)) as server:
        assert server.rank(context="w1").status_code == 200
        ending = time.monotonic()
    assert time.monotonic() - ending < 9  # the exporter by itself: 10 s and more


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The log as JSON lines."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(JsonFormat().format(record))

    caplog.set_level(logging.INFO, "polyrank.request")
    handler = Keep()
    logging.getLogger("polyrank.request").addHandler(handler)
    try:
        yield kept
    finally:
        logging.getLogger("polyrank.request").removeHandler(handler)


def test_the_log_has_one_line_a_request_with_its_trace_and_no_text(store: Path, lines: list[str]) -> None:
    with serve(words_app(store)) as server:
        headers = {**TRACEPARENT, "X-Request-ID": "mine"}
        answer = server.client.post("/rank", json={"context": SECRET, "candidates": [SECRET]}, headers=headers)
        server.client.post("/rank", json={"context": SECRET, "nonsense": 1}, headers={"traceparent": "nonsense"})
    assert "traceparent" not in answer.headers
    assert not any("sentence" in line for line in lines)
    good, bad = (json.loads(line) for line in lines)
    assert set(good["stages_ms"]) == set(answer.json()["timings_ms"]) - {"total"}
    expected = {"request_id": "mine", "trace_id": TRACE, "route": "/rank", "method": "POST", "status": 200}
    assert good == {
        **{name: good[name] for name in ("ts", "logger", "ms", "stages_ms")}, **expected,
        "level": "info", "message": "request", "generation": answer.json()["generation"], "degraded": [],
    }  # fmt: skip
    assert bad["status"] == 422
    assert not {"trace_id", "generation", "stages_ms"} & set(bad)


def test_the_log_tells_what_a_compatible_route_did_without(store: Path, lines: list[str], monkeypatch) -> None:
    with serve(words_app(store)) as server:
        engine = server.app.state.resources.engine
        whole = engine.rank

        async def less(*request: Any) -> Ranked:
            return replace(await whole(*request), degraded=["cache_unavailable"])

        monkeypatch.setattr(engine, "rank", less)
        assert server.client.post("/rerank", json={"query": "w1", "texts": ["w1"]}).status_code == 200
        assert server.metric("degraded_total", reason="cache_unavailable") == 1
    [line] = map(json.loads, lines)
    assert (line["route"], line["degraded"]) == ("/rerank", ["cache_unavailable"])
