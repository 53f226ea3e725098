"""Running the proxy until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from agentcache.errors import UsageError
from agentcache.listening import listen
from agentcache.record.proxy import make_app
from agentcache.record.writer import TraceWriter

_GRACE_S = 5
"""How long an answer in flight may still take after Ctrl-C; what came of it is written down in any case."""


def record(upstream: str, host: str, port: int, out: Path, on_ready: Callable[[str], None]) -> int:
    """Serve until interrupted; returns how many requests were written. on_ready: told the proxy's URL.

    UsageError if the port is taken, the upstream is no URL, or `out` cannot be written.
    """
    import uvicorn

    if not upstream.startswith(("http://", "https://")):
        raise UsageError(f"--upstream must be a URL such as http://127.0.0.1:8100, not {upstream}")
    listening = listen(host, port)
    with closing(listening), closing(TraceWriter(out)) as writer:
        config = uvicorn.Config(
            make_app(upstream, writer),
            log_level="critical",
            timeout_graceful_shutdown=_GRACE_S,
            lifespan="on",
        )
        on_ready(f"http://{host}:{listening.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # uvicorn has shut down and passes the signal on
            uvicorn.Server(config).run(sockets=[listening])
        return writer.count
