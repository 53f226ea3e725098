"""What a GPU shows of the kernels and of the engine; `benchmarks/gpu.sh` starts it where one is.

    python benchmarks/gpu.py --json [--limit-s 440]

Kernels: tests/kernels/twins.py on the device, then each kernel's time beside torch's for the same on the same device.
Engine: tests/parity's measurements under both model runners, in bfloat16 and float32. What does not fit the time limit,
or what nothing is installed for, is named under "left_out". Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parents[1]
TOKENS, HEADS, QUERY_HEADS, DIM, PAGE = 16_384, 8, 32, 128, 16  # one layer of an 8-billion-parameter model
ENGINES = (  # model runner, dtype, models; the most telling first
    ("1", "bfloat16", ("qwen3", "llama3 scaling", "deepseek-v2, MLA on a GPU")),
    ("0", "bfloat16", ("qwen3", "deepseek-v2, MLA on a GPU")),
    ("1", "float32", ("qwen3", "glm", "phi3", "deepseek-v3")),
)
CONTROLS = ("seq_len -40", "seq_len +40")
CLEAR = 10.0
"""What must equal full prefill lies so many times closer to it than what is wrong on purpose."""


def parity_of_kernels(limit_s: float) -> dict[str, Any]:
    """tests/kernels/twins.py on this device."""
    done = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/twins.py"], limit_s
    )
    passed, failed = (re.search(rf"(\d+) {word}", done[1]) for word in ("passed", "failed"))
    return {
        "ok": done[0] == 0,
        "passed": int(passed[1]) if passed else 0,
        "failed": int(failed[1]) if failed else 0,
        "output": "" if done[0] == 0 else done[1][-1500:],
    }


def times_of_kernels() -> dict[str, dict[str, float]]:
    """Milliseconds of each kernel and of torch, median of many, and what the kernel moves a second."""
    from agentcache.kernels import device, quantise
    from agentcache.kernels.deviation import key_deviation
    from agentcache.kernels.gather import gather_tokens
    from agentcache.kernels.pages import PageLayout
    from agentcache.kernels.rotate import rotate_keys
    from agentcache.kernels.scatter import rotate_scatter
    from agentcache.kernels.tail_attention import tail_attention

    gpu = torch.device("cuda")
    kv = torch.randn(2, TOKENS, HEADS, DIM, device=gpu, dtype=torch.bfloat16)
    angle = torch.randn(TOKENS, 1, DIM // 2, device=gpu)
    cos, sin = angle.cos(), angle.sin()
    num_pages = TOKENS // PAGE
    pages = torch.zeros(num_pages, PAGE, HEADS, 2 * DIM, device=gpu, dtype=torch.bfloat16).transpose(1, 2)
    within = torch.arange(PAGE * HEADS * 2 * DIM, device=gpu).view(PAGE, HEADS, 2, DIM).permute(2, 0, 1, 3)
    layout = PageLayout(within.contiguous(), PAGE * HEADS * 2 * DIM)
    order = torch.randperm(num_pages, device=gpu)
    slots = (order[:, None] * PAGE + torch.arange(PAGE, device=gpu)).flatten()
    queries = torch.randn(48, QUERY_HEADS, DIM, device=gpu, dtype=torch.bfloat16)
    asking = torch.arange(TOKENS - 48, TOKENS, device=gpu)
    codes = {bits: quantise.quantise_keys(kv[0], bits, 64) for bits in (4, 8)}
    values = {bits: quantise.quantise_values(kv[1], bits, rotate=True) for bits in (4, 8)}
    one = kv[0].nbytes
    works: dict[str, tuple[Callable[[], Any], int]] = {
        "rotate": (lambda: rotate_keys(kv[0], cos, sin, neox=True), 2 * one),
        "rotate_scatter": (
            lambda: rotate_scatter(kv[0], kv[1], cos, sin, pages, layout, slots, neox=True),
            4 * one,
        ),
        "gather": (lambda: gather_tokens(pages, layout, slots), 4 * one),
        "deviation": (lambda: key_deviation(kv[0], kv[1]), 2 * one),
        "tail_attention": (lambda: tail_attention(queries, kv[0], asking, DIM**-0.5), one),
        "quantise_keys_8": (lambda: quantise.quantise_keys(kv[0], 8, 64), one + one // 2),
        "quantise_values_4": (lambda: quantise.quantise_values(kv[1], 4, rotate=True), one + one // 4),
        "dequantise_keys_8": (
            lambda: quantise.dequantise_keys(codes[8], 64, torch.bfloat16),
            one + one // 2,
        ),
        "dequantise_values_4": (
            lambda: quantise.dequantise_values(values[4], torch.bfloat16, rotate=True),
            one + one // 4,
        ),
    }
    times = {}
    for name, (work, moved) in works.items():
        triton_ms = milliseconds(work)
        with patch.object(device, "on_gpu", lambda _: False):
            torch_ms = milliseconds(work)
        times[name] = {
            "triton_ms": triton_ms,
            "torch_ms": torch_ms,
            "speedup": torch_ms / triton_ms,
            "gb_s": moved / triton_ms / 1e6,
        }
    return times


def milliseconds(work: Callable[[], Any]) -> float:
    """Median of up to 50 runs behind three that warm up; at most a second or so."""
    for _ in range(3):
        work()
    taken: list[float] = []
    until = time.monotonic() + 1.0
    while len(taken) < 50 and time.monotonic() < until:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return sorted(taken)[len(taken) // 2]


def parity_of_engine(runner: str, dtype: str, names: tuple[str, ...], limit_s: float) -> list[dict[str, Any]]:
    """tests/parity's figures of some models, each with a verdict."""
    environment = {
        "VLLM_USE_V2_MODEL_RUNNER": runner,
        "AGENTCACHE_PARITY_DTYPE": dtype,
    }
    with tempfile.TemporaryDirectory() as folder:
        code, out = run([sys.executable, "-m", "tests.parity.measure", folder, *names], limit_s, environment)
    figures = [json.loads(line) for line in out.splitlines() if line.startswith('{"name"')]
    for own in figures:
        own |= {"dtype": dtype, "ok": right(own)}
    missing = set(names) - {own["name"] for own in figures}
    tail = out[-800:] if code else ""
    return figures + [{"name": name, "dtype": dtype, "ok": False, "error": tail} for name in sorted(missing)]


