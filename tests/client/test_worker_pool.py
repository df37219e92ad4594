"""Records that finish in any order: who works on what."""

from __future__ import annotations

import threading
from collections import defaultdict
from random import Random
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, consumer, producer
from eventbus.client.handling.handlers import Handler
from eventbus.errors import HandlerError
from eventbus.testing import FakeClock
from tests.client.fakes import T0, T1, Running, on_both, others_run, records, running

# workers --------------------------------------------------------------------------------------------------------------


class Many:
    """A handler that takes time of a fake clock, by offset, and records concurrent calls."""

    def __init__(self, clock: FakeClock, order: str = "partition", **options: Any) -> None:
        self.clock = clock
        self.seconds: dict[int, float] = {}
        self.begun: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.at_work: set[tuple[int, int]] = set()
        self.most = 0
        self.keys_at_work: set[tuple[int, bytes]] = set()

        @consumer("t", group="g", order=order, **options)
        async def handle(value: bytes, record: ConsumerRecord) -> None:
            place = record.partition, record.offset
            self.begun.append(place)
            self.at_work.add(place)
            self.most = max(self.most, len(self.at_work))
            key = record.partition, record.key or b"%d" % record.offset
            assert order == "none" or key not in self.keys_at_work, "two records of one key side by side"
            self.keys_at_work.add(key)
            try:
                await clock.sleep(self.seconds.get(record.offset, 0.001))
                self.done.append(place)
            finally:
                self.at_work.discard(place)
                self.keys_at_work.discard(key)

        self.handler: Handler[..., Any] = handle

    def offsets(self, partition: int = 0) -> list[int]:
        return [offset for number, offset in self.done if number == partition]


def key_of(count: int) -> Any:
    return lambda offset: b"k%d" % (offset % count)


@pytest.mark.parametrize("seed", range(6))
@on_both
async def test_a_key_keeps_its_order_and_others_run_beside_it(seed: int) -> None:
    random, clock = Random(seed), FakeClock()
    concurrency, keys = random.randint(2, 20), random.randint(1, 60)
    many = Many(clock, order="key", concurrency=concurrency)
    many.seconds = {offset: random.choice((0, 0.001, 0.003, 0.05)) for offset in range(400)}

    def key(offset: int) -> bytes | None:
        return None if offset % 7 == 0 else b"k%d" % (offset % keys)

    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(0, 250), key), records(T1, range(0, 30), key))
        await clock.settle()
        run.consumer.deliver(records(T0, range(250, 400), key))
        await clock.advance(seconds=30)
        await run.runner.commit()
        assert {partition: offset.offset for partition, offset in run.consumer.offsets.items()} == {T0: 400, T1: 30}
    assert sorted(many.begun) == sorted(many.done) == [(0, n) for n in range(400)] + [(1, n) for n in range(30)]
    assert many.most == min(concurrency, many.most)
    by_key: dict[tuple[int, Any], list[int]] = defaultdict(list)
    for partition, offset in many.begun:
        if key(offset) is not None:
            by_key[partition, key(offset)].append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


@pytest.mark.parametrize("order", ["key", "none"])
@on_both
async def test_as_many_are_at_work_as_may_be(order: str) -> None:
    clock = FakeClock()
    many = Many(clock, order=order, concurrency=5)
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(200), key_of(200)))
        await clock.advance(ms=200 / 5 + 10)
        assert len(many.done) == 200
    assert many.most == 5


@on_both
async def test_a_key_that_hangs_holds_up_itself_alone_and_what_is_begun_is_bounded() -> None:
    clock = FakeClock()
    many = Many(clock, order="key", concurrency=4, max_unfinished=100)
    many.seconds = {10: 1_000}
    async with running(many.handler, clock) as run:
        for start in range(0, 1_000, 50):
            run.consumer.deliver(records(T0, range(start, start + 50), key_of(20)))
        await clock.advance(seconds=5)
        await run.runner.commit()
        # Others go on to the bound; key 10 of 20 keys, and the few that share its key lane, wait.
        assert run.consumer.offsets[T0].offset == 10
        assert 80 <= len(many.done) <= 105 and max(many.offsets()) < 110
        assert run.consumer.paused == {T0} and run.runner.paused == [T0]
        assert [(one.topic_partition, one.offset) for one in run.runner.in_flight()] == [(T0, 10)]
        await clock.advance(seconds=1_000)
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 1_000
        assert run.consumer.paused == set()
    assert sorted(many.offsets()) == list(range(1_000))


