"""What every test shares: the default model, pulled once, and caches that are not the user's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agentcache import paths
from tests.engine.serving import asked_plainly, encode, indexed, plain, prompts, server, texts

# One server for the whole session.
__all__ = ["asked_plainly", "encode", "indexed", "plain", "prompts", "server", "texts"]

# A shell that starts a command in the background has it ignore Ctrl-C, and all that it starts; tests send Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

MODEL = "smollm2-135m"
MODELS_HOME = paths.home()  # the user's own cache: a model is pulled once a machine, not once a run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may run beside what, for `pytest -n 2 --dist loadgroup`: a file's tests share its fixtures, and those of
    all files that use the session's server share that."""
    for item in items:
        shared = "asked_plainly" in getattr(item, "fixturenames", ())
        item.add_marker(
            pytest.mark.xdist_group("server" if shared else f"{item.path.parent.name}/{item.path.stem}")
        )


@pytest.fixture(scope="session")
def model_folder() -> str:
    """The default model as a local folder."""
    from agentcache.models import resolve

    before = os.environ.get("AGENTCACHE_HOME")
    os.environ["AGENTCACHE_HOME"] = str(MODELS_HOME)
    try:
        return resolve(MODEL)
    finally:
        if before is None:
            os.environ.pop("AGENTCACHE_HOME")
        else:
            os.environ["AGENTCACHE_HOME"] = before


@pytest.fixture(autouse=True)
def _private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the user's cache."""
    home = tmp_path / "agentcache-home"
    home.mkdir()
    if (MODELS_HOME / "models").is_dir():
        (home / "models").symlink_to(MODELS_HOME / "models")
    monkeypatch.setenv("AGENTCACHE_HOME", str(home))
