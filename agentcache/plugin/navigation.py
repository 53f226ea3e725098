"""The indexed roots as the API server's process sees them: it reads their indexes, and updates none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from agentcache.context import Context, Streams
from agentcache.context.roots import Roots
from agentcache.context.streams import max_position
from agentcache.context.warmth import EngineView
from agentcache.errors import EngineError, ReferenceError_
from agentcache.plugin.rpc import MISSING, STATUS
from agentcache.settings import EngineSettings

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

T = TypeVar("T")

_ANSWER_S = 30.0
"""How long the engine may take to say what is warm."""
_NUM_THREADS = 2
"""Each keeps a connection to every index."""


class Navigation:
    """Answers by reference, on threads of its own: the server's event loop reads no file.

    engine: None where the server has none; then nothing is known to be warm
    """

    def __init__(self, settings: EngineSettings, engine: EngineClient | None = None) -> None:
        self._roots = settings.roots
        self._engine = engine
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="agentcache-navigation")
        self._opening = threading.Lock()
        self._texts: Context | None = None
        self._context: Context | None = None

    async def run(self, work: Callable[[Callable[[str], str]], T]) -> T:
        """Call `work` with a function that gives a reference's text (and raises ReferenceError_)."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: work(lambda reference: self._text_context().text(reference))
        )

    async def get(self, references: Sequence[str], token_budget: int | None, order: Any) -> dict[str, Any]:
        """`Context.get` as JSON. Raises AgentCacheError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self._full_context(loop).get(references, token_budget, order).to_dict()
        )

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._texts is not None:
            self._texts.close()

    def _text_context(self) -> Context:
        with self._opening:
            if self._texts is None:
                if not self._roots:
                    raise ReferenceError_(
                        "this server has no indexed repository to refer to: start it as `agentcache serve PATH`"
                    )
                self._texts = Context(Roots(self._roots, refresh=False))
            return self._texts

    def _full_context(self, loop: asyncio.AbstractEventLoop) -> Context:
        """The same roots, with the engine's tokenizer and its knowledge of what is warm."""
        roots = self._text_context().roots
        if (
            self._context is None
        ):  # asked by two at once it is made twice, and nobody else waits for the engine
            engine = self._engine
            self._context = Context(roots, engine=_view(engine, loop) if engine is not None else None)
        return self._context


def _view(engine: EngineClient, loop: asyncio.AbstractEventLoop) -> EngineView:
    """An engine as a thread may ask it while `loop` runs in another."""

    def ask(method: str, *args: Any) -> Any:
        asking = asyncio.run_coroutine_threadsafe(engine.collective_rpc(method, args=args), loop)
        try:
            return asking.result(_ANSWER_S)[0]
        except Exception as error:
            raise EngineError(
                f"the engine does not answer: {error or type(error).__name__}; try again"
            ) from error

    config = engine.vllm_config.model_config
    longest = int(config.max_model_len)
    tokenizer = str(config.tokenizer)
    status = ask(STATUS)
    return EngineView(
        fingerprint=str(status.get("fingerprint", "")),
        missing=lambda entries: set(ask(MISSING, list(entries))),
        streams=Streams(tokenizer, min(max_position(tokenizer) or longest, longest) - 1),
    )
