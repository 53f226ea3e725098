"""What the warm worker needs of an engine, and that over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentcache.engine_client import EngineClient
from agentcache.entry import Tokens
from agentcache.errors import EngineError
from agentcache.warm.job import Domain
from agentcache.warm.pace import Traffic
from agentcache.warm.steps import DEFAULT_PAGE_SIZE

_DISK_SHARE = 0.8
"""Of the disk tier: what the worker keeps unless it is told; the rest is for what agents bring."""


class WarmEngine(Protocol):
    """Every method raises EngineError when the engine does not answer.

    fingerprint: the model's; page_size: tokens a page; token_bytes: of a token's K/V
    """

    fingerprint: str
    page_size: int
    token_bytes: int

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        """Entries that would have to be computed."""
        ...

    def precompute(self, tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
        """Compute `tokens`, keep the entries between `cuts`. Returns how many tokens the engine did compute."""
        ...

    def traffic(self, wait_s: float) -> Traffic:
        """What agents do; returns when none of their requests runs, or after `wait_s`."""
        ...

    def drop(self, entry_ids: Sequence[str]) -> bool:
        """Delete entries; False if the engine does not let us."""
        ...

    def report(self, progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Show this in the engine's status. Returns what it wants to be told (`agentcache.warm.shown`)."""
        ...

    def tell(self, told: Mapping[str, Any]) -> None:
        """Answer that."""
        ...


class RemoteEngine:
    """One model of a server with the plug-in. EngineError, in one line, if there is none of that."""

    def __init__(self, client: EngineClient, model: str = "") -> None:
        status = client.status()
        self.model: str = model or status["model"]
        if self.model != status["model"]:
            raise EngineError(f"the server at {client.url} serves {status['model']}, not {self.model}")
        if not status.get("blending", False):
            why = status.get("unsupported") or "its plug-in is not active"
            raise EngineError(f"the server at {client.url} keeps no entries: {why}")
        self.fingerprint: str = status["fingerprint"]
        self.page_size = int(status.get("page_size") or DEFAULT_PAGE_SIZE)
        self.token_bytes = int(status.get("token_bytes") or 1)
        self.default_budget = int(_DISK_SHARE * status["tiers"]["disk"]["budget_bytes"])
        self._client = client

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return self._client.missing(entry_ids)

    def precompute(self, tokens: Tokens, cuts: Sequence[int], domain: Domain, salt: str) -> int:
        account = self._client.precompute(self.model, tokens.tolist(), cuts, domain=domain, salt=salt)
        return int(account.get("computed_tokens", 0)) + int(account.get("recomputed_tokens", 0))

    def traffic(self, wait_s: float) -> Traffic:
        now = self._client.traffic(wait_s)
        idle_s = float("inf") if now["idle_s"] is None else float(now["idle_s"])
        return Traffic(now["running"], now["requests"], idle_s, tuple(now["pauses_s"]))

    def drop(self, entry_ids: Sequence[str]) -> bool:
        try:
            self._client.drop(entry_ids)
        except EngineError as error:
            if " 403 " in f"{error} ":
                return False  # without the engine's key nothing of its store may be deleted
            raise
        return True

    def weigh(self, weights: Mapping[str, float]) -> bool:
        """Tell the store how likely entries are to be read; False if the engine does not let us."""
        try:
            self._client.weigh(weights)
        except EngineError as error:
            if " 403 " in f"{error} ":
                return False
            raise
        return True

    def touched(self, after: int) -> tuple[int, list[list[str]]]:
        """Number of the newest request, and for each since `after` the entries it reused, as far as we may know."""
        try:
            answer = self._client.touched(after)
        except EngineError as error:
            if " 403 " in f"{error} ":
                return after, []
            raise
        return int(answer["last"]), answer["requests"]

    def report(self, progress: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._client.report_warmth(progress)

    def tell(self, told: Mapping[str, Any]) -> None:
        try:
            self._client.tell(told)
        except EngineError as error:
            if " 403 " not in f"{error} ":
                raise
