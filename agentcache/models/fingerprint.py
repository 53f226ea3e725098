"""Identity of a model as an engine runs it: entries of different fingerprints never meet.

Weights are sampled: head and tail of every file (headers with the names and shapes of all tensors are in
them) and 16 pieces between. A fine-tune, a merge or another quantisation moves all of these; a gigabyte
takes milliseconds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from blake3 import blake3

from agentcache.errors import ModelError

_DOMAIN = b"agentcache model v1\0"
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
_ENDS = 1 << 20
_SAMPLES, _SAMPLE = 16, 64 << 10


def fingerprint(model: str | os.PathLike[str], *, revision: str | None = None, **engine: object) -> str:
    """64 hex digits that are equal if and only if K/V may be shared.

    model: a local folder, or a hub id: its snapshot in the local hub cache if there is one, else these
    engine: whatever else K/V depend on (dtype, kv_dtype, tp_size, rope settings...), as JSON-like values
    ModelError if a folder has no config.json.
    """
    digest = blake3(_DOMAIN)
    folder = _local_folder(os.fspath(model), revision)
    if folder is None:
        _add(digest, "hub", f"{model}@{revision or 'main'}".encode())
    else:
        try:
            _add(digest, "config.json", (folder / "config.json").read_bytes())
            for path in sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS):
                _add_sampled(digest, path)
        except OSError as error:
            raise ModelError(f"the model in {folder} cannot be read: {error.strerror}") from error
    for name in sorted(engine):
        _add(digest, name, json.dumps(engine[name], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _local_folder(model: str, revision: str | None) -> Path | None:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError):  # not installed; not a valid hub id
        return None
    return Path(config).parent if isinstance(config, str) else None


def _add(digest: blake3, name: str, value: bytes) -> None:
    for part in (name.encode(), value):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _add_sampled(digest: blake3, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        _add(digest, path.name, size.to_bytes(8, "little"))
        pieces = [(0, _ENDS), (max(0, size - _ENDS), _ENDS)]
        pieces += [(size * step // _SAMPLES, _SAMPLE) for step in range(_SAMPLES)]
        for offset, length in pieces:
            digest.update(os.pread(file.fileno(), length, offset))
