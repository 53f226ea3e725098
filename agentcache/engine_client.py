"""Talking to a running engine: vLLM's APIs and agentcache's routes, over HTTP, with errors a person can act on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from agentcache.errors import EngineError
from agentcache.learn.note import Note
from agentcache.settings import worker_key as _environment_key

WORKER_KEY_HEADER = "X-AgentCache-Worker-Key"
WARM_PRIORITY = 1000
"""vLLM serves smaller numbers first; agents' requests are 0."""
WORKER_HEADER = "X-AgentCache-Worker"
"""Marks the warm worker's requests: the server does not take them for an agent's."""
_START_S = 10.0
"""A worker that has just been started has told the server its state by then."""
_PRECOMPUTE_TIMEOUT_S = 24 * 3600.0
"""They wait in the engine as long as agents are served."""


class EngineClient:
    """A blocking client; one connection pool, safe to use from several threads.

    url: of the server, without path; api_key: sent as a bearer token
    worker_key: opens the warm worker's own routes, "" takes the environment's (`settings.WORKER_KEY`)
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = 600.0, worker_key: str = ""
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if key := worker_key or _environment_key():
            headers[WORKER_KEY_HEADER] = key
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def healthy(self) -> bool:
        """Whether the engine answers now."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def status(self) -> dict[str, Any]:
        """`GET /agentcache/status`."""
        return self._json("GET", "/agentcache/status")

    def record_after(self, before: int) -> dict[str, Any]:
        """The engine's own account of the request just answered: it comes a step after the last token.

        before: the status's total of requests when it was sent. Raises EngineError if none comes.
        """
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            status = self.status()
            if status["totals"]["requests"] > before:
                record: dict[str, Any] = status["recent"][-1]
                return record
            time.sleep(0.02)
        raise EngineError("the engine did not account for a request; is agentcache's plug-in loaded?")

    def warmed_all(self, wait_s: float) -> bool:
        """Wait until the server's worker has warmed its repositories; False if that takes longer.

        True at once if there is no worker; one that has just been started tells nothing for a moment.
        """
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < wait_s:
            state = self.status()["warm"]["state"]
            if state not in ("warming", "waiting") and (state != "off" or waited_s > _START_S):
                return True
            time.sleep(0.05)
        return False

    def learned_all(self, wait_s: float) -> bool:
        """Wait until the server's worker has learned what requests have left behind; False if that takes longer."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            status = self.status()
            learned = status["learned"]
            if learned["state"] == "idle" and learned["handled"] >= status["notes"]["added"]:
                return True
            time.sleep(0.05)
        return False

    def missing(self, entry_ids: Sequence[str]) -> set[str]:
        """Entries the engine would have to compute."""
        body = self._json("POST", "/agentcache/missing", {"entries": list(entry_ids)})
        return set(body["missing"])

    def selftest(self) -> dict[str, Any]:
        """Have the engine try blending against its own full prefill: a verdict (`agentcache.quality.selftest`)."""
        return self._json("POST", "/agentcache/selftest")

    def report_warmth(self, warmth: Mapping[str, Any]) -> dict[str, Any]:
        """Show how far warming is. Returns what the server wants to be told: `names` of entries, `files` or not."""
        answer = self._json("PUT", "/agentcache/warm", dict(warmth))
        wants: dict[str, Any] = answer.get("wants", {})
        return wants

    def tell(self, told: Mapping[str, Any]) -> None:
        """Answer what the server wanted."""
        self._json("PUT", "/agentcache/told", dict(told))

    def precompute(
        self,
        model: str,
        tokens: Sequence[int],
        cuts: Sequence[int],
        *,
        domain: str = "index",
        salt: str = "",
    ) -> dict[str, Any]:
        """Have the engine compute `tokens` when it serves nobody else, and keep the entries between `cuts`.

        domain, salt: whose entries they are (agentcache.plugin.request)
        Returns the engine's account: `computed_tokens`, `reused_tokens`, `prefix_hit_tokens`...
        """
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0.0,
            "priority": WARM_PRIORITY,
            "kv_transfer_params": {"agentcache": {"store": {"cuts": list(cuts), "domain": domain}}},
        }
        if salt:
            body["cache_salt"] = salt
        answer = self._json("POST", "/v1/completions", body, {WORKER_HEADER: "1"}, _PRECOMPUTE_TIMEOUT_S)
        account: dict[str, Any] = (answer.get("kv_transfer_params") or {}).get("agentcache", {})
        return account

    def traffic(self, wait_s: float = 0.0) -> dict[str, Any]:
        """Agents' requests; answers when none runs, or after `wait_s`."""
        return self._json("GET", f"/agentcache/traffic?wait_s={wait_s:g}")

    def touched(self, after: int) -> dict[str, Any]:
        """Entries that agents' requests reused, from request number `after` + 1 on."""
        return self._json("GET", f"/agentcache/touched?after={after}")

    def drop(self, entry_ids: Sequence[str]) -> None:
        """Have the engine delete entries."""
        self._json("POST", "/agentcache/drop", {"entries": list(entry_ids)})

    def notes(self) -> tuple[list[Note], int]:
        """What requests left to learn since it was asked last; and how many notes the engine ever made."""
        body = self._json("POST", "/agentcache/notes")
        return [Note.from_dict(note) for note in body["notes"]], int(body["noted"])

    def expect(self, texts: Sequence[Sequence[int]], salt: str = "") -> bool:
        """Say that these texts, as token ids, will come in prompts; False if nobody learns there."""
        body = {"tokens": [list(text) for text in texts], "cache_salt": salt or None}
        return bool(self._json("POST", "/agentcache/expect", body)["taken"])

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Say how likely entries are to be read, beyond what their uses say: 1 is usual, 0 is never again."""
        self._json("POST", "/agentcache/weigh", {"weights": dict(weights)})

    def report_learned(self, learned: Mapping[str, Any]) -> None:
        self._json("PUT", "/agentcache/learned", dict(learned))

    def get(self, path: str) -> dict[str, Any]:
        """Any JSON read. Raises EngineError on anything but 2xx."""
        return self._json("GET", path)

    def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Any JSON call. Raises EngineError on anything but 2xx."""
        return self._json("POST", path, dict(body), headers)

    def stream(self, path: str, body: Mapping[str, Any]) -> Any:
        """A streaming POST, as httpx's context manager."""
        return self._http.stream("POST", path, json=dict(body))

    def metrics(self) -> str:
        """vLLM's Prometheus text."""
        response = self._http.get("/metrics")
        response.raise_for_status()
        return response.text

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s, connect=5.0)
        try:
            response = self._http.request(method, path, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise EngineError(
                f"the engine at {self.url} does not answer: {error or type(error).__name__}"
            ) from error
        if response.is_success:
            answer: dict[str, Any] = response.json()
            return answer
        if response.status_code == 404 and path.startswith("/agentcache/"):
            raise EngineError(
                f"the server at {self.url} has no agentcache plug-in; start it with `agentcache serve`"
            )
        raise EngineError(f"the engine answered {response.status_code} to {path}: {response.text[:300]}")
