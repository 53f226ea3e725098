"""vLLM endpoint plug-in: agentcache's HTTP routes on the same port as the model's APIs.

    GET  /agentcache/          a page that shows all of this
    GET  /agentcache/status    counters, tiers, warmth, as JSON
    POST /agentcache/missing   {"entries": [id, ...]} -> {"missing": [id, ...]}
    GET  /agentcache/requests  the latest requests: tokens, times, what they reused, what broke their prefixes
    GET  /agentcache/blocks    the indexed files, and how warm they are
    PUT  /agentcache/told      names of entries, files: what the warm worker was asked (the worker's key needed)
    PUT  /agentcache/warm      the warm worker's progress, shown in the status
    GET  /agentcache/traffic   agents' requests, for the warm worker
    GET  /agentcache/touched   entries they reused                                    (the worker's key needed)
    POST /agentcache/drop      {"entries": [id, ...]}: deletes them                   (the worker's key needed)
    POST /agentcache/selftest  tries blending on the engine, once -> verdict; a failure ends blending
    POST /agentcache/notes     what requests left to learn since it was asked last    (the worker's key needed)
    POST /agentcache/weigh     {"weights": {id: weight}}: for eviction                (the worker's key needed)
    POST /agentcache/context   {"items": [reference, ...], "token_budget", "order"} -> source text, and what is warm
    POST /agentcache/expect    {"tokens": [[id, ...], ...]}: text that will come soon, to be learned
    PUT  /agentcache/learned   what has been learned, shown in the status             (the worker's key needed)

One file a group of routes, each with a `router`. Mounted only when allow-listed: `VLLM_PLUGINS=agentcache`.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from agentcache.plugin import frontend
from agentcache.plugin.access import BodyLimit, KeyGuard, keys_of
from agentcache.plugin.inline import InlineReferences
from agentcache.plugin.navigation import Navigation
from agentcache.plugin.routes import context, expect, learn, page, requests, status, warming
from agentcache.plugin.shadow import Shadow
from agentcache.plugin.tracing import Tracing
from agentcache.plugin.traffic import CountRequests, Traffic
from agentcache.settings import EngineSettings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from fastapi import FastAPI
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient

_GROUPS = (status, context, expect, learn, warming, requests, page)


class AgentCacheRoutes:
    """Entry point `vllm.endpoint_plugins`."""

    name = "agentcache"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        for group in _GROUPS:
            app.include_router(group.router)
        app.add_middleware(InlineReferences)
        app.state.agentcache_traffic = Traffic()
        app.add_middleware(CountRequests, traffic=app.state.agentcache_traffic)
        args = app.state.args
        app.add_middleware(BodyLimit, max_bytes=_settings(args).max_body_bytes)
        app.add_middleware(KeyGuard, keys=keys_of(args, os.environ.get("VLLM_API_KEY")))

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        state.agentcache_engine = engine_client
        state.agentcache_navigation = Navigation(_settings(args), engine_client)
        state.agentcache_warmth = status.Warmth()
        state.agentcache_learned = learn.Learned()
        state.agentcache_shown = requests.Shown()
        if engine_client is not None:
            frontend.LOG.decode = _decoder(engine_client)
            if await engine_client.is_tracing_enabled():
                frontend.TRACING = Tracing()
        state.agentcache_shadow = None
        if engine_client is not None and _settings(args).shadow:
            state.agentcache_shadow = Shadow(engine_client, state.agentcache_traffic, _settings(args))
            state.agentcache_shadow_task = asyncio.create_task(state.agentcache_shadow.run())
        state.agentcache_model = (args.served_model_name or [args.model])[0]


def _decoder(engine: EngineClient) -> Callable[[Sequence[int]], str]:
    tokenizer = engine.get_tokenizer()
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False)


def _settings(args: Namespace) -> EngineSettings:
    """What the plug-in was told; its defaults on a server that loads the routes alone."""
    config = args.kv_transfer_config
    return (
        EngineSettings.from_dict(dict(config.kv_connector_extra_config))
        if config is not None
        else EngineSettings()
    )
