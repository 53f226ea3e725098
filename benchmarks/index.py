"""How fast the indexer is: first and second index, one edit, a branch switch; ctags and aider beside it.

    python benchmarks/index.py                             # all of it: several minutes
    python benchmarks/index.py --skip checkout             # a minute
    python benchmarks/index.py --aider-python PATH         # a Python that has aider-chat, for the comparison

    python benchmarks/index.py --aider-python PATH         # a Python with aider-chat, for the comparison
command in a process of its own, memory is that of the process and its workers together. What is not installed
is reported as not available.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import machine

from agentcache.indexer import ChangeRecord, Index, Watcher
from agentcache.indexer.identity import content_id

CHECKOUT_FILES = 12_000
AIDER = """
import os, sys, time
from aider.repomap import RepoMap
class Console:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None
    def read_text(self, name, *args, **kwargs):
        with open(name, encoding="utf-8", errors="replace") as file:
            return file.read()
class Model:
    def token_count(self, text):
        return len(text) // 4
root = sys.argv[1]
names = [os.path.join(at, name) for at, _, found in os.walk(root) for name in found if name.endswith(".py")]
repo_map = RepoMap(map_tokens=1024, root=root, main_model=Model(), io=Console())
begin = time.time()
tags = sum(len(repo_map.get_tags(name, os.path.relpath(name, root))) for name in names)
tags_s = time.time() - begin
repo_map.get_repo_map([], names)
print(tags, tags_s, time.time() - begin)
"""


def copy_library(folder: Path) -> int:
    """The standard library's `*.py` files, copied below `folder`; returns their bytes."""
    library = Path(sysconfig.get_path("stdlib"))
    size = 0
    for source in library.rglob("*.py"):
        below = source.relative_to(library)
        if "site-packages" in below.parts or not source.is_file():
            continue
        target = folder / below
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        size += target.stat().st_size
    return size