@on_both
async def test_a_hot_partition_does_not_starve_another() -> None:
    clock = FakeClock()
    many = Many(clock, order="key", concurrency=2)
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(5_000), key_of(500)))
        await clock.settle()
        run.consumer.deliver(records(T1, range(10), key_of(10)))
        while len(many.offsets(1)) < 10:
            await clock.advance(ms=1)
        assert len(many.offsets(0)) < 500
        run.runner.cancel()


@pytest.mark.parametrize("order", ["key", "none"])
@on_both
async def test_what_is_given_up_has_no_gaps(order: str) -> None:
    """Nothing beyond the highest record begun is begun, and what is below it is finished: nothing is handled again."""
    clock = FakeClock()
    many = Many(clock, order=order, concurrency=3)
    many.seconds = {4: 2.0, 9: 1.0}
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(500), key_of(5)))
        await clock.advance(ms=40)
        highest = max(many.begun)[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await clock.advance(seconds=10)
        done = many.offsets()
        assert max(done) == highest < 400
        assert sorted(done) == list(range(highest + 1))
        assert run.consumer.offsets[T0].offset == highest + 1
        assert run.runner.drivers == {}


@on_both
async def test_what_outlasts_the_budget_is_cancelled_and_the_prefix_committed(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    many = Many(clock, order="key", concurrency=3, drain_timeout_ms=1_000)
    many.seconds = {4: 100.0}
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(100), key_of(5)), records(T1, range(200, 220), key_of(5)))
        await clock.advance(ms=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await clock.advance(seconds=3)
        assert run.consumer.offsets[T0].offset == 4
        assert "takes away t-0" in caplog.text
        await clock.advance(seconds=3)
        assert sorted(many.offsets(1)) == list(range(200, 220)), "the others go on, with all workers"
        run.consumer.assigned.add(T0)
        many.seconds = {}
        run.consumer.deliver(records(T0, range(4, 100), key_of(5)))
        await clock.advance(seconds=3)
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 100


@on_both
async def test_a_partition_that_is_lost_is_neither_committed_nor_gone_on_with() -> None:
    clock = FakeClock()
    many = Many(clock, order="key", concurrency=2)
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(100), key_of(50)))
        await clock.advance(ms=5)
        begun = len(many.begun)
        commits = len(run.consumer.commits)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.lose, T0)
            await clock.advance(seconds=3)
        assert len(many.begun) == begun
    assert len(run.consumer.commits) == commits


@pytest.mark.parametrize("policy", ["stop", "skip"])
@on_both
async def test_a_record_that_fails(policy: str) -> None:
    clock = FakeClock()
    begun: list[tuple[int, int]] = []

    @consumer("t", group="g", order="key", concurrency=2, on_error=policy)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        begun.append((record.partition, record.offset))
        await clock.sleep(0.001)
        if (record.partition, record.offset) == (0, 7):
            raise ValueError("no")

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(100), key_of(10)), records(T1, range(50), key_of(10)))
        await clock.advance(seconds=1)
        await run.runner.commit()
        assert run.consumer.offsets[T1].offset == 50
        counts = run.runner.counts
        assert counts.failed == 1
        if policy == "skip":
            assert run.consumer.offsets[T0].offset == 100 and counts.skipped == 1 and counts.handled == 149
        else:
            assert run.consumer.offsets[T0].offset == 7
            assert isinstance(run.runner.error, HandlerError) and "t-0 offset 7" in str(run.runner.error)
            seen = len(begun)
            await clock.advance(seconds=10)
            assert len(begun) == seen


@on_both
async def test_a_record_that_fails_ends_everything_where_that_is_wanted() -> None:
    clock = FakeClock()

    @consumer("t", group="g", order="none", concurrency=2, on_error="crash")
    async def handle(value: bytes) -> None:
        await clock.sleep(0.001)
        if value == b"7":
            raise ValueError("no")

    run = Running(handle, clock)
    run.consumer.deliver(records(T0, range(100)))
    with pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.runner.run)
            await clock.advance(seconds=1)
    assert raised.group_contains(HandlerError, match="offset 7")
    assert run.consumer.offsets[T0].offset <= 7 and run.runner.has_left


