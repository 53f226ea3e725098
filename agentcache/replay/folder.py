"""The local files of a model: its tokenizer and chat template, wherever the model is."""

from __future__ import annotations

from pathlib import Path

from agentcache.errors import ModelError


def local_folder(resolved: str) -> Path:
    """The folder of what `agentcache.models.resolve` returned; of a hub id, its small files are fetched first.

    ModelError if it is neither here nor there.
    """
    if Path(resolved).is_dir():
        return Path(resolved)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(resolved, allow_patterns=["*.json", "*.jinja", "*.txt", "*.model"]))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"the tokenizer of {resolved} cannot be fetched ({reason}); give a local folder"
        ) from error
