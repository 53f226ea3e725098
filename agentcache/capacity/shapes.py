"""Published shapes of models, to plan for one that is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agentcache.capacity.model import ModelShape
from agentcache.errors import ModelError


def _shape(
    name: str, layers: int, kv_heads: int, head: int, hidden: int, mlp: int, heads: int, vocabulary: int
) -> ModelShape:
    return ModelShape(name, layers, kv_heads, head, 2, hidden, mlp, heads, vocabulary)


SHAPES: Final = {
    shape.name: shape
    for shape in (
        # name, layers, kv heads, head size, hidden, mlp, heads, vocabulary: as in the published configs
        _shape("llama-3.1-8b", 32, 8, 128, 4096, 14336, 32, 128256),
        _shape("llama-3.1-70b", 80, 8, 128, 8192, 28672, 64, 128256),
        _shape("llama-3.1-405b", 126, 8, 128, 16384, 53248, 128, 128256),
        _shape("qwen2.5-coder-7b", 28, 4, 128, 3584, 18944, 28, 152064),
        _shape("qwen2.5-coder-32b", 64, 8, 128, 5120, 27648, 40, 152064),
        # every head has keys of its own
        _shape("llama-65b", 80, 64, 128, 8192, 22016, 64, 32000),
        # their MLP has two matrices, not three: mlp is two thirds of the published 4 x hidden
        _shape("gpt-3-175b", 96, 96, 128, 12288, 32768, 96, 50257),
        _shape("mt-nlg-530b", 105, 128, 160, 20480, 54613, 128, 51200),
    )
}


def shape_named(name: str) -> ModelShape:
    """The shape of a name in SHAPES, or of a model folder or registered model. ModelError if it is neither."""
    if name in SHAPES:
        return SHAPES[name]
    from agentcache.models import resolve
    from agentcache.models.registry import KNOWN

    if name in KNOWN or Path(name).expanduser().is_dir():
        return ModelShape.of_folder(Path(resolve(name)))
    known = ", ".join([*KNOWN, *SHAPES])
    raise ModelError(f"{name!r} is neither a model folder nor a known shape: {known}")
