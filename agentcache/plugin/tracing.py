"""Spans of ours beside vLLM's own, in the trace that the client's headers name (`--otlp-traces-endpoint`).

    llm_request (vLLM's)      agentcache.request ┬ agentcache.match       found entries, made the plan
                                                 ├ agentcache.load        entries into pages
                                                 └ agentcache.recompute   virtual requests

They are made from a finished request's record, so that nothing is done for them where time counts. Their lengths are
measured; load and recompute are drawn one behind the other from the request's admission on.
"""

from __future__ import annotations

from typing import Any, Final

_ATTRIBUTES: Final = (
    "mode",
    "prompt_tokens",
    "prefix_hit_tokens",
    "reused_tokens",
    "recomputed_tokens",
    "computed_tokens",
    "spans",
    "fallback",
)


class Tracing:
    """One in the API server's process, where vLLM has set up its tracer provider."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("agentcache")

    def record(self, record: dict[str, Any]) -> None:
        """One finished request."""
        from vllm.tracing import extract_trace_context

        context = extract_trace_context(record["trace_headers"])
        admitted = record["arrived_at"] + record["queue_s"]
        attributes = {f"agentcache.{name}": record[name] for name in _ATTRIBUTES}
        attributes["gen_ai.request.id"] = record["request_id"]
        if record["broken"] is not None:
            attributes["agentcache.prefix_broken_by"] = record["broken"]["cause"]
        whole = self._tracer.start_span(
            "agentcache.request", context, attributes=attributes, start_time=_ns(record["arrived_at"])
        )
        inside = self._trace.set_span_in_context(whole, context)
        loaded = admitted + record["load_s"]
        parts = [("match", admitted - record["match_s"], admitted)]
        if record["spans"]:
            parts += [("load", admitted, loaded), ("recompute", loaded, loaded + record["recompute_s"])]
        for name, start, stop in parts:
            part = self._tracer.start_span(f"agentcache.{name}", inside, start_time=_ns(start))
            part.end(_ns(stop))
        whole.end(_ns(max(record["finished_at"], parts[-1][2])))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
