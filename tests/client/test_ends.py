"""Each way to end a handler, in each delivery mode: which records are handled, repeated, lost or given back.

The expected results are the table in docs/how-to/lifecycle.md, "What an end leaves".
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from dlq import Retry
from eventbus import ConsumerRecord
from eventbus.errors import HandlerError, StoppedBySignal
from eventbus.testing import TestBus

COUNT = 12
FIRST_SLOW = 5
"""Records from this offset on wait in the handler until the test lets them go."""
TABLE = re.search(r"## What an end leaves\n.*?\n(\|.*?)\n\n", Path("docs/how-to/lifecycle.md").read_text(), re.DOTALL)

MODES: dict[str, dict[str, Any]] = {
    "at least once": {},
    "manual ack": {"ack": "manual"},
    "batch": {"batch": 3},
    "key": {"order": "key", "concurrency": 2},
    "none": {"order": "none", "concurrency": 2},
    "at most once": {"delivery": "at-most-once"},
    "exactly once": {"exactly_once": True},
    "retry": {"retry": Retry(immediate=0, delays=["1s"], jitter=False)},
}
COLUMNS = {"manual ack": "at least once", "batch": "at least once", "key": "`order=\"key\"`, `\"none\"`",
           "none": "`order=\"key\"`, `\"none\"`", "retry": "`retry=`"}  # fmt: skip
"""The columns of modes that have another name in the table."""
REPORTS = {
    "batch": "t-0 offsets 3 to 5 (3 records)",
    "key": "t-0 offsets 5 to 8 (2 records)",  # 6 and 7 have no worker
    "none": "t-0 offsets 5 to 6 (2 records)",
    "exactly once": "t-0 offsets 0 to 5 (6 records)",
}
"""The records that the log names when the drain timeout is over; in other modes it is one."""


def table() -> dict[tuple[str, str], str]:
    assert TABLE is not None, "docs/how-to/lifecycle.md has no table of ends"
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[1].splitlines())
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


class Scene:
    """A bus with a handler that has handled `FIRST_SLOW` records, and has begun the following records."""

    def __init__(self, **options: Any) -> None:
        self.bus = TestBus()
        self.bus.topic("t", partitions=1)
        self.begun, self.returned = Counter[int](), Counter[int]()
        self.in_flight = set[int]()
        self.fails, self.is_slow = False, True
        self.go_on = anyio.Event()
        if "batch" in options:

            @self.bus.consumer("t", group="g", **options)
            async def handle_batch(values: list[int]) -> None:
                await self._handle(values)
        else:

            @self.bus.consumer("t", group="g", **options)
            async def handle(record: ConsumerRecord) -> None:
                await self._handle([record.offset])
                if options.get("ack") == "manual":
                    record.ack()

    async def _handle(self, offsets: list[int]) -> None:
        self.begun.update(offsets)
        if offsets[-1] >= FIRST_SLOW and self.is_slow:
            if not self.fails:
                try:
                    await self.go_on.wait()
                finally:
                    self.is_slow = False  # also when cancelled: the next owner may begin at once
            elif FIRST_SLOW in offsets:
                self.in_flight = set(offsets)
                raise ValueError("no")
        self.returned.update(offsets)

    async def begin(self) -> None:
        await self.bus.send_many("t", range(COUNT), key=lambda value: b"%d" % value)
        await self.bus.clock.advance(seconds=1)  # what has returned is committed
        self.in_flight = self.in_flight or set(self.begun) - set(self.returned)

    async def let_go(self) -> None:
        await self.bus.clock.settle()
        self.go_on.set()

    async def time_is_over(self) -> None:
        await self.bus.clock.advance(seconds=31)

    async def end(self, how: str) -> None:
        faults = self.bus.log.faults
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks, self.bus:
                await self.begin()
                match how:
                    case "an orderly stop":
                        tasks.start_soon(self.let_go)
                    case "the drain timeout":
                        tasks.start_soon(self.time_is_over)
                    case "the partition is revoked":
                        tasks.start_soon(self.let_go)
                        await faults.rebalance("g")
                    case "it is revoked, and the drain timeout":
                        tasks.start_soon(self.time_is_over)
                        await faults.rebalance("g")
                    case "the partition is lost":
                        await faults.lose("g")
                        await self.let_go()
                        await self.bus.clock.advance(seconds=20)
                    case "it is lost, and the drain timeout":
                        await faults.lose("g")
                        await self.bus.clock.settle()
                        tasks.start_soon(self.time_is_over)
                    case "a second signal":
                        self.bus.context.bus_run.stop_at_once(signal.SIGTERM)
                    case "cancelled from outside":
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
                    case "an exception in the bus":
                        faults.fail_next("fetch", RuntimeError("a bug of the bus"))
                        await self.bus.send("t", COUNT)
                        await self.bus.clock.advance(seconds=1)
                    case _:
                        assert how.startswith("`on_error=")

    async def go_on_elsewhere(self) -> None:
        """Start the bus again: the next owner of the partition handles the remaining records."""
        self.is_slow = False
        async with self.bus:
            await self.bus.clock.advance(seconds=3)  # also what waits for its next try
            await self.bus.drain()

    def cell(self) -> str:
        """Describe what became of the records in flight, and of the others if they were not handled exactly once."""
        words = {(1, 1): "handled", (1, 0): "lost", (0, 0): "lost"}
        earlier, mine, later = set[str](), set[str](), set[str]()
        for offset in range(COUNT):
            word = words.get((self.begun[offset], self.returned[offset]), "repeated")
            group = mine if offset in self.in_flight else earlier if offset < min(self.in_flight) else later
            group.add(word)
        [word] = mine
        others = {"earlier": earlier, "later": later}
        also = [f" ({name} ones too)" for name, found in others.items() if found != {"handled"} and found == {word}]
        assert len(also) == sum(found != {"handled"} for found in others.values()), others
        return word + "".join(also)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", dict.fromkeys(row for row, _ in table()))
async def test_an_end_leaves_what_the_guide_says(how: str, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    on_error = re.match('`on_error="(.*)"`', how)
    scene = Scene(**MODES[mode], **({"on_error": on_error[1]} if on_error else {}))
    scene.fails = on_error is not None
    try:
        await scene.end(how)
    except* (StoppedBySignal, HandlerError):
        pass
    except* RuntimeError:
        assert how == "an exception in the bus"
    await scene.go_on_elsewhere()
    expected = table()[how, COLUMNS.get(mode, mode)]
    if expected in ("skipped", "retried"):
        assert ("skipped" in caplog.text) == (expected == "skipped")
        expected = {"skipped": "lost", "retried": "repeated"}[expected]
    assert scene.cell() == expected
    if expected == "lost (later ones too)":
        assert "t-0 offsets 6 to 11 (6 records) never reached the handler and are lost" in caplog.text
    if how == "the drain timeout":
        assert f"has not finished {REPORTS.get(mode, 't-0 offset 5')} in time" in caplog.text


async def test_records_that_cannot_be_given_back_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(delivery="at-most-once")
    async with anyio.create_task_group() as tasks, scene.bus:
        await scene.begin()
        scene.bus.log.faults.fail_next("commit", times=100)
        tasks.start_soon(scene.let_go)
    assert "t-0 offsets 6 to 11 (6 records) never reached the handler and are lost" in caplog.text
    assert sorted(scene.begun) == list(range(6))


async def test_a_plain_function_that_outlasts_a_rebalance_costs_its_own_record() -> None:
    bus, begun, go_on = TestBus(), list[int](), threading.Event()
    bus.topic("t", partitions=1)

    @bus.consumer("t", group="g", delivery="at-most-once")
    def handle(value: int) -> None:
        begun.append(value)
        if value == FIRST_SLOW:
            go_on.wait(30)

    async with anyio.create_task_group() as tasks, bus:
        await bus.send_many("t", range(COUNT))
        while FIRST_SLOW not in begun:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(bus.log.faults.rebalance, "g")
        await bus.clock.advance(seconds=65)  # the time to finish, and the time to end once cancelled
        assert bus.log.committed("g")["t", 0] == FIRST_SLOW + 1
        go_on.set()
        await bus.drain()
    assert begun == list(range(COUNT))


async def test_records_are_given_back_although_no_output_can_be_stored() -> None:
    bus, begun = TestBus(), list[int]()
    bus.topic("t", partitions=1)
    bus.topic("out", partitions=1)

    @bus.consumer("t", group="g", delivery="at-most-once")
    @bus.producer("out")
    async def handle(value: int) -> bytes:
        begun.append(value)
        if value == FIRST_SLOW:
            await anyio.sleep_forever()
        return b""

    with pytest.raises(StoppedBySignal):
        async with bus:
            await bus.send_many("t", range(COUNT))
            with bus.log.faults.outage("send", "flush", hang=True):
                await bus.clock.settle()
                assert begun[-1] == FIRST_SLOW
                bus.context.bus_run.stop_at_once(signal.SIGTERM)
                while not bus.context.runners[0].has_left:
                    await anyio.lowlevel.checkpoint()
    assert bus.log.committed("g")["t", 0] == FIRST_SLOW + 1
