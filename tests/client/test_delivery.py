"""When a record counts as done: committed before or after it is handled, by count, by hand; and what a stop leaves."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, consumer, producer
from eventbus.client.handling.handlers import Handler
from eventbus.errors import (
    CoordinatorNotAvailable,
    EventBusError,
    HandlerError,
    IllegalGeneration,
    RebalanceInProgress,
    StorageFull,
)
from eventbus.testing import FakeClock
from tests.client.fakes import T0, T1, Running, on_both, others_run, records, running


class Paced:
    """A handler that takes 0.1 s per record, or the time set for an offset."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        self.seconds: dict[int, float] = {}
        self.begun: list[int] = []
        self.done: list[int] = []
        self.fails: set[int] = set()

        @consumer("t", group="g", **options)
        async def handle(value: bytes) -> None:
            offset = int(value)
            self.begun.append(offset)
            await clock.sleep(self.seconds.get(offset, 0.1))
            if offset in self.fails:
                raise ValueError("no")
            self.done.append(offset)

        self.handler: Handler[..., Any] = handle


def commits_of(run: Running) -> list[int]:
    return [commit[T0] for commit in run.consumer.commits if T0 in commit]


# at most once ---------------------------------------------------------------------------------------------------------


@on_both
async def test_at_most_once_commits_a_slice_and_then_handles_it() -> None:
    clock = FakeClock()
    paced = Paced(clock, delivery="at-most-once", commit_every=4)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(10)))
        await clock.settle()
        assert commits_of(run) == [4] and paced.begun == [0] and paced.done == []
        await clock.advance(ms=450)
        assert commits_of(run) == [4, 8] and paced.begun == [0, 1, 2, 3, 4]
        await clock.advance(seconds=1)
        assert commits_of(run) == [4, 8, 10] and paced.done == list(range(10))
        assert await run.runner.is_idle()


@on_both
async def test_at_most_once_a_cancelled_handler_loses_the_record_in_flight_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    paced = Paced(clock, delivery="at-most-once", commit_every=4)
    run = Running(paced.handler, clock)
    run.consumer.deliver(records(T0, range(10)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.runner.run)
        await clock.advance(ms=550)
        tasks.cancel_scope.cancel()
    assert paced.done == [0, 1, 2, 3, 4] and run.consumer.offsets[T0].offset == 6
    assert "t-0 offset 5 is lost" in caplog.text


async def test_at_most_once_what_ran_in_a_thread_is_not_given_back() -> None:
    """Its call was made, although the event loop is still publishing the output of an earlier record."""
    publishing = anyio.Event()

    class HasNoRoom(Running):
        async def publish(self, value: Any) -> Any:
            publishing.set()
            await anyio.sleep_forever()

    @consumer("t", group="g", delivery="at-most-once")
    @producer("out")
    def handle(value: bytes) -> bytes:
        return value

    run = HasNoRoom(handle)
    run.consumer.deliver(records(T0, range(4)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.runner.run)
        await publishing.wait()
        tasks.cancel_scope.cancel()
    assert commits_of(run) == [4]


@pytest.mark.parametrize("revoked", [True, False])
@on_both
async def test_at_most_once_a_clean_end_gives_back_what_was_not_begun(revoked: bool) -> None:
    clock = FakeClock()
    paced = Paced(clock, delivery="at-most-once", commit_every=4)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(10)))
        await clock.advance(ms=550)
        assert paced.begun[-1] == 5
        async with anyio.create_task_group() as tasks:
            if revoked:
                tasks.start_soon(run.consumer.revoke, T0)
            else:
                run.runner.stop()
            await clock.advance(seconds=5)
        assert paced.done == list(range(6)) and run.consumer.offsets[T0].offset == 6