@on_both
async def test_outputs_are_stored_before_a_record_counts() -> None:
    clock = FakeClock()

    @consumer("t", group="g", order="key", concurrency=4)
    @producer("out")
    async def handle(value: bytes) -> bytes:
        await clock.sleep(0.001 * (int(value) % 3))
        return value

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(30), key_of(10)))
        await clock.advance(seconds=1)
        assert len(run.published) == 30
        assert run.consumer.commits == [] and not await run.runner.is_idle()
        for number, batch in enumerate(run.published):
            if number != 20:
                batch.resolve(0, -1)
        await clock.advance(seconds=1)
        committed = run.consumer.offsets[T0].offset
        assert committed < 30
        run.published[20].resolve(0, -1)
        await clock.settle()
        assert await run.runner.is_idle(), "told by the outcome, not by the next interval"
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 30


@pytest.mark.parametrize("order", ["key", "none"])
@on_both
async def test_plain_functions_work_side_by_side_in_threads(order: str) -> None:
    at_once = threading.Barrier(3)
    lock = threading.Lock()
    seen: dict[bytes | None, list[int]] = defaultdict(list)

    @consumer("t", group="g", order=order, concurrency=3)
    def handle(value: bytes, record: ConsumerRecord) -> None:
        if record.offset < 3:
            at_once.wait(10)  # breaks when fewer are at work at once
        with lock:
            seen[record.key].append(record.offset)

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3), key_of(20)))
        await run.idle()
        run.consumer.deliver(records(T0, range(3, 500), key_of(20)))
        await run.idle()
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 500
    if order == "key":
        assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert sorted(offset for offsets in seen.values() for offset in offsets) == list(range(500))


@on_both
async def test_plain_functions_given_up_leave_nothing_to_be_handled_again() -> None:
    handled: list[int] = []
    first, go_on = threading.Event(), threading.Event()

    @consumer("t", group="g", order="key", concurrency=2)
    def handle(value: bytes) -> None:
        if value == b"30":
            first.set()
            go_on.wait(10)
        handled.append(int(value))

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(200), key_of(40)))
        with anyio.fail_after(10):
            while not first.is_set():
                await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await others_run()
            go_on.set()
        assert sorted(handled) == list(range(run.consumer.offsets[T0].offset))


@on_both
async def test_workers_of_no_order_are_as_many_as_partitions_unless_said() -> None:
    clock = FakeClock()
    many = Many(clock, order="none")
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(20)), records(T1, range(20)))
        await clock.advance(seconds=1)
    assert many.most == 2 and len(many.done) == 40


# partitions that keep their order -------------------------------------------------------------------------------------


@on_both
async def test_concurrency_bounds_the_partitions_at_work_and_each_has_its_turn() -> None:
    clock = FakeClock()
    many = Many(clock, concurrency=1)
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(1_000)))
        await clock.settle()
        run.consumer.deliver(records(T1, range(1_000)))
        await clock.advance(ms=500)
        assert abs(len(many.offsets(0)) - len(many.offsets(1))) < 120
        await clock.advance(seconds=3)
        await run.runner.commit()
        assert {partition: offset.offset for partition, offset in run.consumer.offsets.items()} == {T0: 1000, T1: 1000}
    assert many.most == 1
    for partition in (0, 1):
        assert many.offsets(partition) == list(range(1_000))


@on_both
async def test_a_lane_that_waits_for_its_turn_can_be_given_up() -> None:
    clock = FakeClock()
    many = Many(clock, concurrency=1)
    many.seconds = {0: 5.0}
    async with running(many.handler, clock) as run:
        run.consumer.deliver(records(T0, range(10)), records(T1, range(100, 110)))
        await clock.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T1)
            await clock.advance(seconds=10)
        assert T1 not in run.consumer.offsets or run.consumer.offsets[T1].offset <= 101
        await clock.advance(seconds=10)
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 10
