"""git, asked carefully: a repository's own configuration may name commands, and none of them may run.

GitPython finds the repository; its way of running git leaves a timer that outlives Ctrl-C, so git is run here.
Every call carries `core.fsmonitor=false` and `core.hooksPath=/dev/null`, takes no locks, asks no questions and
fetches nothing. Only listings and stored bytes are asked for: neither applies a filter.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HARDENING = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "protocol.allow=never",
)

_TIMEOUT_S = 120


class GitRefused(Exception):
    """git is missing, does not trust the folder, or failed; the message is its own last line."""


@dataclass(frozen=True, slots=True)
class GitListing:
    """What git says lies below a folder; paths are relative to it, `os.fsdecode`d.

    tracked, untracked: files that are not ignored; links are among them
    ignored: files and folders (with a slash behind them) that are
    submodules: folders that hold a checked-out submodule
    nested: folders that are repositories of their own
    """

    tracked: list[str]
    untracked: list[str]
    ignored: list[str]
    submodules: list[str]
    nested: list[str]


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder in a git work tree. `git_dir` is this work tree's own (`.git/worktrees/x` in a linked one)."""

    folder: Path
    work_tree: Path
    git_dir: Path
    common_dir: Path

    def list_files(self) -> GitListing | None:
        """Everything below `folder`; None if all of it is ignored. GitRefused if git does not answer."""
        tracked: list[str] = []
        submodules: list[str] = []
        for entry in self._split("ls-files", "-z", "-s"):
            meta, _, path = entry.partition("\t")
            if meta.startswith("160000"):
                submodules.append(path)
            elif not tracked or tracked[-1] != path:
                # A file in conflict is listed once a stage.
                tracked.append(path)
        untracked, nested = [], []
        for path in self._split("ls-files", "-z", "-o", "--exclude-standard"):
            if path.endswith("/"):
                nested.append(path[:-1])
            else:
                untracked.append(path)
        if self.folder != self.work_tree and not (tracked or untracked or submodules or nested):
            return None
        ignored = self._split("ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory")
        return GitListing(tracked, untracked, ignored, submodules, nested)

    def worktrees(self) -> list[Path]:
        """Every work tree of this repository, this one among them. GitRefused if git does not answer."""
        lines = self._run("worktree", "list", "--porcelain", "-z").split("\0")
        return [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")]

    def files_at(self, revision: str) -> Iterator[tuple[str, bytes]]:
        """Files below `folder` as they were at a commit: path and bytes as stored, no filter applied; links and
        submodules are left out. GitRefused if there is no such revision."""
        commit = self._run("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
        files: list[tuple[str, str]] = []
        for entry in self._split("ls-tree", "-r", "-z", commit):
            meta, _, path = entry.partition("\t")
            if meta.startswith("100"):
                files.append((path, meta.split(" ")[2]))
        names = "".join(f"{name}\n" for _, name in files)
        data = self._run_bytes("cat-file", "--batch", given=names.encode())
        here = 0
        for path, _ in files:
            head_end = data.index(b"\n", here)
            size = int(data[here:head_end].split(b" ")[2])
            yield path, data[head_end + 1 : head_end + 1 + size]
            here = head_end + size + 2

    def recently_committed(self, num_commits: int = 30) -> list[str]:
        """Files below `folder` that the last commits changed, the latest first, gone ones among them.

        GitRefused if there is no commit, or git does not answer.
        """
        commits = self._run("rev-list", f"--max-count={num_commits}", "HEAD")
        # Plumbing: `git log` may run the program that checks signatures.
        changed = self._run_bytes(
            *("diff-tree", "--stdin", "-r", "-m", "--root", "--relative", "--no-commit-id", "--name-only"),
            *("--no-ext-diff", "--no-textconv", "-z"),
            given=commits.encode(),
        )
        return list(dict.fromkeys(os.fsdecode(path) for path in changed.split(b"\0") if path))

    def head(self) -> str:
        """What HEAD is now: its text and the commit it leads to; "" before the first commit.

        Read from files, so that a watcher can ask every second.
        """
        text = _read(self.git_dir / "HEAD")
        if not text.startswith("ref: "):
            return text
        name = text.removeprefix("ref: ")
        commit = _read(self.git_dir / name) or _read(self.common_dir / name)
        if not commit:
            packed = _read(self.common_dir / "packed-refs").splitlines()
            commit = next((line.split(" ")[0] for line in packed if line.endswith(f" {name}")), "")
        return f"{text} {commit}"

    def _split(self, *arguments: str) -> list[str]:
        return [entry for entry in self._run(*arguments).split("\0") if entry]

    def _run(self, *arguments: str) -> str:
        return os.fsdecode(self._run_bytes(*arguments))

    def _run_bytes(self, *arguments: str, given: bytes = b"") -> bytes:
        options = [word for setting in HARDENING for word in ("-c", setting)]
        try:
            done = subprocess.run(
                ["git", *options, *arguments],
                cwd=self.folder,
                env=os.environ | self._environment(),
                input=given,
                capture_output=True,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GitRefused(str(error)) from error
        if done.returncode:
            complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise GitRefused(complaint[-1] if complaint else f"exit status {done.returncode}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Says which repository is meant, whatever the caller's environment or the configuration say."""
        return {
            "GIT_DIR": str(self.git_dir),
            "GIT_COMMON_DIR": str(self.common_dir),
            "GIT_WORK_TREE": str(self.work_tree),
            "GIT_INDEX_FILE": str(self.git_dir / "index"),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_PAGER": "cat",
            "LC_ALL": "C",
        }


def find_checkout(folder: Path) -> Checkout | None:
    """The git work tree that `folder` is in; None if it is in none, or git is not installed."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from git import InvalidGitRepositoryError, NoSuchPathError, Repo

    try:
        with Repo(folder, search_parent_directories=True) as repo:
            work_tree, git_dir, common_dir = repo.working_tree_dir, repo.git_dir, repo.common_dir
    except (InvalidGitRepositoryError, NoSuchPathError, OSError, ValueError):
        return None
    if work_tree is None:
        return None
    resolved, tree = folder.resolve(), Path(work_tree).resolve()
    # A work tree that the configuration moved elsewhere says nothing about this folder.
    if resolved != tree and tree not in resolved.parents:
        return None
    return Checkout(resolved, tree, Path(git_dir).resolve(), Path(common_dir).resolve())


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
