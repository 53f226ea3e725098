"""What learning is worth, and what numbers that move cost: no engine, counts alone.

    python benchmarks/learn.py TRACE... --repo PATH

traces  `agentcache replay`'s policy with what a request leaves behind learned at once, or only the second time it is
        seen; answers likewise at once. Hit rate, and tokens computed in idle time for each prompt token.
numbers each Python file of PATH, stored as a client shows it that numbers lines, asked for with one line inserted near
        its top: tokens matched and worth reusing, plainly and with runs joined across the numbers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from machine import machine

from agentcache.context import Streams
from agentcache.context.streams import max_position
from agentcache.entry import Tokens, as_tokens, entries_of_stream
from agentcache.indexer import Index
from agentcache.learn.runs import MIN_TOKENS, mask_of, runs_to_learn, stride_of
from agentcache.learn.views import NUMBERS, View
from agentcache.match import Matcher
from agentcache.models import resolve
from agentcache.plan import RecomputePolicy, make_plan
from agentcache.plan.planner import reused_positions
from agentcache.replay import replay as replaying
from agentcache.replay.formats import read_traces
from agentcache.replay.learn import Learner
from agentcache.replay.outcome import Mask, Origin
from agentcache.replay.prompt import Prompt
from agentcache.replay.source import MODEL, Known, Source

OWN = "salt:"
INSERTED_AT = 5


class SecondTime(Learner):
    """Learns text once it has come again, and answers at once."""

    def __init__(self, encode: Callable[[str], Tokens]) -> None:
        super().__init__(encode)
        self._seen = Matcher()

    def learned(self, prompt: Prompt, reused: Mask) -> Iterator[Known]:
        for start, stop in runs_to_learn(reused):
            run = prompt.tokens[start:stop].copy()
            again = mask_of(len(run), ((s.start, s.stop) for s in self._seen.match(run, salts=(OWN,))))
            for first, last in runs_to_learn(~again, MIN_TOKENS):
                yield Known(_entry(run[first:last].copy()), Origin.LEARNED, "again")
            entry = _entry(run)
            self._seen.add(entry, stride_of(entry))
        yield from super().learned(prompt, mask_of(len(prompt), [(0, len(prompt))]))


def _entry(tokens: Tokens) -> Any:
    return entries_of_stream(MODEL, OWN, tokens, [0, len(tokens)])[0]


def traces(paths: Sequence[Path], repo: Sequence[str], folder: Path, streams: Streams) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, learner in (("at once", Learner), ("second time", SecondTime)):
        replaying.Learner = learner  # type: ignore[attr-defined]
        with Source(repo, streams) as source:
            run = replaying.replay(read_traces(paths), folder, source)
        assert run.blended is not None
        tally = run.tallies["agentcache"]
        prompt = int(tally.prompt.sum())
        found[name] = {
            "hit_rate": round(int(tally.reused.sum()) / prompt, 4),
            "learned_rate": round(run.blended.learned_tokens / prompt, 4),
            "prompt_tokens": prompt,
        }
    return found


def numbers(repo: Path, streams: Streams, style: str, joined: bool) -> dict[str, float]:
    total = matched = reused = 0
    with Index.open(repo) as index:
        index.update(changes=False)
        for record in index.files():
            data, blocks = index.snapshot(record.path)
            lines = data.decode(errors="replace").split("\n")
            if not record.path.endswith(".py") or len(lines) < 20:
                continue
            matcher = Matcher()
            for stream in streams.of_file(*View(style).show(data, blocks)):
                for info in entries_of_stream(MODEL, OWN, stream.tokens, stream.cuts):
                    matcher.add(info)
            lines.insert(INSERTED_AT, "# one more line")
            shown = "".join(f"{NUMBERS[style](n)}{line}\n" for n, line in enumerate(lines, start=1))
            prompt = as_tokens(streams.encode(f"Here is the file:\n{shown}\nWhat now?"))
            spans = matcher.match(prompt, salts=(OWN,), joined=joined)
            plan = make_plan(len(prompt), 0, spans, RecomputePolicy())
            total += len(prompt)
            matched += sum(span.num_matched for span in spans)
            reused += len(reused_positions(plan)) if plan else 0
    return {"tokens": total, "matched": round(matched / total, 4), "reused": round(reused / total, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", type=Path, nargs="*", help="replayed together, in this order")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    args = parser.parse_args()
    folder = Path(resolve(args.model))
    streams = Streams(str(folder), max_position(str(folder)) or 32_768)
    result: dict[str, Any] = {"benchmark": "learn", "model": args.model, "machine": machine()}
    if args.traces:
        result["traces"] = traces(args.traces, [args.repo], folder, streams)
    result["numbers"] = {
        style: {
            name: numbers(Path(args.repo), streams, style, joined)
            for name, joined in (("plainly", False), ("joined", True))
        }
        for style in ("tab", "cat-n", "colon")
    }
    if not args.json:
        for part in ("traces", "numbers"):
            print(json.dumps(result.get(part, {}), indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
