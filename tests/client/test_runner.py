"""A runner whose group revokes partitions, with a consumer that the test controls."""

from __future__ import annotations

import logging
import threading
from typing import Any

import anyio
import pytest

from eventbus import consumer, producer
from eventbus.client.handling.handlers import Handler
from eventbus.errors import HandlerError, IllegalGeneration, RebalanceInProgress, StorageFull, UnknownMemberId
from tests.client.fakes import T0, T1, Running, others_run, records, running
from tests.support import until


class Slow:
    """A handler that waits for leave at the offsets named, and says when it is there."""

    def __init__(self, *waits_at: int) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.at = {offset: anyio.Event() for offset in waits_at}
        self.go = {offset: anyio.Event() for offset in waits_at}

    def handler(self, **options: Any) -> Handler[..., Any]:
        @consumer("t", group="g", **options)
        async def handle(value: bytes) -> None:
            offset = int(value)
            self.begun.append(offset)
            if offset in self.at:
                self.at[offset].set()
                await self.go[offset].wait()
            self.done.append(offset)

        return handle


async def test_a_lane_that_moves_finishes_its_record_commits_and_drops_the_rest() -> None:
    slow = Slow(2)
    async with running(slow.handler()) as run:
        run.consumer.deliver(records(T0, range(5)), records(T1, range(100, 103)))
        await slow.at[2].wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await others_run()
            assert run.consumer.commits == [] or run.consumer.offsets[T0].offset <= 2
            slow.go[2].set()
        assert run.consumer.offsets[T0].offset == 3
        assert 3 not in slow.begun and 4 not in slow.begun
        assert T0 not in run.runner.drivers
        run.consumer.deliver(records(T1, range(103, 105)))
        await until(lambda: 104 in slow.done)
    assert [offset for offset in slow.done if offset >= 100] == [100, 101, 102, 103, 104]


async def test_other_lanes_go_on_while_one_is_given_up() -> None:
    slow = Slow(0)
    async with running(slow.handler()) as run:
        run.consumer.deliver(records(T0, [0]), records(T1, range(100, 200)))
        await slow.at[0].wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await until(lambda: 199 in slow.done)
            slow.go[0].set()


async def test_a_chunk_in_reserve_is_dropped_before_the_handler() -> None:
    slow = Slow(0)
    async with running(slow.handler()) as run:
        run.consumer.deliver(records(T0, [0]))
        await slow.at[0].wait()
        run.consumer.deliver(records(T0, [1, 2]))
        await others_run()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            slow.go[0].set()
        await others_run()
    assert slow.begun == [0]
    assert run.consumer.offsets[T0].offset == 1


async def test_outputs_of_a_lane_that_moves_are_stored_before_its_commit() -> None:
    @consumer("t", group="g")
    @producer("out")
    async def handle(value: bytes) -> bytes:
        return value

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await until(lambda: len(run.published) == 3)
        assert run.consumer.commits == []
        await run.consumer.revoke(T0)
        assert all(batch.done for batch in run.published)
        assert run.consumer.offsets[T0].offset == 3


async def test_a_handler_that_outlasts_the_budget_is_cancelled_and_its_record_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Slow(1)
    async with running(slow.handler(drain_timeout_ms=1)) as run:
        run.consumer.deliver(records(T0, range(3)))
        await slow.at[1].wait()
        with anyio.fail_after(10):
            await run.consumer.revoke(T0)
        assert run.consumer.offsets[T0].offset == 1
    assert slow.done == [0]
    assert "takes away t-0" in caplog.text and "drain_timeout_ms=1" in caplog.text


async def test_a_plain_function_that_outlasts_the_budget_is_left_behind_and_comes_before_a_new_lane() -> None:
    release = threading.Event()
    begun: list[int] = []

    @consumer("t", group="g", drain_timeout_ms=1)
    def handle(value: bytes) -> None:
        begun.append(int(value))
        if value == b"0":
            release.wait(10)

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await until(lambda: begun)
        with anyio.fail_after(10):
            await run.consumer.revoke(T0)
        assert T0 not in run.consumer.offsets
        run.consumer.assigned.add(T0)
        run.consumer.deliver(records(T0, range(3)))  # it came back, while the old lane's thread still works
        await others_run()
        assert begun == [0]
        release.set()
        await until(lambda: begun == [0, 0, 1, 2])
    assert run.consumer.offsets[T0].offset == 3


async def test_a_handler_that_raises_while_its_lane_is_given_up_commits_what_was_before() -> None:
    slow = Slow(1)

    @consumer("t", group="g")
    async def handle(value: bytes) -> None:
        await slow.handler()(value)
        if value == b"1":
            raise ValueError("no")

    async with running(handle) as run:
        run.consumer.deliver(records(T0, range(3)))
        await slow.at[1].wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await others_run()
            slow.go[1].set()
        assert run.consumer.offsets[T0].offset == 1
        assert isinstance(run.runner.error, HandlerError)


