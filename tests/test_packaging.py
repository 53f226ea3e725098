"""The layout's promises: root folders that are also sub-packages, and no package of ours in anybody's way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_kernels_from_the_root_is_not_ours() -> None:
    """transformers imports a package of this name; a root folder with an __init__.py would be taken for it."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    found = python(
        "import importlib.util; spec = importlib.util.find_spec('kernels'); print(spec and spec.origin)"
    )
    assert str(ROOT) not in found


def test_transformers_models_import_from_the_root() -> None:
    assert (
        python("from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)")
        == "LlamaForCausalLM"
    )


@pytest.mark.parametrize("name", ["indexer", "kernels", "cli"])
def test_the_root_folders_are_sub_packages(name: str) -> None:
    link = ROOT / "agentcache" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from agentcache.cli.main import app
from typer.testing import CliRunner
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
print([name for name in ("torch", "vllm", "transformers", "numba", "numpy", "tree_sitter") if name in sys.modules])
"""
    assert python(code) == "[]"


def test_tracked_files_name_no_machine() -> None:
    """Nobody's folders in tracked files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    words = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"]
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and "fixtures" not in name:
            text = path.read_bytes().decode(errors="replace")
            assert not [word for word in words if word in text], name
