"""Our own routes against whatever schemathesis makes of their schema, good and bad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.serving import Server

pytestmark = pytest.mark.engine


def test_no_request_breaks_a_route(server: Server, tmp_path: Path) -> None:
    before = server.status()["totals"]["requests"]
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.client.url}/openapi.json"),
        *("--include-path-regex", "^/agentcache(/|$)"),
        *("--checks", "not_a_server_error,content_type_conformance,response_schema_conformance"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--seed", "1", "--no-color"),
        *("--request-timeout", "120"),  # the self-test alone takes ten seconds on a busy machine
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "API Operations" in done.stdout or "operations" in done.stdout.lower(), done.stdout[-1000:]
    assert server.status()["totals"]["requests"] == before, "none of them is a request to the model"
    assert server.status()["blending"] is True
