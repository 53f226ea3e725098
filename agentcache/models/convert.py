"""GGUF weights to the folder that transformers and vLLM load. Run as a program: it is noisy and needs memory.

    python -m agentcache.models.convert GGUF OUT CONTEXT

transformers' GGUF reader leaves four things wrong, which are put right here: the model stays marked as
quantised and refuses to be saved; the pre-tokenizer lacks the split of digits that GGUF only names (without
it "  1" becomes other tokens than the model was trained on); the tokenizer does not know the model's
context; and its class has a name that only this version of transformers knows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def convert(gguf: Path, out: Path, context: int) -> None:
    """Write a bf16 safetensors model, its tokenizer, chat template and generation settings to `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_digits(tokenizer)
    tokenizer.model_max_length = context
    tokenizer.save_pretrained(out)
    _edit(
        out / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", backend=None, is_local=None
    )

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model = model.to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    _edit(out / "config.json", _model_name_or_path=None, _name_or_path=None)
    _check(out, context)


def _split_digits(tokenizer: object) -> None:
    """Give the tokenizer the pre-tokenizer that the pinned file calls "smollm" without saying what it is."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(steps)  # type: ignore[attr-defined]


def _check(out: Path, context: int) -> None:
    """The folder, read back as an engine does, must make a chat of single special tokens."""
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    config = AutoConfig.from_pretrained(out)
    start, end = (tokenizer.encode(mark) for mark in ("<|im_start|>", "<|im_end|>"))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    good = (
        len(start) == len(end) == 1
        and [tokenizer.eos_token_id] == end == [config.eos_token_id]
        and chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
        and config.max_position_embeddings == tokenizer.model_max_length == context
        and tokenizer.convert_ids_to_tokens(tokenizer.encode("  12")) == ["ĠĠ", "1", "2"]
    )
    if not good:
        raise ValueError("the converted tokenizer is not the model's: use the versions agentcache asks for")


def _edit(path: Path, **values: object) -> None:
    """Set keys of a JSON file; None deletes."""
    content = json.loads(path.read_text()) | values
    content = {key: value for key, value in content.items() if value is not None or key not in values}
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