async def test_stopping_while_a_lane_is_given_up_still_commits_it() -> None:
    slow = Slow(1)
    async with anyio.create_task_group() as tasks, running(slow.handler()) as run:
        run.consumer.deliver(records(T0, range(3)))
        await slow.at[1].wait()
        tasks.start_soon(run.consumer.revoke, T0)
        await others_run()
        run.runner.stop()
        slow.go[1].set()
        await until(lambda: run.runner.has_left)
        assert run.consumer.offsets[T0].offset == 2
        tasks.cancel_scope.cancel()


async def test_a_lane_lost_without_asking_is_never_committed(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(1)
    async with running(slow.handler()) as run:
        run.consumer.deliver(records(T0, range(3)))
        await slow.at[1].wait()
        commits = len(run.consumer.commits)
        await run.consumer.lose(T0)
        slow.go[1].set()
        await until(lambda: 1 in slow.done)
    assert slow.done == [0, 1]
    assert run.consumer.commits[commits:] == []
    assert caplog.text.count("went to another member") == 1


@pytest.mark.parametrize("error", [IllegalGeneration("old"), UnknownMemberId("who"), RebalanceInProgress("wait")])
async def test_a_commit_that_the_group_refuses_gives_the_lane_up_with_one_line(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    async with running(slow.handler()) as run:
        run.consumer.commit_error = error
        run.consumer.deliver(records(T0, range(3)))
        await until(lambda: len(slow.done) == 3)
        await run.consumer.revoke(T0)
        assert run.consumer.offsets == {} and run.runner.drivers == {}
    assert [record.levelname for record in caplog.records if record.levelno >= logging.INFO] == ["WARNING"]
    assert "handles those records again" in caplog.text


async def test_a_commit_refused_in_a_rebalance_is_tried_again_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    async with running(slow.handler()) as run:
        run.consumer.commit_error = RebalanceInProgress("wait")
        run.consumer.deliver(records(T0, range(3)))
        await until(lambda: len(slow.done) == 3)
        await run.runner._commits.attempt()
        run.consumer.commit_error = None
        await run.runner._commits.attempt()
        assert run.consumer.offsets[T0].offset == 3
        run.consumer.commit_error = StorageFull("full")
        run.consumer.deliver(records(T0, [3]))
        await until(lambda: len(slow.done) == 4)
        await run.runner._commits.attempt()
        await run.runner._commits.attempt()
        run.consumer.commit_error = None
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO] == [
        "handler 'handle': offsets are not committed: full"
    ]


async def test_idle_means_that_the_group_is_at_rest_too() -> None:
    async with running(Slow().handler()) as run:
        assert await run.runner.is_idle()
        for state, generation in (("PreparingRebalance", 1), ("CompletingRebalance", 2), ("Stable", 2)):
            run.consumer.state, run.consumer.group_generation = state, generation
            assert not await run.runner.is_idle()
        progress = run.progress
        run.consumer.generation = 2
        run.consumer.answer()  # what the fetch brought may be the end of the rebalance: whoever waits asks again
        with anyio.fail_after(10):
            await progress.wait()
        assert await run.runner.is_idle()


@pytest.mark.parametrize("call", ["describe_groups", "committed", "end_offsets"])
async def test_a_partition_lost_while_drain_and_health_look_is_no_error(call: str) -> None:
    """The group expels this member while its coordinator or its leaders answer. What it had not handled is not done."""
    async with running(Slow().handler()) as run:
        owner: Any = run.consumer if hasattr(run.consumer, call) else run.backend
        answer = getattr(owner, call)

        async def lose_and_answer(asked: Any) -> Any:
            found = await answer(asked)
            for partition in {T0} & run.consumer.assigned:
                run.consumer.assigned.discard(partition)
                run.consumer.on_revoked(partition)
            return found

        setattr(owner, call, lose_and_answer)
        if call != "committed":
            assert not await run.runner.is_idle()
            run.consumer.assigned.add(T0)
        assert set(await run.runner.lag()) == ({T0, T1} if call == "describe_groups" else {T1})


async def test_a_member_that_has_not_joined_is_not_idle() -> None:
    """Records wait for it. A Kafka says that the group is stable, but not of which generation: -1, as the member's."""
    async with running(Slow().handler()) as run:
        run.consumer.assigned = set()
        run.consumer.generation = run.consumer.group_generation = -1
        assert not await run.runner.is_idle()


async def test_a_member_without_partitions_is_idle() -> None:
    async with running(Slow().handler()) as run:
        run.consumer.assigned = set()
        assert await run.runner.is_idle()


async def test_nothing_is_idle_while_a_lane_is_given_up() -> None:
    slow = Slow(0)
    async with running(slow.handler()) as run:
        run.consumer.deliver(records(T0, [0]))
        await slow.at[0].wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await others_run()
            assert not await run.runner.is_idle()
            slow.go[0].set()
        assert await run.runner.is_idle()


def test_the_budget_is_at_most_a_third_of_the_poll_interval() -> None:
    async def main() -> None:
        assert Running(Slow().handler()).runner._drain_seconds == 30
        assert Running(Slow().handler(), max_poll_interval_ms=6_000).runner._drain_seconds == 2
        assert Running(Slow().handler(drain_timeout_ms=500)).runner._drain_seconds == 0.5

    anyio.run(main)
