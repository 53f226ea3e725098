"""Parsing many files at once, in processes that may hang or crash without taking anybody along.

Workers are plain child processes on two pipes: no fork of a process that has threads, no second run of the
host's main module, nothing left when the host goes (its end of the pipe closes, and the worker ends). A few
files are parsed right here, since a worker takes longer to start than they take to parse.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from agentcache.indexer.parse import PARSE_BUDGET_S, Parsed, parse_bytes, parse_windows
from agentcache.indexer.worker import unpacked

HERE_MAX_FILES = 64
HERE_MAX_BYTES = 1_000_000
"""Up to here no worker is started."""

_PIPE_BYTES = 1 << 20
_SMALLEST_PIPE_BYTES = 1 << 16
_MAX_QUEUED = 64
_JOB_OVERHEAD = 512
_BOOT = (
    "import sys; budget_s, *sys.path[:] = sys.argv[1:]; "
    "from agentcache.indexer.worker import main; main(float(budget_s))"
)


class Job(NamedTuple):
    """Bytes to parse; `key` is the caller's."""

    key: tuple[str, str]
    language: str
    data: bytes

    @property
    def cost(self) -> int:
        """Bytes that it takes in a pipe, and a little."""
        return len(self.data) + _JOB_OVERHEAD


def parse_all(
    jobs: Iterable[Job], num_workers: int, budget_s: float = PARSE_BUDGET_S
) -> Generator[tuple[Job, Parsed]]:
    """Parse every job, in any order. `jobs` is drawn from as workers become free.

    A file that makes its worker hang or die comes back as line windows, with a note.
    """
    source = iter(jobs)
    few: list[Job] = []
    num_bytes = 0
    for job in source:
        few.append(job)
        num_bytes += len(job.data)
        if len(few) > HERE_MAX_FILES or num_bytes > HERE_MAX_BYTES:
            pool = _Pool(budget_s)
            try:
                pool.start(num_workers)
                yield from pool.run(deque(few), source)
            finally:
                pool.close()
            return
    for job in few:
        yield job, _parse_here(job, budget_s)


def _parse_here(job: Job, budget_s: float) -> Parsed:
    try:
        return parse_bytes(job.data, job.language, budget_s)
    except Exception as error:
        # What a worker would have died of: a fault of ours or of a grammar, and no reason to lose other files.
        return parse_windows(job.data, note=f"the parser failed ({error!r}), kept as line windows")


@dataclass(slots=True)
class _Worker:
    """A child process and the jobs it has been given and has not answered, in order."""

    process: subprocess.Popen[bytes]
    requests: Connection
    answers: Connection
    pipe_bytes: int
    jobs: deque[Job] = field(default_factory=deque)
    cost: int = 0

    def takes(self, job: Job) -> bool:
        """Whether sending `job` cannot block: it fits the pipe, or the worker waits for it."""
        return not self.jobs or (self.cost + job.cost <= self.pipe_bytes and len(self.jobs) < _MAX_QUEUED)

    def send(self, job: Job) -> None:
        self.jobs.append(job)
        self.cost += job.cost
        # If it died on an earlier job, the end of its answers will say so.
        with contextlib.suppress(OSError):
            self.requests.send_bytes(marshal.dumps((job.language, job.data)))

    def stop(self) -> None:
        self.requests.close()
        self.answers.close()
        self.process.kill()
        self.process.wait()


class _Pool:
    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._workers: list[_Worker] = []

    def start(self, num_workers: int) -> None:
        for _ in range(num_workers):
            self._workers.append(_start(self._budget_s))

    def run(self, waiting: deque[Job], source: Iterator[Job]) -> Iterator[tuple[Job, Parsed]]:
        while True:
            self._feed(waiting, source)
            busy = [worker for worker in self._workers if worker.jobs]
            if not busy:
                return
            ready = wait([worker.answers for worker in busy])
            for at, worker in enumerate(self._workers):
                if worker.answers in ready:
                    yield self._answer(at)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _feed(self, waiting: deque[Job], source: Iterator[Job]) -> None:
        """Fill the workers' pipes, the emptiest first."""
        while True:
            if not waiting:
                job = next(source, None)
                if job is None:
                    return
                waiting.append(job)
            worker = min(self._workers, key=lambda candidate: candidate.cost)
            if not worker.takes(waiting[0]):
                return
            worker.send(waiting.popleft())

    def _answer(self, at: int) -> tuple[Job, Parsed]:
        worker = self._workers[at]
        try:
            answer = marshal.loads(worker.answers.recv_bytes())
        except (EOFError, OSError):
            return self._replace(at)
        job = worker.jobs.popleft()
        worker.cost -= job.cost
        return job, unpacked(answer)

    def _replace(self, at: int) -> tuple[Job, Parsed]:
        """A worker died: give up on the job it was at, and its other jobs to a new one."""
        old = self._workers[at]
        code = old.process.wait()
        old.stop()
        self._workers[at] = _start(self._budget_s)
        job, *others = old.jobs
        for other in others:
            self._workers[at].send(other)
        trouble = "parsing hung" if code == -signal.SIGPROF else f"the parser crashed (exit status {code})"
        return job, parse_windows(job.data, note=f"{trouble}, kept as line windows")


def _start(budget_s: float) -> _Worker:
    path = [entry or os.getcwd() for entry in sys.path]
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(budget_s), *path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        process_group=0,  # Ctrl-C is the host's affair
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pipe_bytes = min(_widen(process.stdin.fileno()), _widen(process.stdout.fileno()))
    requests = Connection(os.dup(process.stdin.fileno()), readable=False)
    answers = Connection(os.dup(process.stdout.fileno()), writable=False)
    process.stdin.close()
    process.stdout.close()
    return _Worker(process, requests, answers, pipe_bytes // 2)


def _widen(handle: int) -> int:
    """Make a pipe hold more, where the system lets us; returns how many bytes it holds."""
    try:
        return fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (AttributeError, OSError):
        return _SMALLEST_PIPE_BYTES