def run_measured(command: list[str], **environment: str) -> tuple[float, int, str]:
    """Wall seconds, peak bytes of the process and all below it, and stdout."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | environment
    )
    peak = 0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, tree_bytes(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    output = process.communicate()[0]
    seconds = time.monotonic() - begin
    done.set()
    sampler.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ... failed with {process.returncode}")
    return seconds, peak, output


def tree_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants, shared pages counted in each (Linux; 0 elsewhere)."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return resident + sum(tree_bytes(int(child)) for child in children)


def children_cpu_s() -> float:
    """CPU seconds of every process waited for so far: what a busy machine does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def agentcache(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from agentcache.cli.main import main; main()", *arguments]


def measure_index(tree: Path, home: Path, repeats: int) -> dict[str, Any]:
    """First and second index of `tree`, by the command: process start, listing and writing included."""
    first, second, peaks, cpu, report = [], [], [], [], {}
    for _ in range(repeats):
        shutil.rmtree(home, ignore_errors=True)
        cpu_before = children_cpu_s()
        seconds, peak, output = run_measured(
            agentcache("index", str(tree), "--json"), AGENTCACHE_HOME=str(home)
        )
        report = json.loads(output.splitlines()[-1])
        assert report["parsed_files"] == report["files"], report
        first.append(seconds)
        cpu.append(children_cpu_s() - cpu_before)
        peaks.append(peak)
        seconds, _, output = run_measured(agentcache("index", str(tree), "--json"), AGENTCACHE_HOME=str(home))
        assert json.loads(output.splitlines()[-1])["unchanged_files"] == report["files"]
        second.append(seconds)
    size = report["bytes"]
    return {
        "files": report["files"],
        "blocks": report["blocks"],
        "bytes": size,
        "first_s": [round(seconds, 2) for seconds in first],
        "first_mb_per_s_median": round(size / 1e6 / statistics.median(first), 2),
        "first_mb_per_s_best": round(size / 1e6 / min(first), 2),
        "first_cpu_s_median": round(statistics.median(cpu), 2),
        "peak_mb": round(max(peaks) / 1e6),
        "second_s_median": round(statistics.median(second), 3),
    }


def measure_edits(tree: Path, database: Path, edits: int = 20) -> dict[str, Any]:
    """From the return of a save to the change record, with the watcher running."""
    heard: list[tuple[float, list[ChangeRecord]]] = []
    wake = threading.Event()

    def listen(changes: list[ChangeRecord]) -> None:
        heard.append((time.monotonic(), changes))
        wake.set()

    path = tree / "argparse.py"
    text = path.read_text()
    latencies = []
    with Index.open(tree, database) as index:
        watcher = Watcher(index, listen)
        watcher.start()
        watcher.wait_ready()
        try:
            for number in range(edits):
                time.sleep(0.3)
                wake.clear()
                path.write_text(
                    text.replace("def error(self, message):", f"def error(self, message):  # {number}")
                )
                saved = time.monotonic()
                if not wake.wait(10):
                    raise SystemExit("an edit was missed")
                at, changes = heard[-1]
                assert [(c.path, len(c.added), len(c.removed)) for c in changes] == [("argparse.py", 1, 1)]
                latencies.append(at - saved)
        finally:
            watcher.stop()
            path.write_text(text)
    return {
        "edits": edits,
        "median_ms": round(1000 * statistics.median(latencies)),
        "max_ms": round(1000 * max(latencies)),
    }


def measure_checkout(folder: Path, repeats: int) -> dict[str, Any]:
    """Branch switches under a running watcher: from git's return to an index that equals the disk."""
    tree = folder / "switched"
    git = ["git", "-C", str(tree), "-c", "user.name=x", "-c", "user.email=x@example.org"]

    def write(version: str) -> None:
        for number in range(CHECKOUT_FILES):
            name = tree / f"p{number // 100:03}" / f"m{number}.py"
            name.parent.mkdir(exist_ok=True)
            name.write_text(f"V = {version!r}\n\n\ndef f{number}(x):\n    return x + {number}  # {version}\n")

    tree.mkdir()
    subprocess.run([*git, "init", "-q", "-b", "one"], check=True)
    expected = {}
    for branch in ("one", "two"):
        if branch == "two":
            subprocess.run([*git, "checkout", "-q", "-b", branch], check=True)
        write(branch)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", branch], check=True)
        names = [path.relative_to(tree).as_posix() for path in tree.rglob("*.py")]
        expected[branch] = {name: content_id((tree / name).read_bytes()) for name in names}
    settle, missed = [], 0
    with Index.open(tree, folder / "switched.db") as index:
        watcher = Watcher(index, lambda changes: None)
        watcher.start()
        watcher.wait_ready()
        try:
            for number in range(repeats):
                branch = ("one", "two")[number % 2]
                subprocess.run([*git, "checkout", "-q", branch], check=True)
                begin = time.monotonic()
                while time.monotonic() - begin < 30:
                    if {record.path: record.content_id for record in index.files()} == expected[branch]:
                        break
                    time.sleep(0.1)
                else:
                    missed += 1
                settle.append(time.monotonic() - begin)
                time.sleep(0.5)
        finally:
            watcher.stop()
    return {
        "files": CHECKOUT_FILES,
        "repeats": repeats,
        "missed": missed,
        "median_s": round(statistics.median(settle), 2),
        "max_s": round(max(settle), 2),
    }


def measure_ctags(tree: Path, folder: Path) -> dict[str, Any]:
    """universal-ctags over the same tree: definitions only, one process."""
    if shutil.which("ctags") is None:
        return {"not_available": "ctags is not installed"}
    output = folder / "tags"
    seconds = [
        run_measured(["ctags", "-R", "--languages=Python", "--fields=+ne", "-f", str(output), str(tree)])[0]
        for _ in range(3)
    ]
    with output.open("rb") as file:
        tags = sum(not line.startswith(b"!") for line in file)
    return {"seconds_median": round(statistics.median(seconds), 2), "tags": tags}


def measure_aider(tree: Path, folder: Path, python: str | None) -> dict[str, Any]:
    """aider's repository map over the same files, cold; in a copy, because it writes its cache there."""
    if python is None:
        return {"not_available": "give --aider-python"}
    copy = folder / "aider"
    shutil.copytree(tree, copy)
    command = [python, "-c", AIDER, str(copy)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"not_available": f"it failed: {error}"}
    tags, tags_s, map_s = done.stdout.split()[-3:]
    return {"tags": int(tags), "tags_s": round(float(tags_s), 2), "map_s": round(float(map_s), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="first and second index, so often")
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--aider-python", default=None, help="a Python that has aider-chat")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=["index", "edits", "checkout", "ctags", "aider"]
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine() | {"load_1min": round(os.getloadavg()[0], 2)}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "library"
        result["library_bytes"] = copy_library(tree)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "index": lambda: measure_index(tree, folder / "home", args.repeats),
            "edits": lambda: measure_edits(tree, folder / "edits.db"),
            "checkout": lambda: measure_checkout(folder, args.switches),
            "ctags": lambda: measure_ctags(tree, folder),
            "aider": lambda: measure_aider(tree, folder, args.aider_python),
        }
        for part, measure in parts.items():
            if part not in args.skip:
                result[part] = measure()
                if not args.json:
                    print(f"{part:>9}: {result[part]}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
