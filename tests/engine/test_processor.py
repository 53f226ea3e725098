"""Without 16-bit arithmetic in the processor the engine computes in float32, unless something else is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from agentcache.processor import dtype_for


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    return str(tmp_path)


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return str(request.param)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [("AVX2", "float32"), ("DEFAULT", "float32"), ("AVX512", "auto")],
    indirect=["capability"],
)
def test_the_processor_decides(capability: str, expected: str, model: str) -> None:
    assert dtype_for("auto", model) == expected
    assert dtype_for("bfloat16", model) == "bfloat16"


@pytest.mark.parametrize("capability", ["AVX2"], indirect=True)
def test_weights_that_would_not_fit_stay_as_they_are(
    capability: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4000}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    assert dtype_for("auto", model) == "float32"
    pages["SC_PAGE_SIZE"] = 3999
    assert dtype_for("auto", model) == "auto"


@pytest.mark.parametrize("capability", ["AVX2"], indirect=True)
def test_a_model_that_is_not_here_stays_as_it_is(capability: str) -> None:
    assert dtype_for("auto", "owner/name") == "auto"


@pytest.mark.parametrize("capability", ["AVX2"], indirect=True)
def test_other_processors_are_left_alone(
    capability: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert dtype_for("auto", model) == "auto"
