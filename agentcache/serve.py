"""`agentcache serve`: one supervisor for the engine, the index and the warm worker."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentcache.context import Streams
from agentcache.context.streams import max_position
from agentcache.engine import EngineOptions
from agentcache.engine_client import EngineClient
from agentcache.errors import AgentCacheError, UsageError
from agentcache.foreign import ForeignEngine
from agentcache.indexer import Index
from agentcache.learn.attach import learn_from_traffic
from agentcache.models import resolve
from agentcache.settings import EngineSettings, worker_key
from agentcache.supervisor import Supervisor
from agentcache.warm import WarmItem
from agentcache.warm.engine import RemoteEngine
from agentcache.warm.progress import Progress
from agentcache.warm.remote import streams_of
from agentcache.warm.warmer import Warmer

Say = Callable[[str], None]
DEFAULT_PORT = 8100
_DEFAULT_MAX_TOKENS = 8192
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve.

    model: registered name, folder or hub id, also what clients call it
    folder: where the model lies, if that is known; "" resolves `model`, which may fetch it
    roots: repositories to index and to warm; the rest as in EngineOptions
    warm: whether the repositories are kept warm; warm_bytes: of entries for that; None: most of the disk tier
    learn_bytes: of entries learned from traffic; 0: nothing is
    engine_url: of a vLLM that runs already, with the plug-in; no engine is started then. There `model` only says where
        the tokenizer lies, if that is not what the engine calls its model
    api_key: what clients must send, "" nothing; grace_s: how long requests may take to end after Ctrl-C
    """

    model: str
    folder: str = ""
    roots: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    kv_gib: int = 2
    settings: EngineSettings = field(default_factory=EngineSettings)
    extra: tuple[str, ...] = ()
    warm: bool = True
    warm_bytes: int | None = None
    learn_bytes: int = 1_000_000_000
    engine_url: str = ""
    api_key: str = ""
    grace_s: int = 10

    def __post_init__(self) -> None:
        if any(argument.partition("=")[0] == "--api-key" for argument in self.extra):
            raise UsageError("give the key to serve itself: --api-key KEY before `--`, or AGENTCACHE_API_KEY")
        if self.host not in _LOOPBACK and not self.api_key and not self.engine_url:
            raise UsageError(
                f"refusing to listen on {self.host} without a key; add --api-key or AGENTCACHE_API_KEY"
            )


class Server:
    """An engine with its indexes and warm worker. Use as a context manager; leaving it ends all of them."""

    def __init__(self, options: ServeOptions, say: Say, on_line: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._say = say
        self.model = options.model
        self.folder = options.folder or ("" if options.engine_url else resolve(options.model))
        self.indexes = [open_index(root, say) for root in options.roots]
        self.engine: Supervisor | ForeignEngine
        if options.engine_url:
            self.engine = ForeignEngine(
                options.engine_url, say, api_key=options.api_key, on_ready=self._on_ready
            )
        else:
            self.engine = Supervisor(self._engine_options(), say, on_line=on_line, on_ready=self._on_ready)
        self.client: EngineClient = self.engine.client()
        self._warmer: Warmer | None = None
        self._told_warm = False
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Return when the engine answers and has tried blending on itself. Raises EngineError."""
        self.engine.wait_ready()
        if self.options.engine_url:
            self.model = self.client.status()["model"]

    def _engine_options(self) -> EngineOptions:
        options = self.options
        return EngineOptions(
            model=self.folder,
            served_name=options.model,
            host=options.host,
            port=options.port,
            kv_gib=options.kv_gib,
            settings=replace(options.settings, roots=tuple(str(index.root) for index in self.indexes)),
            extra=options.extra,
            worker_key=secrets.token_hex(32),
            api_key=options.api_key,
            grace_s=options.grace_s,
        )

    def _on_ready(self, client: EngineClient) -> None:
        """Whenever the engine has come up: say that warming is to come, and try blending."""
        if self.options.warm and self.indexes:
            roots = [str(index.root) for index in self.indexes]
            client.report_warmth({"roots": roots, **Progress(state="warming").to_dict()})
        verdict = client.selftest()
        if not verdict["ok"]:
            self._say(f"note: requests are served without blending: {verdict['reason']}")

    def streams(self) -> Streams:
        """The served model's tokenizer, with the engine's limit on a prompt."""
        if self.options.engine_url:
            return streams_of(self.client, self.model, self.options.model)
        return self.offline_streams(self._max_model_len())

    def offline_streams(self, max_model_len: int) -> Streams:
        """The same before the engine is up, for a known limit."""
        return Streams(self.folder, min(max_position(self.folder) or max_model_len, max_model_len) - 1)

    def warm(
        self, index: Index, items: Sequence[WarmItem], on_progress: Callable[[Progress], None] | None = None
    ) -> Progress:
        """Warm `items` now, in the calling thread. Raises EngineError."""
        return self._make_warmer(on_progress).warm(index, items)

    def _make_warmer(
        self, on_progress: Callable[[Progress], None] | None = None, learn: bool = False
    ) -> Warmer:
        """Once the engine answers."""
        options, streams = self.options, self.streams()
        engine = RemoteEngine(self.client, self.model)
        self._warmer = Warmer(
            engine,
            self.indexes if options.warm else [],
            streams,
            budget_bytes=self.options.warm_bytes,
            on_progress=on_progress,
            on_status=self._say,
        )
        if learn and options.learn_bytes and (not options.engine_url or worker_key()):
            learn_from_traffic(
                self._warmer, engine, self.client, self.indexes, streams, options.learn_bytes, self._say
            )
        return self._warmer

    def start_background(self) -> None:
        """Warm everything that is indexed, keep watching it, and learn from traffic, in threads that end with the
        server."""
        thread = threading.Thread(target=self._background, name="warm", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _background(self) -> None:
        try:
            self._make_warmer(self._tell_warm, learn=True).run(self.engine.came_back)
        except AgentCacheError as error:
            if not self._closing.is_set():
                self._say(f"warming stopped: {error}")

    def _tell_warm(self, progress: Progress) -> None:
        """Say once that everything is warm."""
        if progress.state in ("idle", "full") and not self._told_warm:
            self._told_warm = True
            if not self.options.warm:
                return
            self._say(
                f"warm: {progress.warm_blocks} of {progress.blocks} blocks, {progress.tokens_computed} tokens"
            )

    def wait_ended(self) -> None:
        """Return never while the engine lives or comes back. Raises EngineError when it crashed too often."""
        self.engine.wait_ended()

    def stop(self) -> None:
        """End warming, watching and the engine, which lets requests end first; Ctrl-C meanwhile ends it at once."""
        self._closing.set()
        if self._warmer is not None:
            self._warmer.stop()
        try:
            self.engine.stop()
        finally:
            for thread in self._threads:
                thread.join(10.0)
            self.client.close()
            for index in self.indexes:
                index.close()

    def _max_model_len(self) -> int:
        models = self.client.get("/v1/models")["data"]
        return int(models[0].get("max_model_len") or _DEFAULT_MAX_TOKENS)


def open_index(root: Path, say: Say) -> Index:
    """Index a repository (incrementally) and say what was found."""
    index = Index.open(root)
    report = index.update()
    say(f"index: {report.files} files, {report.blocks} blocks in {report.seconds:.1f} s ({root})")
    return index