@pytest.mark.parametrize("error", [StorageFull("full"), RebalanceInProgress("wait")])
@on_both
async def test_at_most_once_a_refused_commit_handles_nothing(error: EventBusError) -> None:
    clock = FakeClock()
    paced = Paced(clock, delivery="at-most-once")
    async with running(paced.handler, clock) as run:
        run.consumer.commit_error = error
        run.consumer.deliver(records(T0, range(3)))
        await clock.advance(seconds=60)
        assert paced.begun == []
        assert run.runner.commit_error == ("" if isinstance(error, RebalanceInProgress) else "full")
        run.consumer.commit_error = None
        await clock.advance(seconds=10)
        assert paced.done == [0, 1, 2] and run.runner.commit_error == ""
        run.consumer.commit_error = error
        run.consumer.deliver(records(T0, range(3, 5)))
        await clock.advance(seconds=1)
        await run.consumer.revoke(T0)  # and it does not wait for the commit either
        assert paced.begun == [0, 1, 2]


@pytest.mark.parametrize("policy", ["stop", "skip"])
@on_both
async def test_at_most_once_a_failure(policy: str) -> None:
    clock = FakeClock()
    paced = Paced(clock, delivery="at-most-once", commit_every=4, on_error=policy)
    paced.fails = {1}
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(8)))
        await clock.advance(seconds=2)
        if policy == "skip":
            assert paced.done == [0, 2, 3, 4, 5, 6, 7]
        else:
            assert paced.done == [0] and commits_of(run) == [4, 2], "what was not begun is not lost"
            assert isinstance(run.runner.error, HandlerError)


# commits --------------------------------------------------------------------------------------------------------------


@on_both
async def test_a_commit_at_the_latest_after_so_many_records() -> None:
    clock = FakeClock()
    paced = Paced(clock, commit_every=3, commit_interval_ms=60_000)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(4)))
        await clock.advance(ms=450)
        run.consumer.deliver(records(T0, range(4, 10)))
        await clock.advance(ms=450)
        assert commits_of(run) == [3, 6]
        await clock.advance(ms=200)
        assert commits_of(run) == [3, 6, 9]
        await clock.advance(seconds=60)
        assert commits_of(run) == [3, 6, 9, 10]


@on_both
async def test_a_commit_after_so_many_records_that_finish_in_any_order() -> None:
    clock = FakeClock()
    paced = Paced(clock, order="none", concurrency=3, commit_every=3, commit_interval_ms=60_000)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(9)))
        await clock.advance(ms=350)
        assert commits_of(run) == [3, 6, 9]


@on_both
async def test_the_interval_of_commits() -> None:
    clock = FakeClock()
    paced = Paced(clock, commit_interval_ms=500)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(10)))
        await clock.advance(ms=450)
        assert commits_of(run) == []
        await clock.advance(ms=100)
        assert commits_of(run) in ([4], [5])
        await clock.advance(seconds=1)


@on_both
async def test_commit_at_once_and_what_it_raises() -> None:
    clock = FakeClock()
    paced = Paced(clock, commit_interval_ms=60_000)
    async with running(paced.handler, clock) as run:
        await run.runner.commit()
        run.consumer.deliver(records(T0, range(10)))
        await clock.advance(ms=250)
        run.consumer.commit_error = StorageFull("full")
        with pytest.raises(StorageFull):
            await run.runner.commit()
        run.consumer.commit_error = None
        await run.runner.commit()
        await run.runner.commit()
        assert commits_of(run) == [2] and run.runner.last_commit_at == clock.current_time()
        await clock.advance(seconds=1)


@on_both
async def test_commits_that_fail_are_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    paced = Paced(clock)
    attempts: list[float] = []
    async with running(paced.handler, clock) as run:
        commit = run.consumer.commit

        async def counted(offsets: Any) -> None:
            attempts.append(clock.current_time())
            await commit(offsets)

        run.consumer.commit = counted
        run.consumer.commit_error = StorageFull("full")
        run.consumer.deliver(records(T0, range(3)))
        await clock.advance(seconds=60)
        assert 5 < len(attempts) < 25
        assert max(later - earlier for earlier, later in pairwise(attempts)) <= 5.001
        since = run.runner.commit_failing_since
        assert run.runner.commit_error == "full" and since is not None and since < 1
        run.consumer.commit_error = None
        await clock.advance(seconds=6)
        assert run.consumer.offsets[T0].offset == 3
        assert run.runner.commit_error == "" and run.runner.commit_failing_since is None
    assert caplog.text.count("offsets are not committed") == 1


