"""Starting and stopping a vLLM server with the plug-in: one process group that lives exactly as long as we want."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from agentcache.engine_client import EngineClient
from agentcache.errors import EngineError
from agentcache.listening import bind
from agentcache.settings import WORKER_KEY, EngineSettings

CONNECTOR = "AgentCacheConnector"
CONNECTOR_MODULE = "agentcache.plugin.connector"
_PLUGIN = "agentcache"
_NOT_TELLING = ("Traceback", "See root cause", "Internal Server Error", "WARNING")


def transfer_config(settings: EngineSettings) -> dict[str, object]:
    """vLLM's `kv_transfer_config` that loads the plug-in, as JSON-ready values."""
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings.to_dict(),
    }


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to start one server.

    model: local folder or hub id; served_name: what clients call it
    port: 0 picks a free one; kv_gib: page pool of the CPU build, GiB
    settings: None starts vLLM without the plug-in (for comparison)
    extra: further arguments for vLLM's own command line
    worker_key: opens the warm worker's own routes (`settings.WORKER_KEY`), "" leaves the environment's
    api_key: what clients must send; "": nothing. It reaches the engine by its environment, not by its command line
    grace_s: how long requests in flight may still take once the engine is told to end
    """

    model: str
    served_name: str
    host: str = "127.0.0.1"
    port: int = 0
    kv_gib: int = 2
    settings: EngineSettings | None = field(default_factory=EngineSettings)
    extra: tuple[str, ...] = ()
    worker_key: str = ""
    api_key: str = ""
    grace_s: int = 0


class Engine:
    """A running server. Use as a context manager; leaving it ends every process it started.

    on_line: called with each line of the server's log, from another thread
    listening: the socket it shall accept from, which stays the caller's; None: one of its own
    """

    def __init__(
        self,
        options: EngineOptions,
        on_line: Callable[[str], None] | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        check_installed()
        self.options = options
        bound = listening or bind(options.host, options.port)
        self.port: int = bound.getsockname()[1]
        self.url = url_of(options.host, self.port)
        self.log: deque[str] = deque(maxlen=400)
        self._on_line = on_line
        self._process = subprocess.Popen(
            command(options, self.port, bound.fileno()),
            env=environment(options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(bound.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us alone; we end the group in order
        )
        if listening is None:
            bound.close()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, name="engine-log", daemon=True)
        self._reader.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def client(self) -> EngineClient:
        return EngineClient(self.url, self.options.api_key or None, worker_key=self.options.worker_key)

    def wait_ready(self, timeout_s: float = 600.0) -> None:
        """Return when the server answers. Raises EngineError with the log's last error if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while time.monotonic() < deadline:
                if not self.alive():
                    raise EngineError(f"the engine did not start: {self.why()}")
                if client.healthy():
                    return
                time.sleep(0.25)
        raise EngineError(f"the engine did not answer within {timeout_s:.0f} s: {self.why()}")

    def why(self) -> str:
        """What ended it: a signal, or the most telling line of the log."""
        status = self._process.poll()
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = [line.strip() for line in self.log if line.strip()]
        for line in reversed(lines):
            if "Error" in line and not any(noise in line for noise in _NOT_TELLING):
                return line[-400:]
        return lines[-1][-400:] if lines else "it printed nothing"

    def stop(self, grace_s: float = 15.0) -> None:
        """End the server and everything it started. Requests in flight get `options.grace_s`, the rest of the server
        `grace_s` more; Ctrl-C in the meantime ends all of it at once."""
        try:
            self._end_in_order(self.options.grace_s + grace_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the server and everything it started, at once."""
        _signal_group(self._process.pid, signal.SIGKILL)  # workers that outlived their parent, too
        self._process.wait(10.0)
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._reader.join(5.0)

    def _end_in_order(self, wait_s: float) -> None:
        if self.alive():
            self._process.terminate()  # the server alone: it tells the others, and they finish what they have begun
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            self.log.append(line)
            if self._on_line is not None:
                self._on_line(line)


def command(options: EngineOptions, port: int, descriptor: int) -> list[str]:
    """The server's command line. descriptor: of the socket it accepts from"""
    base = [
        sys.executable,
        "-m",
        "agentcache.engine_process",
        str(descriptor),
        *("--model", options.model),
        *("--served-model-name", options.served_name),
        *("--host", options.host),
        *("--port", str(port)),
        *("--shutdown-timeout", str(options.grace_s)),
    ]
    if options.api_key:
        base += ["--middleware", "agentcache.plugin.access.AcceptXApiKey"]
    if options.settings is not None:
        base += ["--scheduling-policy", "priority"]  # agents before the warm worker
        base += ["--enable-prompt-tokens-details"]  # what was reused, in every answer's usage
        base += ["--kv-transfer-config", json.dumps(transfer_config(options.settings))]
    return [*base, *options.extra]


def environment(options: EngineOptions) -> dict[str, str]:
    """The server's environment."""
    env = dict(os.environ)
    if options.settings is not None:
        listed = [name for name in env.get("VLLM_PLUGINS", "").split(",") if name]
        env["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*listed, _PLUGIN]))
        if options.worker_key:
            env[WORKER_KEY] = options.worker_key
    if options.api_key:
        env["VLLM_API_KEY"] = options.api_key
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", str(options.kv_gib))
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if Path(options.model).is_dir():
        env.setdefault("HF_HUB_OFFLINE", "1")
    return env


def check_installed() -> None:
    """Raise EngineError when vLLM is missing or cannot be imported, with the command that mends it."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed; run `pip install 'agentcache-kv[cpu]'` (or [cuda] with an NVIDIA GPU)"
        )
    if importlib.util.find_spec("torchvision") is not None:
        probe = subprocess.run(
            [sys.executable, "-c", "import torchvision"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if probe.returncode:
            raise EngineError(
                "the installed torchvision does not match torch, and vLLM will not import; "
                "run `pip uninstall -y torchvision torchaudio torchcodec` (nothing here needs them)"
            )


def url_of(host: str, port: int) -> str:
    """Where to reach what listens on `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _signal_group(pid: int, sig: signal.Signals) -> None:
    try:
        os.killpg(pid, sig)
    except (ProcessLookupError, PermissionError):
        return


def split_extra(arguments: Sequence[str]) -> tuple[str, ...]:
    """Arguments behind `--`, for vLLM."""
    return tuple(argument for argument in arguments if argument != "--")
