"""Where a remote tier keeps its objects: an S3-compatible bucket, or Redis/Valkey. Blocking, safe from any thread.

s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1     credentials from the usual AWS_* variables
redis://[user:password@]host:6379/0?prefix=agentcache             rediss:// for TLS
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from agentcache.errors import UsageError


class BucketError(Exception):
    """The far side does not answer, or not as it should. `reason`: a word to count."""

    def __init__(self, reason: str, why: object = "") -> None:
        super().__init__(f"{reason}: {why}")
        self.reason = reason


class Bucket(Protocol):
    """Objects by name. Every method raises BucketError, and takes about `timeout_s` at most."""

    def get(self, key: str) -> memoryview | None:
        """The object, or None if there is none."""

    def put(self, key: str, buffers: Sequence[memoryview]) -> None:
        """Write an object, whole or not at all."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Names that start with `prefix`, in any order."""


def open_bucket(url: str, timeout_s: float) -> Bucket:
    """The bucket at `url`; nothing is contacted yet. UsageError for a URL that is none of the two."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    try:
        if parts.scheme == "s3" and parts.netloc:
            return S3Bucket(parts.netloc, parts.path.strip("/"), options, timeout_s)
        if parts.scheme in ("redis", "rediss") and parts.hostname:
            prefix = options.pop("prefix", "agentcache")
            return RedisBucket(urlunsplit(parts._replace(query="")), prefix, timeout_s)
    except ImportError as error:
        raise UsageError(f"a remote tier needs {error.name}: pip install 'agentcache-kv[remote]'") from error
    raise UsageError(f"{url!r} is not a remote tier: write s3://bucket/prefix or redis://host:6379/0")


class RedisBucket:
    """Redis or Valkey: one string an object. Reconnects by itself."""

    def __init__(self, url: str, prefix: str, timeout_s: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._redis = redis
        self._prefix = prefix
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )

    def get(self, key: str) -> memoryview | None:
        found = self._call("get", self._name(key))
        return None if found is None else memoryview(found)

    def put(self, key: str, buffers: Sequence[memoryview]) -> None:
        self._call("set", self._name(key), b"".join(buffers))

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._call("delete", *map(self._name, keys))

    def keys(self, prefix: str) -> Iterator[str]:
        cursor = 0
        while True:
            cursor, found = self._call("scan", cursor, match=self._name(prefix) + "*", count=1000)
            yield from (name.decode().removeprefix(self._prefix + ":") for name in found)
            if cursor == 0:
                return

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"

    def _call(self, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments, **more)
        except self._redis.exceptions.TimeoutError as error:
            raise BucketError("remote_slow", error) from error
        except self._redis.exceptions.ResponseError as error:
            full = "maxmemory" in str(error) or "MISCONF" in str(error)
            raise BucketError("remote_full" if full else "remote_refused", error) from error
        except (self._redis.exceptions.RedisError, OSError) as error:
            raise BucketError("remote_down", error) from error


class S3Bucket:
    """An S3-compatible bucket, by way of obstore."""

    def __init__(self, bucket: str, prefix: str, options: dict[str, str], timeout_s: float) -> None:
        import obstore
        from obstore.store import S3Store

        self._obstore = obstore
        endpoint = options.get("endpoint", "")
        config: dict[str, Any] = {"region": options.get("region", "us-east-1")}
        if endpoint:
            config["endpoint"] = endpoint
        self._store: Any = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "timeout": f"{timeout_s}s",
                "connect_timeout": f"{timeout_s}s",
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 0},
            **config,
        )

    def get(self, key: str) -> memoryview | None:
        try:
            return memoryview(self._obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _s3_error(error) from error

    def put(self, key: str, buffers: Sequence[memoryview]) -> None:
        try:
            self._obstore.put(self._store, key, b"".join(buffers), use_multipart=False)
        except Exception as error:
            raise _s3_error(error) from error

    def delete(self, keys: Sequence[str]) -> None:
        try:
            self._obstore.delete(self._store, list(keys))
        except FileNotFoundError:
            return
        except Exception as error:
            raise _s3_error(error) from error

    def keys(self, prefix: str) -> Iterator[str]:
        try:
            for page in self._obstore.list(self._store, prefix=prefix):
                yield from (found["path"] for found in page)
        except Exception as error:
            raise _s3_error(error) from error


_NO_STATUS = re.compile(r"https?://\S+|[\d.]+\s?[mµn]?s\b")
"""Addresses and durations: a port or a time may hold the digits of a status."""
_STATUS = re.compile(r"\b[45]\d\d\b")


def _s3_error(error: Exception) -> BucketError:
    """obstore's errors have no common base that it promises to keep: their text tells more."""
    text = _NO_STATUS.sub(" ", str(error).lower())
    statuses = set(_STATUS.findall(text))
    if "timed out" in text or "timedout" in text:
        return BucketError("remote_slow", error)
    if "507" in statuses or "quota" in text or "insufficient storage" in text:
        return BucketError("remote_full", error)
    if statuses & {"400", "401", "403", "404"} or "nosuchbucket" in text or "accessdenied" in text:
        return BucketError("remote_refused", error)
    return BucketError("remote_down", error)