# acknowledged by hand -------------------------------------------------------------------------------------------------


class Kept:
    """A handler that keeps its records to acknowledge them later."""

    def __init__(self, **options: Any) -> None:
        self.records: dict[int, ConsumerRecord] = {}

        @consumer("t", group="g", ack="manual", **options)
        async def handle(record: ConsumerRecord) -> None:
            self.records[record.offset] = record

        self.handler: Handler[..., Any] = handle


WAYS: list[dict[str, Any]] = [{}, {"order": "key", "concurrency": 3}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_what_is_acknowledged_in_any_order_is_committed_without_gaps(way: dict[str, Any]) -> None:
    clock, kept = FakeClock(), Kept(**way)
    async with running(kept.handler, clock) as run:
        run.consumer.deliver(records(T0, range(6), lambda offset: b"%d" % offset))
        await clock.advance(seconds=1)
        assert len(kept.records) == 6 and run.consumer.commits == []
        assert not await run.runner.is_idle()
        for offset, committed in ((1, None), (0, 2), (0, 2), (5, 2), (2, 3), (4, 3), (3, 6)):
            kept.records[offset].ack()
            await clock.advance(seconds=1)
            assert run.consumer.offsets.get(T0, (None,))[0] == committed
        assert await run.runner.is_idle()


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_what_is_not_acknowledged_bounds_what_is_begun(way: dict[str, Any]) -> None:
    clock, kept = FakeClock(), Kept(max_unfinished=10, **way)
    async with running(kept.handler, clock) as run:
        for start in range(0, 60, 6):
            run.consumer.deliver(records(T0, range(start, start + 6)))
        await clock.advance(seconds=1)
        assert len(kept.records) == 10 and run.consumer.paused == {T0}
        for offset in range(1, 10):
            kept.records[offset].ack()
        await clock.advance(seconds=1)
        assert len(kept.records) == 10
        for offset in range(60):
            kept.records[offset].ack()
            await clock.advance(ms=200)
        assert len(kept.records) == 60 and run.consumer.offsets[T0].offset == 60


@on_both
async def test_ack_now_returns_when_the_commit_that_covers_it_is_stored() -> None:
    clock, kept = FakeClock(), Kept(commit_interval_ms=60_000)
    acknowledged: list[int] = []

    async def acknowledge(offset: int) -> None:
        await kept.records[offset].ack_now()
        acknowledged.append(offset)

    async with running(kept.handler, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        await clock.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acknowledge, 0)
            await clock.settle()
            assert acknowledged == [0] and commits_of(run) == [1], "at once, not at the end of the interval"
            tasks.start_soon(acknowledge, 2)
            await clock.settle()
            assert acknowledged == [0]
            tasks.start_soon(acknowledge, 1)
            await clock.settle()
            await clock.advance(seconds=60)
        assert sorted(acknowledged) == [0, 1, 2] and run.consumer.offsets[T0].offset == 3
        await kept.records[1].ack_now()  # it is covered already


@on_both
async def test_ack_now_raises_what_the_commit_raises_and_when_the_partition_is_lost() -> None:
    clock, kept = FakeClock(), Kept()
    raised: list[EventBusError] = []

    async def acknowledge(offset: int) -> None:
        try:
            await kept.records[offset].ack_now()
        except EventBusError as error:
            raised.append(error)

    async with running(kept.handler, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        await clock.settle()
        run.consumer.commit_error = StorageFull("full")
        await acknowledge(0)
        assert isinstance(raised.pop(), StorageFull)
        run.consumer.commit_error = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acknowledge, 2)  # waits for the record before it
            await clock.settle()
            await run.consumer.lose(T0)
        assert isinstance(raised.pop(), IllegalGeneration)
        await acknowledge(1)
        assert isinstance(raised.pop(), IllegalGeneration)


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_a_partition_that_moves_waits_for_the_acknowledgements_of_what_was_begun(way: dict[str, Any]) -> None:
    clock, kept = FakeClock(), Kept(max_unfinished=5, drain_timeout_ms=2_000, **way)
    async with running(kept.handler, clock) as run:
        run.consumer.deliver(records(T0, range(20)), records(T1, range(100, 120)))
        await clock.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await clock.advance(seconds=1)
            assert T0 in run.runner.drivers
            for offset in range(5):
                kept.records[offset].ack()
        assert run.consumer.offsets[T0].offset == 5 and T0 not in run.runner.drivers
        kept.records[100].ack()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T1)
            await clock.advance(seconds=10)
        assert run.consumer.offsets[T1].offset == 101 and run.runner.drivers == {}
        kept.records[101].ack()  # too late: of no use, and no harm
        await clock.advance(seconds=1)
        assert run.consumer.offsets[T1].offset == 101


