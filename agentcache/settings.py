"""What the engine plug-in can be told: one frozen dataclass, passed as vLLM's `kv_connector_extra_config`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from agentcache import paths
from agentcache.errors import UsageError
from agentcache.plan import RecomputePolicy

Mode = Literal["fast", "exact"]
GIB = 1 << 30
POLICY_NAMES = ("strategy", "boundary_tokens", "budget", "min_saved_tokens", "tail_tokens")
"""What of a `RecomputePolicy` the settings, and a request, can name."""
CODEC_NAMES = ("raw", "int8", "fp8", "mixed", "int4")
"""Those of `agentcache.store.codecs`, which imports torch."""
WORKER_KEY = "AGENTCACHE_WORKER_KEY"
"""Environment variable: a secret of the engine and its warm worker. It opens what no client may see or do: notes of
others' prompts, deleting entries. Without it these routes are closed, and nothing is noted."""
REMOTE_SCHEMES = ("s3://", "redis://", "rediss://")


def worker_key() -> str:
    """The secret in the environment, "" if there is none."""
    return os.environ.get(WORKER_KEY, "")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine.

    mode: what a request gets that does not ask: `fast` (blend) or `exact` (plain vLLM)
    store_dir: root of the entry store
    ram_bytes, disk_bytes: budgets of the store's tiers
    strategy, boundary_tokens, budget: which tokens of a reused span are recomputed (see agentcache.plan)
    min_saved_tokens: a run of adjoining spans that saves fewer tokens is not reused
    tail_tokens: a shorter tail is computed together with the recomputed tokens, in one pass instead of two
    disk_codec, remote_codec: how entries are written there: raw, int8, fp8, mixed or int4 (agentcache.store.codecs)
    remote_url: where entries are shared with other machines (agentcache.store.buckets); "": nowhere
    roots: folders whose index the server's routes and chat references may read; no request can add one
    max_body_bytes: a larger request body is refused (413)
    shadow: share of blended requests that are repeated as `exact` in idle time, to watch the drift
    shadow_max_kl: nats; a larger mean over the latest of them ends blending (agentcache.observe.drift), as soon as
        there are `shadow_min_samples`
    """

    mode: Mode = "fast"
    store_dir: str = field(default_factory=lambda: str(paths.store_dir()))
    ram_bytes: int = 2 * GIB
    disk_bytes: int = 20 * GIB
    strategy: str = "boundary+copy"
    boundary_tokens: int = 16
    budget: float | None = 0.08
    min_saved_tokens: int = 8
    tail_tokens: int = 256
    disk_codec: str = "raw"
    remote_url: str = ""
    remote_codec: str = "raw"
    max_body_bytes: int = 64 << 20
    roots: tuple[str, ...] = ()
    shadow: float = 0.0
    shadow_max_kl: float = 0.1
    shadow_min_samples: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "roots", tuple(self.roots))  # a list, where it was JSON
        if self.mode not in ("fast", "exact"):
            raise UsageError(f"mode must be 'fast' or 'exact', not {self.mode!r}")
        for name in (
            "ram_bytes",
            "disk_bytes",
            "boundary_tokens",
            "min_saved_tokens",
            "tail_tokens",
            "max_body_bytes",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative")
        if not 0 <= self.shadow <= 1:
            raise UsageError(f"the shadow share must be between 0 and 1, not {self.shadow:g}")
        if self.shadow_max_kl < 0:
            raise UsageError("the largest KL of the shadow must not be negative")
        if self.shadow_min_samples < 1:
            raise UsageError("the shadow needs one sample at least")
        _ = self.policy
        for codec in (self.disk_codec, self.remote_codec):
            if codec not in CODEC_NAMES:
                raise UsageError(f"{codec!r} is not a codec: use one of {', '.join(CODEC_NAMES)}")
        if self.remote_url and not self.remote_url.startswith(REMOTE_SCHEMES):
            raise UsageError(
                f"{self.remote_url!r} is not a remote tier: write s3://bucket/prefix or redis://host:6379/0"
            )

    @property
    def policy(self) -> RecomputePolicy:
        """What is recomputed where a request does not say. Raises UsageError."""
        try:
            return RecomputePolicy(**{name: getattr(self, name) for name in POLICY_NAMES})
        except ValueError as error:
            raise UsageError(str(error)) from error

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> EngineSettings:
        """Settings from vLLM's extra config. Raises UsageError on a name that does not exist."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown agentcache setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def store_path(self) -> Path:
        return Path(self.store_dir)
