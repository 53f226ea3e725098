"""Real clients, headless, against the endpoint: one row each.

    python benchmarks/clients.py [--model MODEL] [--only NAME ...] [--json] [--engine "--max-model-len 32768"]

Installs each client into a folder of its own under agentcache's cache (npm or pip; nothing into this environment),
gives it a fresh copy of a small repository (itsdangerous' source distribution), and runs the command of its page in
docs/clients through `agentcache run`, behind `agentcache record`; twice, as nobody uses an agent once: what a first
session shows the server for the first time (system prompt, tools) is learned before the second, whose figures the row
has. Counters and TTFT are the server's (`GET /agentcache/requests`). Then the recorded requests of both sessions are
sent again, `exact`, one after another: what vLLM with prefix caching does with them. `ttft_ratio`: exact over fast of
the same request, median. A client that cannot run here gets a row with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine
from run import kept

from agentcache import paths
from agentcache.engine_client import EngineClient
from agentcache.listening import bind
from agentcache.models import resolve
from agentcache.replay.trace import PATHS
from agentcache.serve import ServeOptions, Server

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "clients"
INSTALLED = paths.home() / "clients"
REPOSITORY = "itsdangerous==2.2.0"
MAX_ANSWER = 64
"""Tokens an answer may have: a tiny model that rambles is stopped here."""
LIMIT_S = 120.0
"""A session of a client that does not end by itself is ended then."""
WARM_S, LEARN_S = 300.0, 240.0
ENGINE = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--override-generation-config", json.dumps({"max_new_tokens": MAX_ANSWER, "temperature": 0.0})),
)

TOOL_LOOP = '''"""Anthropic's SDK: a tool that reads a file, at most three turns, streamed."""

import os
from pathlib import Path

from anthropic import Anthropic