@on_both
async def test_a_partition_that_moves_waits_for_no_acknowledgement_of_what_was_not_begun() -> None:
    clock = FakeClock()
    begun: list[ConsumerRecord] = []

    @consumer("t", group="g", ack="manual", order="none", concurrency=3)
    async def handle(record: ConsumerRecord) -> None:
        begun.append(record)
        await clock.sleep(1)

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(20)))
        await clock.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await clock.settle()
            for record in begun:
                record.ack()
            await clock.advance(seconds=1)
            assert run.runner.drivers == {}, "at once, not when the time for acknowledgements is over"
        assert len(begun) == 3 and run.consumer.offsets[T0].offset == 3


# the end --------------------------------------------------------------------------------------------------------------


ENDS: list[dict[str, Any]] = [{}, {"order": "none", "concurrency": 2}, {"delivery": "at-most-once"}]


@pytest.mark.parametrize("way", ENDS, ids=str)
@on_both
async def test_a_stop_has_a_deadline(way: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    paced = Paced(clock, **way)
    paced.seconds = {1: 1_000}
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, [0, 1]))
        await clock.advance(seconds=1)
        run.runner.stop(5)
        await clock.advance(seconds=4)
        assert not run.runner.has_left
        await clock.advance(seconds=2)
        assert run.runner.has_left
        assert run.consumer.offsets[T0].offset == (2 if way.get("delivery") else 1)
    assert paced.done == [0] and run.runner.counts.failed == 0 and run.runner.error is None
    assert "t-0 offset 1" in caplog.text and "'handle'" in caplog.text


@pytest.mark.parametrize("way", ENDS, ids=str)
@on_both
async def test_what_ends_before_the_deadline_is_finished_and_committed(way: dict[str, Any]) -> None:
    clock = FakeClock()
    paced = Paced(clock, **way)
    paced.seconds = {1: 3}
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, [0, 1]))
        await clock.advance(seconds=1)
        run.runner.stop(5)
        await clock.advance(seconds=4)
        assert run.runner.has_left
    assert paced.done == [0, 1] and run.consumer.offsets[T0].offset == 2


@pytest.mark.parametrize("way", ENDS, ids=str)
@on_both
async def test_cancel_ends_it_at_once_also_in_the_middle_of_a_stop(way: dict[str, Any]) -> None:
    clock = FakeClock()
    paced = Paced(clock, **way)
    paced.seconds = {1: 1_000}
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, [0, 1]))
        await clock.advance(seconds=1)
        run.runner.stop(100)
        await clock.settle()
        assert not run.runner.has_left
        run.runner.cancel()
        run.runner.cancel()
        await clock.settle()
        assert run.runner.has_left
    assert paced.done == [0]


