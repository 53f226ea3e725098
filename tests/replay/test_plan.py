"""Planning arithmetic, against sizes known from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcache.capacity.amounts import of_corpus, of_repository
from agentcache.capacity.model import ModelShape
from agentcache.capacity.plan import Amount, Tier, bytes_by_codec, plan
from agentcache.capacity.shapes import SHAPES, shape_named
from agentcache.errors import ModelError

TERA = 10**12


@pytest.mark.parametrize(
    ("name", "kib"),
    [("llama-3.1-8b", 128), ("llama-3.1-70b", 320), ("qwen2.5-coder-7b", 56), ("llama-65b", 2560)],
)
def test_bytes_a_token_are_the_published_ones(name: str, kib: int) -> None:
    assert SHAPES[name].bytes_per_token() == kib * 1024


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8),
        ("llama-3.1-70b", 70),
        ("llama-65b", 65),
        ("gpt-3-175b", 175),
        ("mt-nlg-530b", 530),
    ],
)
def test_weights_are_nearly_those_in_the_name(name: str, billions: float) -> None:
    """Embeddings are no part of what a token passes through."""
    shape = SHAPES[name]
    embeddings = 2 * shape.vocabulary * shape.hidden_size
    assert shape.active_parameters + embeddings == pytest.approx(billions * 10**9, rel=0.05)


def test_a_thousand_documents_of_ten_pages() -> None:
    """The published 130 TB take 13 GB a page: what a model with keys in all 64 heads gives at 5,000 tokens a page."""
    amount = of_corpus(1000, 10, 5000)
    result = plan(SHAPES["llama-65b"], amount, TERA, [])
    assert result["bytes"]["raw"] == pytest.approx(130 * TERA, rel=0.02)
    assert plan(SHAPES["llama-3.1-70b"], amount, TERA, [])["bytes"]["raw"] == pytest.approx(
        16.4 * TERA, rel=0.01
    )


def test_codecs_are_the_stores_own() -> None:
    sizes = bytes_by_codec(SHAPES["llama-3.1-8b"])
    assert sizes["raw"] == 131072
    assert 1.8 < sizes["raw"] / sizes["int8"] < 2
    assert sizes["int4"] < sizes["mixed"] < sizes["int8"]


def test_break_even_and_fit() -> None:
    shape = SHAPES["llama-3.1-8b"]
    amount = Amount("text", 1000, 2000, 1)
    compute_s = 1 / plan(shape, amount, 100 * TERA, [])["prefill_tokens_per_s"]
    token = shape.bytes_per_token()
    # reading takes half as long as computing; longer; next to nothing
    speeds = {
        "half": 2 * token / compute_s,
        "slow": 0.5 * token / compute_s,
        "fast": 1000 * token / compute_s,
    }
    tiers = plan(shape, amount, 100 * TERA, [Tier(n, s, 1000 * token) for n, s in speeds.items()])["tiers"]
    assert tiers["half"]["break_even_uses"] in (2, 3)  # figures are rounded
    assert tiers["slow"]["break_even_uses"] is None
    assert tiers["fast"]["break_even_uses"] == 2
    assert not tiers["fast"]["fits"]
    assert tiers["fast"]["largest_tokens"] == 500


def test_a_repository_is_counted_with_functions_alone(folder: Path, repository: Path) -> None:
    amount = of_repository([str(repository)], folder, 8192)
    assert amount.tokens < amount.stored_tokens < 2 * amount.tokens
    assert amount.longest == amount.tokens


def test_configs_of_all_kinds(tmp_path: Path) -> None:
    base = {"num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10}
    assert ModelShape.of_config("m", base).bytes_per_token() == 2 * 2 * 8 * 8 * 2
    assert ModelShape.of_config("m", base | {"num_key_value_heads": 2}).bytes_per_token() == 2 * 2 * 2 * 8 * 2
    latent = ModelShape.of_config("m", base | {"kv_lora_rank": 32, "qk_rope_head_dim": 8})
    assert latent.bytes_per_token() == 2 * 40 * 2
    assert ModelShape.of_config("m", {"text_config": base}).layers == 2
    with pytest.raises(ModelError, match="vocab_size"):
        ModelShape.of_config("m", {k: v for k, v in base.items() if k != "vocab_size"})
    (tmp_path / "config.json").write_text(json.dumps(base))
    assert shape_named(str(tmp_path)).layers == 2
    with pytest.raises(ModelError, match="known shape"):
        shape_named("nothing-7b")
