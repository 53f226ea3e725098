"""`agentcache demo`, small: real repository, real engine, the keys that others read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "model",
    "requests",
    "prompt_tokens",
    "reused_share",
    "prefix_hit_share",
    "recomputed_share",
    "ttft_exact_s",
    "ttft_fast_s",
    "ttft_ratio",
    "first_token_agreement",
    "mean_kl",
}


def test_the_demo_prints_a_table_and_its_figures(tmp_path: Path, model_folder: str) -> None:
    copy = tmp_path / "repository"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(copy)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "agentcache.cli", "demo", str(copy), "--requests", "3", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result.keys() >= KEYS
    assert result["requests"] == 3
    assert 6_000 <= result["prompt_tokens"] <= 18_000
    assert result["reused_share"] > 0.9
    assert result["reused_share"] + result["recomputed_share"] + result["prefix_hit_share"] <= 1
    assert 0 < result["recomputed_share"] < 0.05
    assert result["mean_kl"] < 1.0
    assert "prompt tokens" in done.stdout.replace("\n", " ") or "TTFT" in done.stdout


def test_a_repository_with_too_little_code_is_one_line(tmp_path: Path, model_folder: str) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a.py").write_text("print(1)\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentcache.cli", "demo", str(tmp_path / "tiny")],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 1
    assert "too little code" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
