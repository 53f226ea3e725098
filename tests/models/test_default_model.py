"""The pulled model is complete, off-line, and the model it says it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agentcache.cli import model_commands
from agentcache.models import fingerprint, pull, resolve

from .conftest import Pulled


@pytest.fixture(autouse=True)
def offline(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCACHE_HOME", str(pulled.home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_two_pulls_at_once_do_the_work_once(pulled: Pulled) -> None:
    worked, waited = sorted(pulled.stages, key=len, reverse=True)
    assert worked >= {"download", "verify", "convert"}
    assert waited <= {"wait"}
    assert pulled.folder == pulled.home / "models" / "smollm2-135m"
    assert {path.name for path in pulled.folder.parent.iterdir()} == {"smollm2-135m", ".smollm2-135m.lock"}


def test_the_second_call_does_nothing(pulled: Pulled) -> None:
    def no_fetch(*_: object) -> Path:
        raise AssertionError("fetched again")

    assert pull("smollm2-135m", fetch=no_fetch) == pulled.folder
    assert resolve("smollm2-135m") == str(pulled.folder)


def test_the_tokenizer_is_the_models(pulled: Pulled) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pulled.folder)
    assert (tokenizer.encode("<|im_start|>"), tokenizer.encode("<|im_end|>")) == ([1], [2])
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 8192)
    chat = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    # digits are split off first, so that the spaces before them merge as they did in training
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  12")) == ["ĠĠ", "1", "2"]
    code = "def f(x):\n\treturn x[10:]  # \u00e9\u4e2d\n\n\n    '1s'"
    assert tokenizer.decode(tokenizer.encode(code)) == code


def test_config_and_weights(pulled: Pulled) -> None:
    from safetensors import safe_open

    config = json.loads((pulled.folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["max_position_embeddings"], config["eos_token_id"], config["dtype"]) == (
        8192,
        2,
        "bfloat16",
    )
    assert "quantization_config" not in config
    assert json.loads((pulled.folder / "generation_config.json").read_text())["eos_token_id"] == 2
    with safe_open(pulled.folder / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_it_speaks_english(pulled: Pulled) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pulled.folder)
    model = AutoModelForCausalLM.from_pretrained(pulled.folder, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = model.generate(**prompt, max_new_tokens=30, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "The capital of France is Paris" in tokenizer.decode(out)
    assert out[-1] == tokenizer.eos_token_id  # and it knows when to stop


def test_fingerprint(pulled: Pulled, tmp_path: Path) -> None:
    folder = pulled.folder
    base = fingerprint(folder, dtype="bfloat16", tp_size=1)
    assert len(base) == 64
    assert int(base, 16)
    assert base == fingerprint(str(folder), tp_size=1, dtype="bfloat16")
    others = {
        fingerprint(folder),
        fingerprint(folder, dtype="float32", tp_size=1),
        fingerprint(folder, dtype="bfloat16", tp_size=2),
        fingerprint(folder, dtype="bfloat16", tp_size=1, rope={"factor": 2.0}),
    }
    assert len(others | {base}) == 5

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert fingerprint(copy, dtype="bfloat16", tp_size=1) == base
    weights = copy / "model.safetensors"
    size = weights.stat().st_size
    for offset in (0, size // 16 * 5 + 100, size - 1):  # head, a sample, tail
        with weights.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
            file.flush()
            assert fingerprint(copy, dtype="bfloat16", tp_size=1) != base
            file.seek(offset)
            file.write(bytes([byte]))
    assert fingerprint(copy, dtype="bfloat16", tp_size=1) == base
    config = copy / "config.json"
    config.write_text(config.read_text().replace("100000.0", "10000.0"))
    assert fingerprint(copy, dtype="bfloat16", tp_size=1) != base


def test_command_line(pulled: Pulled) -> None:
    app = typer.Typer()
    model_commands.register(app)
    app.command("other")(lambda: None)
    run = CliRunner().invoke
    told = json.loads(run(app, ["model", "pull", "smollm2-135m", "--json"]).stdout)
    assert told["path"] == str(pulled.folder)
    assert told["pulled"] is False
    assert told["bytes"] > 269_000_000
    assert run(app, ["model", "pull", "smollm2-135m"]).stdout == f"{pulled.folder}\n"
    (listed,) = json.loads(run(app, ["model", "ls", "--json"]).stdout)
    assert (listed["name"], listed["pulled"], listed["context"]) == ("smollm2-135m", True, 8192)
    assert "273 MB" in run(app, ["model", "ls"]).stdout