def right(own: dict[str, Any]) -> bool:
    """Whether blending is exact where it says so, next to what is wrong on purpose."""
    if own.get("error") or own["reason"]:
        return False
    control = min(own[name] for name in CONTROLS)
    return bool(
        max(own["all"], own["all in runs"], own["in place"]) * CLEAR < control
        and own["moved"] * (CLEAR / 2) < own["moved by one too many"]
    )


def run(command: list[str], limit_s: float, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit status and output of a command; -1 if it ran past its limit."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=max(limit_s, 1.0),
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return -1, out.decode(errors="replace") if isinstance(out, bytes) else out
    return done.returncode, done.stdout


def machine() -> dict[str, Any]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "vllm"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = importlib.import_module(name).__version__ if name == "triton" else vllm_version()
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "versions": versions}


def vllm_version() -> str:
    from importlib.metadata import version

    return version("vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--limit-s", type=float, default=440.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: torch sees no CUDA GPU; nothing was measured", file=sys.stderr)
        return 3
    began = time.monotonic()

    def left() -> float:
        return options.limit_s - (time.monotonic() - began)

    result: dict[str, Any] = {**machine(), "left_out": [], "engine": []}
    result["kernels"] = parity_of_kernels(min(150.0, left()))
    result["times"] = times_of_kernels()
    for runner, dtype, names in ENGINES:
        what = f"engine V{int(runner) + 1} {dtype}"
        if importlib.util.find_spec("vllm") is None:
            result["left_out"].append(f"{what}: vLLM is not installed")
        elif left() < 60.0:
            result["left_out"].append(f"{what}: out of time")
        else:
            result["engine"] += parity_of_engine(runner, dtype, names, left())
    result["ok"] = result["kernels"]["ok"] and all(own["ok"] for own in result["engine"])
    result["seconds"] = time.monotonic() - began
    show(result)
    if options.json:
        print(json.dumps(result))
    return 0 if result["ok"] else 1


def show(result: dict[str, Any]) -> None:
    kernels = result["kernels"]
    print(f"{result['gpu']}: {kernels['passed']} kernel comparisons right, {kernels['failed']} wrong")
    for name, own in result["times"].items():
        print(
            f"  {name:20} {own['triton_ms']:8.3f} ms   torch {own['torch_ms']:8.3f} ms   {own['gb_s']:7.0f} GB/s"
        )
    for own in result["engine"]:
        verdict = "right" if own["ok"] else "WRONG"
        print(
            f"  {own['name']:28} {own.get('runner', '?')} {own['dtype']:9} {verdict}  {own.get('reason', '')}"
        )
    for what in result["left_out"]:
        print(f"  left out: {what}")


if __name__ == "__main__":
    sys.exit(main())
