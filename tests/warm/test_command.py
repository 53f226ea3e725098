"""`agentcache warm` where there is no server, or another one: one line that says so."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


def warm(root: Path, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentcache.cli", "warm", str(root), "--engine-url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


class NothingHere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        return


@pytest.mark.parametrize("listening", [False, True])
def test_a_server_that_is_not_there_or_has_no_plugin(tmp_path: Path, listening: bool) -> None:
    server = HTTPServer(("127.0.0.1", 0), NothingHere)
    url = f"http://127.0.0.1:{server.server_port}"
    if listening:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    else:
        server.server_close()
    (tmp_path / "a.py").write_text("print(1)\n")
    done = warm(tmp_path, url)
    if listening:
        server.shutdown()
        server.server_close()
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert ("no agentcache plug-in" if listening else "does not answer") in done.stderr
