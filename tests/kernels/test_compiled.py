"""Every Triton kernel compiles for real GPUs, which takes none: the interpreter accepts more than the compiler."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from agentcache.kernels import (
    deviation_gpu,
    gather_gpu,
    quantise_gpu,
    rotate_gpu,
    scatter_gpu,
    tail_attention_gpu,
)

_FLOAT32 = {"cos", "sin", "denominators"}
_INT64 = {"within", "slots", "positions"}
_FLOAT16 = {"scales", "zeros"}
_ROWS = {"BR": 16, "BK": 32, "BD": 128, "SIZE": 128}

KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (rotate_gpu._rotate, {"FIRST": 0, "HALF": 64, "NEOX": True, "BH": 8, "BD": 128}),
    (rotate_gpu._rotate, {"FIRST": 512, "HALF": 32, "NEOX": False, "BH": 1, "BD": 1024}),
    (
        scatter_gpu._scatter,
        {"FIRST": 0, "HALF": 64, "NEOX": True, "PAGE_SIZE": 16, "HAS_VALUES": True, "BH": 8, "BD": 128},
    ),
    (
        scatter_gpu._scatter,
        {"FIRST": 512, "HALF": 32, "NEOX": False, "PAGE_SIZE": 64, "HAS_VALUES": False, "BH": 1, "BD": 1024},
    ),
    (gather_gpu._gather, {"PAGE_SIZE": 16, "PARTS": 2, "BH": 8, "BD": 128}),
    (deviation_gpu._deviation, {"BLOCK": 1024}),
    (tail_attention_gpu._denominators, {"GROUP": 4, "BM": 32, "BN": 64, "BD": 128}),
    (tail_attention_gpu._weights, {"GROUP": 4, "BM": 32, "BN": 64, "BD": 128}),
    *((quantise_gpu._keys_to_codes, {"BITS": bits, "B": 256}) for bits in (4, 8, 0)),
    *((quantise_gpu._codes_to_keys, {"BITS": bits, "B": 512}) for bits in (4, 8, 0)),
    *((quantise_gpu._values_to_codes, {"BITS": bits, "ROTATE": True, **_ROWS}) for bits in (4, 8, 0)),
    *((quantise_gpu._codes_to_values, {"BITS": bits, "ROTATE": True, **_ROWS}) for bits in (4, 8, 0)),
    (quantise_gpu._values_to_codes, {"BITS": 8, "ROTATE": False, **_ROWS}),
    (quantise_gpu._codes_to_values, {"BITS": 4, "ROTATE": False, **_ROWS}),
]


@pytest.mark.parametrize(("capability", "kind"), [(80, "fp32"), (90, "bf16")])
@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_it_compiles(number: int, capability: int, kind: str) -> None:
    kernel, constants = KERNELS[number]
    if constants.get("BITS") == 0 and capability < 89:
        return  # fp8 casts need Ada; `device.on_gpu_with_fp8` keeps older GPUs off
    names = list(inspect.signature(kernel.fn).parameters)
    kinds = {name: type_of(name, kind, kernel, constants) for name in names}
    source = ASTSource(
        fn=kernel, signature=kinds, constexprs={(names.index(k),): v for k, v in constants.items()}
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True}
    )
    assert f".target sm_{capability}" in compiled.asm["ptx"]


def type_of(name: str, kind: str, kernel: Any, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in _FLOAT32 or (name == "out" and kernel.__name__ in ("_deviation", "_denominators", "_weights")):
        return "*fp32"
    if name in _INT64:
        return "*i64"
    if name in _FLOAT16:
        return "*fp16"
    if name == "codes":
        return "*u8" if constants["BITS"] else "*fp8e4nv"
    if name in ("scale", "norm"):
        return "fp32"
    pointers = ("keys", "values", "queries", "pages", "out", "fresh", "reused", "x")
    return f"*{kind}" if name in pointers else "i32"
