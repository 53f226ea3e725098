"""Spans of a finished request, as a collector gets them."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from agentcache.plugin.tracing import Tracing
from tests.observe.collector import collecting
from tests.observe.test_metrics import record

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TIMES = {
    "arrived_at": 1000.0,
    "queue_s": 1.0,
    "match_s": 0.25,
    "load_s": 0.5,
    "recompute_s": 0.125,
    "finished_at": 1003.0,
}


def test_spans_stand_below_the_clients_in_order_and_carry_the_tokens() -> None:
    with collecting() as collector:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector.url)))
        trace.set_tracer_provider(provider)
        tracing = Tracing()
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        tracing.record(record(**TIMES, trace_headers=headers, broken={"cause": "path"}))
        tracing.record(record(**TIMES, trace_headers=None, broken=None, spans=0))
        provider.shutdown()
        ours = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
        others = [span.name for span in collector.spans if span.trace_id.hex() != TRACE]
    assert set(ours) == {f"agentcache.{name}" for name in ("request", "match", "load", "recompute")}
    assert sorted(others) == ["agentcache.match", "agentcache.request"], (
        "nothing was loaded, and nobody asked"
    )
    request = ours["agentcache.request"]
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    attributes = {one.key: one.value for one in request.attributes}
    assert attributes["agentcache.reused_tokens"].int_value == 60
    assert attributes["agentcache.prefix_broken_by"].string_value == "path"
    bounds = {"request": (1000.0, 1003.0), "match": (1000.75, 1001.0), "load": (1001.0, 1001.5)}
    for name, (start, stop) in {**bounds, "recompute": (1001.5, 1001.625)}.items():
        span = ours[f"agentcache.{name}"]
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start * 1e9, stop * 1e9)
        assert name == "request" or span.parent_span_id == request.span_id