client = Anthropic()
tool = {
    "name": "read_file",
    "description": "Read a file of the repository.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
messages = [{"role": "user", "content": "What does src/itsdangerous/signer.py do? Read it."}]
for path in ("src/itsdangerous/signer.py", "src/itsdangerous/encoding.py", "src/itsdangerous/serializer.py"):
    with client.messages.stream(
        model=os.environ["ANTHROPIC_MODEL"], max_tokens=64, tools=[tool], messages=messages
    ) as stream:
        answer = stream.get_final_message()
    use = [block for block in answer.content if block.type == "tool_use"]
    call = use[0].model_dump(include={"type", "id", "name", "input"}) if use else {
        "type": "tool_use", "id": f"call_{len(messages)}", "name": "read_file", "input": {"path": path}
    }  # a tiny model may not call: the protocol is what is tried here
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": Path(path).read_text()}
    messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    print(answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.stop_reason)
'''


@dataclass(frozen=True, slots=True)
class Client:
    """packages: for pip or npm, the first one's version is shown; context: tokens its first prompt needs at least"""

    name: str
    installer: str
    packages: tuple[str, ...]
    context: int = 4096


CLIENTS = (
    Client("repoagent", "pip", ("repoagent==0.2.0",)),
    Client("aider", "pip", ("aider-chat==0.86.2",)),
    Client("mini-swe-agent", "pip", ("mini-swe-agent==2.4.6",)),
    Client("sdk", "pip", ("anthropic>=0.60,<3",)),
    Client("opencode", "npm", ("opencode-ai@1.18.33",), 16_384),
    Client("codex", "npm", ("@openai/codex@0.171.0",), 16_384),
    Client("qwen-code", "npm", ("@qwen-code/qwen-code@0.15.10",), 24_576),
    Client("claude-code", "npm", ("@anthropic-ai/claude-code@2.1.197",), 24_576),
)


class NotHere(Exception):
    """Why a client cannot run on this machine, in a few words."""


def command_of(name: str) -> list[str]:
    """What its page says, behind `agentcache run --`."""
    text = (PAGES / f"{name}.md").read_text()
    words = shlex.split(text.split("```bash\n", 1)[1].split("\n```", 1)[0])
    if words[:3] != ["agentcache", "run", "--"]:
        raise ValueError(f"docs/clients/{name}.md must begin its first command with `agentcache run --`")
    return words[3:]


def install(client: Client) -> tuple[Path, str]:
    """Folder with its programs, and its version. Raises NotHere."""
    folder = INSTALLED / client.name
    if client.installer == "npm":
        programs = folder / "node_modules" / ".bin"
        if not programs.is_dir():
            if shutil.which("npm") is None:
                raise NotHere("npm is not installed")
            folder.mkdir(parents=True, exist_ok=True)
            _quietly("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *client.packages)
        package = client.packages[0].rpartition("@")[0]
        version = json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
        return programs, version
    programs = folder / "bin"
    if not (folder / "installed").is_file():
        venv.create(folder, with_pip=True, clear=True)
        _quietly(str(programs / "pip"), "install", "-q", "--disable-pip-version-check", *client.packages)
        (folder / "installed").touch()
    name = client.packages[0].split("=")[0].split(">")[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return programs, subprocess.check_output([str(programs / "python"), "-c", code], text=True).strip()


def _quietly(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise NotHere(f"cannot be installed: {lines[-1][:160]}")


def repository(folder: Path) -> Path:
    """The small repository, as its maintainers publish it, under git: a fresh copy below `folder`."""
    cached = INSTALLED / "repository"
    if not list(cached.glob("*.tar.gz")):
        arguments = ("download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(cached), REPOSITORY)
        _quietly(sys.executable, "-m", "pip", *arguments)
    with tarfile.open(next(cached.glob("*.tar.gz"))) as archive:
        root = folder / archive.getnames()[0].split("/")[0]
        shutil.rmtree(root, ignore_errors=True)
        archive.extractall(folder, filter="data")
    (root / ".gitignore").write_text("__pycache__/\n.project_doc_record/\nmarkdown_docs/\n")
    (root / "tool_loop.py").write_text(TOOL_LOOP)
    git = ("git", "-C", str(root), "-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as published")):
        subprocess.run([*git, *words], check=True)
    return root


@contextmanager
def recorded(url: str, trace: Path) -> Iterator[str]:
    """`agentcache record` in front of the server."""
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "agentcache.cli", "record", "--upstream", url, "--out", str(trace)]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        proxy = f"http://127.0.0.1:{port}"
        with EngineClient(proxy) as client:
            deadline = time.monotonic() + 60.0
            while not client.healthy():
                if time.monotonic() > deadline:
                    raise RuntimeError("agentcache record did not start")
                time.sleep(0.2)
        yield proxy
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def run_client(client: Client, programs: Path, root: Path, proxy: str) -> str:
    """How it ended, in words."""
    env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(root.parent)}
    env["VIRTUAL_ENV"] = str(root.parent)  # nothing in it: RepoAgent would look names up there
    command = [sys.executable, "-m", "agentcache.cli", "run", "--url", proxy, "--", *command_of(client.name)]
    with (root.parent / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return f"exit {process.wait(LIMIT_S)}"
        except subprocess.TimeoutExpired:
            return f"stopped after {LIMIT_S:.0f} s"
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def records_since(client: EngineClient, seen: int) -> list[dict[str, Any]]:
    """The server's account of the requests after the first `seen`, the oldest first."""
    time.sleep(1.0)  # the account of a request comes a step after its last token
    answer = client.get("/agentcache/requests?limit=1000")
    return list(reversed(answer["requests"][: answer["seen"] - seen]))


def seen_by(client: EngineClient) -> int:
    return int(client.get("/agentcache/requests?limit=1")["seen"])


def again_exact(client: EngineClient, trace: Path, most: int, salt: str) -> list[dict[str, Any]]:
    """Send what was recorded again, as plain vLLM would take it; the server's account of each.

    salt: a page namespace of its own, without pages that the server's worker has computed meanwhile
    """
    import gzip

    opener = gzip.open if trace.suffix == ".gz" else open
    before = seen_by(client)
    sent = 0
    with opener(trace, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            path = record["path"].split("?")[0]
            if path not in PATHS.values() or sent == most:
                continue
            body = dict(record["body"])
            body["kv_transfer_params"] = {"agentcache": {"mode": "exact"}}
            if path != PATHS["messages"]:  # which has no such parameter
                body["cache_salt"] = salt
            with client.stream(path, body) as answer:
                for _ in answer.iter_raw():
                    pass
            sent += answer.status_code == 200
    return records_since(client, before)


def measure(client: Client, url: str, context: int, scratch: Path, sessions: int) -> dict[str, Any]:
    """One row: of the last session; `earlier` has the same figures of those before it."""
    row: dict[str, Any] = {"client": client.name}
    try:
        programs, row["version"] = install(client)
        if client.context > context:
            raise NotHere(
                f"its first prompt needs a context of {client.context} tokens, the model has {context}"
            )
    except NotHere as reason:
        return row | {"reason": str(reason)}
    traces = [scratch / f"trace-{number}.jsonl" for number in range(sessions)]
    with EngineClient(url) as engine:
        fast = [session(client, engine, programs, scratch, trace, row) for trace in traces]
        if not all(fast):
            output = (scratch / "output.txt").read_text(errors="replace").strip().splitlines()
            return row | {"requests": 0, "reason": f"no request was answered: {' '.join(output[-2:])[-300:]}"}
        salt = secrets.token_hex(8)
        exact = [again_exact(engine, trace, len(one), salt) for trace, one in zip(traces, fast, strict=True)]
    *earlier, last = [summary(one, other) for one, other in zip(fast, exact, strict=True)]
    return row | last | {"earlier": earlier}


def session(
    client: Client, engine: EngineClient, programs: Path, scratch: Path, trace: Path, row: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run the client once on a fresh copy of the repository, and wait for what the server learns of it.

    The server's account of every request. How it ended and the APIs used are noted in `row`.
    """
    root = repository(scratch)
    before = seen_by(engine)
    with recorded(engine.url, trace) as proxy:
        row["ended"] = run_client(client, programs, root, proxy)
    apis = [json.loads(line)["path"].split("?")[0] for line in trace.read_text().splitlines()]
    row["api"] = ", ".join(dict.fromkeys(path for path in apis if path in PATHS.values()))
    records = records_since(engine, before)
    engine.learned_all(LEARN_S)
    return records


def summary(fast: Sequence[dict[str, Any]], exact: Sequence[dict[str, Any]]) -> dict[str, Any]:
    prompt = sum(one["prompt_tokens"] for one in fast)
    pairs = [
        (one["ttft_s"], other["ttft_s"])
        for one, other in zip(fast, exact, strict=False)
        if one["ttft_s"] and other["ttft_s"] and one["prompt_tokens"] == other["prompt_tokens"]
    ]
    result: dict[str, Any] = {
        "requests": len(fast),
        "prompt_tokens": prompt,
        "prefix_hit_share": round(sum(one["prefix_hit_tokens"] for one in fast) / prompt, 4),
        "reused_share": round(sum(one["reused_tokens"] for one in fast) / prompt, 4),
        "exact_prefix_hit_share": round(
            sum(one["prefix_hit_tokens"] for one in exact)
            / max(1, sum(one["prompt_tokens"] for one in exact)),
            4,
        ),
        "pairs": len(pairs),
    }
    if pairs:
        result["ttft_fast_s"] = round(statistics.median(pair[0] for pair in pairs), 3)
        result["ttft_exact_s"] = round(statistics.median(pair[1] for pair in pairs), 3)
        result["ttft_ratio"] = round(statistics.median(pair[1] / pair[0] for pair in pairs), 2)
    return result


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| client | version | API | requests | prompt tokens | prefix hit | reused | TTFT fast | exact | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['client']} | {row.get('version', '')} |"
        if "reason" in row:
            lines.append(f"{head} {row['reason']} | | | | | | | |")
            continue
        ttft = (
            f"{row['ttft_fast_s']:.3f} s | {row['ttft_exact_s']:.3f} s | {row['ttft_ratio']:.1f}x"
            if row["pairs"]
            else " | | "
        )
        lines.append(
            f"{head} {row['api']} | {row['requests']} | {row['prompt_tokens']:,} | {row['prefix_hit_share']:.1%} "
            f"| {row['reused_share']:.1%} | {ttft} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", nargs="*", choices=[client.name for client in CLIENTS])
    parser.add_argument("--engine", default="", help="further arguments for vLLM")
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=2, help="of each client; rows are of the last one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--out", type=Path, help="JSON file; rows of other clients that it has already are kept"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    chosen = [client for client in CLIENTS if not options.only or client.name in options.only]
    rows: list[dict[str, Any]] = []
    folder = resolve(options.model)
    with tempfile.TemporaryDirectory(prefix="agentcache-clients-") as scratch:
        os.environ["AGENTCACHE_HOME"] = str(Path(scratch) / "home")  # a server that has learned nothing yet
        (kept := Path(scratch) / "kept").mkdir()
        serve = ServeOptions(
            model=options.model,
            folder=folder,
            roots=(repository(kept),),
            port=0,
            kv_gib=options.kv_gib,
            extra=(*ENGINE, *shlex.split(options.engine)),
        )
        with Server(serve, lambda line: print(line, file=sys.stderr)) as server:
            server.wait_ready()
            server.start_background()
            context = int(server.client.get("/v1/models")["data"][0]["max_model_len"])
            server.client.warmed_all(WARM_S)  # as it would be by the time somebody has started an agent
            for client in chosen:
                (own := Path(scratch) / client.name).mkdir()
                rows.append(measure(client, server.engine.url, context, own, options.sessions))
                print(json.dumps(rows[-1]), file=sys.stderr)
            version = server.client.get("/version")["version"]
    about = {"model": Path(options.model).name, "context": context, "vllm": version, "cpu": machine()["cpu"]}
    rows = [row | about for row in rows]
    print(table(rows))
    result = {
        "repository": REPOSITORY,
        "max_answer_tokens": MAX_ANSWER,
        "clients": {row["client"]: row for row in rows},
    }
    if options.out is not None:
        write(options.out, result, time.perf_counter() - began)
    if options.json:
        print(json.dumps(result))


def write(out: Path, result: dict[str, Any], seconds: float) -> None:
    """Keep what is there of clients that were not run now, or could not be: some need another model."""
    rows = json.loads(out.read_text())["result"]["clients"] if out.exists() else {}
    for name, row in result["clients"].items():
        if "requests" in row or name not in rows:
            rows[name] = row
    record = kept("clients", result | {"clients": rows}, seconds)
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
