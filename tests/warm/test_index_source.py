"""An index as a source, on an engine that only counts: in which order files come, and what an edit costs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcache.context import Streams
from agentcache.entry import entries_of_stream
from agentcache.indexer import Index
from agentcache.warm.budget import Budget
from agentcache.warm.index_source import IndexSource
from agentcache.warm.job import Urgency
from agentcache.warm.queue import WarmItem
from agentcache.warm.service import WarmService
from tests.warm.fake import FINGERPRINT, FakeEngine


def function(name: str, body: str = "pass") -> str:
    return (
        f"def {name}(first, second):\n"
        f'    """What {name} does, told at a length that makes it worth a block of its own, for whoever asks."""\n'
        f"    {body}\n    return first + second\n\n\n"
    )


FILE = "import os\n\n\n" + "".join(function(f"part_{n}", f"os.remove('{n}')") for n in range(12))


class Scene:
    """A repository, its index, and a service with one source on a counting engine."""

    def __init__(self, root: Path, model: str, max_tokens: int = 4096) -> None:
        self.root = root
        self.index = Index.open(root, db_path=root.parent / "index.db")
        self.index.update()
        self.engine = FakeEngine(page_size=4096)
        self.streams = Streams(model, max_tokens)
        self.restart()

    def restart(self) -> None:
        """A new worker on the same engine."""
        self.source = IndexSource(self.index, self.streams, FINGERPRINT, lambda ids: self.service.demote(ids))
        self.service = WarmService(self.engine, [self.source], Budget(1 << 40, 10), max_step_tokens=512)

    def warm(self) -> int:
        """Run until nothing is left; the tokens that the engine computed."""
        before = sum(self.engine.computed)
        self.service.run_once()
        return sum(self.engine.computed) - before

    def save(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)
        self.source.edited(self.index.refresh([path]))

    def only_edits(self) -> int:
        """Work until the urgent part is done; the tokens computed for it."""
        before = sum(self.engine.computed)
        while self.source.urgency() == Urgency.EDIT or any(
            one.job.urgency == Urgency.EDIT for one in self.service._begun
        ):
            self.service._turn()
        return sum(self.engine.computed) - before

    def order(self) -> list[str]:
        """Paths of what waits, the most urgent first, each once."""
        return list(dict.fromkeys(item.path for item in self.source.queue))

    def tokens(self, text: str) -> int:
        return self.streams.count(text)


@pytest.fixture
def make(tmp_path: Path, model_folder: str) -> Iterator[Callable[..., Scene]]:
    scenes: list[Scene] = []

    def make(max_tokens: int = 4096, **files: str) -> Scene:
        root = tmp_path / "repository"
        root.mkdir()
        for name, text in files.items():
            (root / f"{name}.py").write_text(text)
        scenes.append(Scene(root, model_folder, max_tokens))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.index.close()


def test_only_the_edited_block_is_computed_before_the_rest_waits_for_idle_time(
    make: Callable[..., Scene],
) -> None:
    scene = make(big=FILE)
    scene.source.fill()
    scene.warm()
    edited = FILE.replace("os.remove('4')", "os.remove('four')")
    scene.save("big.py", edited)
    size = scene.tokens(function("part_4", "os.remove('four')"))
    assert abs(scene.only_edits() - size) <= 2
    assert scene.source.last_edit is not None
    assert scene.source.last_edit.tokens == pytest.approx(size, abs=2)
    assert scene.source.last_edit.file_tokens == scene.tokens(edited)
    assert scene.source.queue.counts()[Urgency.REFRESH] == 1
    behind = edited[edited.index("def part_5") :]
    assert scene.warm() == pytest.approx(scene.tokens(behind) + size, abs=4), "refreshed, and the block alone"


def test_two_edits_cost_two_blocks_and_nothing_between(make: Callable[..., Scene]) -> None:
    scene = make(big=FILE)
    scene.source.fill()
    scene.warm()
    first, last = function("part_1", "print('one')"), function("part_10", "print('ten')")
    edited = FILE.replace(function("part_1", "os.remove('1')"), first)
    edited = edited.replace(function("part_10", "os.remove('10')"), last)
    scene.save("big.py", edited)
    assert scene.only_edits() == pytest.approx(scene.tokens(first) + scene.tokens(last), abs=4)


def test_an_undo_costs_nothing(make: Callable[..., Scene]) -> None:
    scene = make(big=FILE)
    scene.source.fill()
    scene.warm()
    scene.save("big.py", FILE.replace("os.remove('4')", "os.remove('four')"))
    scene.warm()
    scene.save("big.py", FILE)
    assert scene.warm() == 0
    assert scene.service.progress.state == "idle"


def test_a_file_that_was_never_warm_is_computed_up_to_the_edit_first(make: Callable[..., Scene]) -> None:
    scene = make(big=FILE)
    scene.save("big.py", FILE.replace("os.remove('4')", "os.remove('four')"))
    upto = FILE[: FILE.index("def part_5")]
    assert scene.only_edits() == pytest.approx(scene.tokens(upto), abs=4)
    assert scene.source.queue.urgency() == Urgency.EDITED


def test_nothing_is_computed_again_by_a_second_worker(make: Callable[..., Scene]) -> None:
    scene = make(one=FILE, two=function("alone"))
    scene.source.fill()
    assert scene.warm() > 0
    scene.restart()
    scene.source.fill()
    assert scene.warm() == 0
    assert scene.source.warm_blocks() == scene.source.num_blocks() > 0


def test_windows_of_a_long_file_survive_an_edit(make: Callable[..., Scene]) -> None:
    scene = make(max_tokens=160, big=FILE)
    scene.source.fill()
    scene.warm()
    assert all(len(tokens) <= 160 for tokens, _ in scene.engine.calls)
    scene.save("big.py", FILE.replace("os.remove('7')", "os.remove('seven')"))
    assert 0 < scene.only_edits() < 160
    scene.warm()
    scene.restart()
    scene.source.fill()
    assert scene.warm() == 0, "what a fresh look at the file wants is there"


def test_what_agents_used_comes_first_then_its_neighbours_then_commits_then_importance(
    make: Callable[..., Scene],
) -> None:
    scene = make(
        hub=function("hub"),
        user=f"from hub import hub\nfrom far import far\n\n\n{function('user', 'hub(1, 2)')}",
        far=function("far"),
        lonely=function("lonely"),
        committed=function("committed"),
        popular=function("popular"),
        fan_1="from popular import popular\npopular(1, 2)\n",
        fan_2="from popular import popular\npopular(1, 2)\n",
    )
    run = ["git", "-C", str(scene.root), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "add", "committed.py"], check=True)
    subprocess.run([*run, "commit", "-qm", "one file"], check=True)
    scene.source.fill(only={"user.py"})
    scene.warm()
    scene.source.fill()
    scene.source.used([list(scene.engine.stored)])
    order = scene.order()
    assert set(order[:2]) == {"far.py", "hub.py"}, "neighbours of what was used"
    assert order[2] == "committed.py"
    assert order.index("popular.py") < order.index("lonely.py")
    scene.save("lonely.py", function("lonely", "print()"))
    scene.only_edits()
    assert scene.order().index("lonely.py") < scene.order().index("committed.py")


def test_a_block_that_traffic_asks_for_by_itself_gets_an_entry_alone(make: Callable[..., Scene]) -> None:
    scene = make(big=FILE, other=function("other"))
    scene.source.add([WarmItem("big.py")], Urgency.IMPORTANT)
    scene.warm()
    (stream,) = scene.streams.of_file(*scene.index.snapshot("big.py"))
    block = next(block for block in scene.index.blocks("big.py") if block.name == "part_6")
    at = next(n for n, some in enumerate(stream.covers) if block.id in some)
    used = entries_of_stream(FINGERPRINT, "index", stream.tokens, stream.cuts)[at]
    scene.source.used([[used.id]])
    assert scene.source.queue.counts()[Urgency.ASKED_ALONE] == 1
    assert scene.source.queue.pop()[0].block == block.id


def test_a_deleted_file_is_forgotten(make: Callable[..., Scene]) -> None:
    scene = make(big=FILE, other=function("other"))
    scene.source.fill()
    scene.warm()
    (scene.root / "big.py").unlink()
    scene.source.edited(scene.index.refresh(["big.py"]))
    assert scene.warm() == 0
    assert scene.source.warm_blocks() == scene.source.num_blocks() == len(scene.index.blocks("other.py"))
