"""Count the Python calls and files of the product that one operation passes through, and list them in order.

python benchmarks/walks.py [--list fetch|failure] [--url file,memory]

Each walk is measured several times after a warm-up, and the shortest counts: it has the fewest ticks of timers. Each
resumption of a coroutine is a call too, because it costs as much as one. A blank line in a list is a turn of the event
loop. Ticks of the watch of slow calls are counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

ROOT = f"{Path(__file__).parents[1]}/"
TICKS = ("Watch.run", "RealTimers.sleep")
"""Turns of the event loop that begin with one of these belong to no record."""
ROUNDS = 12


class Walk:
    """The calls between `start` and `stop`, by turns of the event loop."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []
        self._depth: dict[int, int] = {}

    def start(self) -> None:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(ROOT) or ".venv" in path or path == __file__:
            return
        thread = threading.get_ident()
        depth = self._depth.get(thread, 0)
        if event == "return":
            self._depth[thread] = max(depth - 1, 0)
            return
        if not depth:
            self.turns.append([])
        self._depth[thread] = depth + 1
        self.turns[-1].append(f"{path.removeprefix(ROOT)}:{frame.f_code.co_qualname}")

    def cut(self, last: str) -> None:
        """Drop what follows the last call of ``last``: the operation has ended there."""
        ends = [at for at, turn in enumerate(self.turns) if any(call.endswith(last) for call in turn)]
        if ends:
            del self.turns[ends[-1] + 1 :]
            turn = self.turns[ends[-1]]
            end = max(at for at, call in enumerate(turn) if call.endswith(last))
            del turn[end + 1 :]

    @property
    def own(self) -> list[list[str]]:
        return [turn for turn in self.turns if not any(call.endswith(TICKS) for call in turn[:2])]

    @property
    def calls(self) -> list[str]:
        return [call for turn in self.own for call in turn]

    def __str__(self) -> str:
        calls = self.calls
        ticks = sum(map(len, self.turns)) - len(calls)
        return f"{len(calls):5} calls, {len({call.partition(':')[0] for call in calls}):3} files, {ticks} of ticks"


async def shortest(operation: Callable[[], Awaitable[object]], seconds: float, first: str, last: str) -> Walk:
    """Measure what an operation starts, from ``first`` on up to ``last``."""
    walks: list[Walk] = []
    for at in range(ROUNDS):
        walk = Walk()
        if at < ROUNDS // 3:
            await operation()
            await asyncio.sleep(seconds)
            continue
        walk.start()
        await operation()
        await asyncio.sleep(seconds)
        walk.stop()
        walk.cut(last)
        begin = next((n for n, turn in enumerate(walk.turns) if any(first in call for call in turn)), 0)
        del walk.turns[:begin]
        if walk.turns and any(call.endswith(last) for call in walk.turns[-1]):
            walks.append(walk)
    return min(walks, key=lambda walk: len(walk.calls))


async def measure(url: str) -> dict[str, Walk]:
    from dlq import Retry
    from eventbus import EventBus

    bus = EventBus(url)
    bus.topic("good")
    bus.topic("bad")
    walks: dict[str, Walk] = {}

    @bus.consumer("good", group="good", commit_every=1)
    async def handler(value: bytes) -> None: ...

    @bus.consumer("bad", group="bad", retry=Retry(immediate=0))
    async def failing(value: bytes) -> None:
        raise ValueError

    async with bus:
        walks["fetch"] = await shortest(lambda: bus.send("good", b"x"), 0.1, "Runner._poll", "OffsetCommits.succeeded")
        walks["failure"] = await shortest(lambda: bus.send("bad", b"x"), 0.5, "Runner._poll", "OffsetCommits.succeeded")
    return walks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", default="", help="the walk whose calls are listed")
    parser.add_argument("--url", default="file,memory", help="the logs to measure with")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for kind in options.url.split(","):
        with tempfile.TemporaryDirectory() as folder:
            walks = asyncio.run(measure(f"file://{folder}/log" if kind == "file" else "memory://walks"))
        for name, walk in walks.items():
            print(f"{kind:7} {name:8} {walk}")
            if options.list == name:
                print("\n\n".join("\n".join(turn) for turn in walk.own))


if __name__ == "__main__":
    main()
