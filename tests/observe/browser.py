"""Headless Chromium over its own pipe: no driver, no package. Debian's package is called `chromium`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, pipe in enumerate(pipes, 3):
    os.dup2(pipe, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and answers on 4, each message ended by a NUL."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """Its path; the test is skipped, and says so, where there is none."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium: run `apt-get install chromium`")


class Browser:
    """One page. Use as a context manager; leaving it ends the browser."""

    def __init__(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agentcache-browser-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [
            *(find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *("--disable-dev-shm-usage", "--disable-extensions", "--no-first-run", "--hide-scrollbars"),
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_read), str(to_write), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        self._session = ""
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        return message

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 30.0) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never became true: {expression}"
            time.sleep(0.05)

    def hover(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors of scripts and of the content security policy, and everything that was asked of another host."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:400])
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            if event.get("method") == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("http://127.0.0.1:", "about:", "data:")):
                    found.append(f"asked for {url}")
        return found