@on_both
async def test_a_stop_that_is_not_acknowledged_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    clock, kept = FakeClock(), Kept(drain_timeout_ms=2_000)
    async with running(kept.handler, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        await clock.settle()
        kept.records[0].ack()
        run.runner.stop()
        await clock.advance(seconds=1)
        assert not run.runner.has_left
        await clock.advance(seconds=2)
        assert run.runner.has_left and run.consumer.offsets[T0].offset == 1
    assert "t-0 offsets 1 to 2 (2 records) not acknowledged within drain_timeout_ms=2000" in caplog.text


@on_both
async def test_a_handler_that_answers_its_cancellation_with_an_error_has_not_failed() -> None:
    clock = FakeClock()

    @consumer("t", group="g", on_error="skip")
    async def handle(value: bytes) -> None:
        try:
            await clock.sleep(100)
        except BaseException:
            raise ValueError("while cleaning up") from None

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        await clock.advance(seconds=1)
        run.runner.cancel()
        await clock.settle()
        assert run.runner.has_left
    assert run.consumer.commits == [] and run.runner.counts.failed == 0


@on_both
async def test_a_log_that_hangs_does_not_keep_a_runner_from_leaving() -> None:
    clock = FakeClock()
    paced = Paced(clock, drain_timeout_ms=3_000)
    async with running(paced.handler, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        await clock.advance(ms=250)

        async def hangs(offsets: Any) -> None:
            await anyio.Event().wait()

        run.consumer.commit = hangs
        run.runner.stop(1)
        await clock.advance(seconds=10)
        assert run.runner.has_left


# polling --------------------------------------------------------------------------------------------------------------


@on_both
async def test_an_outage_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    paced = Paced(clock)
    polls: list[float] = []
    async with running(paced.handler, clock) as run:

        async def unreachable() -> Any:
            polls.append(clock.current_time())
            raise CoordinatorNotAvailable("no broker")

        for _ in range(20):
            run.consumer._order(unreachable)
        await clock.advance(seconds=30)
        assert run.runner.poll_error == "no broker" and 5 < len(polls) < 20
        run.consumer._orders.clear()
        run.consumer.deliver(records(T0, range(3)))
        await clock.advance(seconds=10)
        assert paced.done == [0, 1, 2] and run.runner.poll_error == ""
    assert caplog.text.count("polling fails") == 1


@on_both
async def test_what_health_is_made_of() -> None:
    clock = FakeClock()
    paced = Paced(clock)
    async with running(paced.handler, clock) as run:
        runner = run.runner
        assert runner.started_at == 0 and runner.last_commit_at is None and runner.last_assigned_at is None
        await clock.advance(seconds=7)
        await run.consumer.on_assigned([T0])
        assert runner.last_assigned_at == 7
        run.consumer.deliver(records(T0, range(10)))
        await clock.settle()
        assert runner.last_poll_at == 7
        assert (await runner.lag())[T0] == 10, "what was fetched is not yet handled"
        await clock.advance(ms=550)
        assert (await runner.lag())[T0] in (5, 6)
        assert runner.member.member_id == "me" and not runner.is_rebalancing
        run.consumer.generation = -1
        assert runner.is_rebalancing
        run.consumer.generation = 1
        await clock.advance(seconds=5)
        assert (await runner.lag())[T0] == 0 and runner.counts.handled == 10


@pytest.mark.system
@on_both
async def test_a_thread_that_acknowledges_its_record() -> None:
    elsewhere = threading.Event()

    @consumer("t", group="g", ack="manual")
    def handle(record: ConsumerRecord) -> None:
        record.ack()
        elsewhere.set()

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(50)))
        await run.idle()
        await run.runner.commit()
        assert elsewhere.is_set() and run.consumer.offsets[T0].offset == 50
        await others_run()
