"""The health of a running bus, minute by minute, with a fake clock."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import BusHealth, ConsumerRecord, EventBus, HandlerHealth, TopicPartition
from eventbus.errors import LogPoisoned, StorageError
from eventbus.testing import TestBus
from eventbus.testing.bus import bus_on
from eventbus.testing.faulty import Call, Wait
from eventbus.testing.storage import CrashStorage, FaultyStorage


@pytest.fixture
def bus() -> TestBus:
    return TestBus()


def waiting(bus: TestBus) -> anyio.Event:
    """Declare a handler of topic t whose calls wait for the event."""
    gate = anyio.Event()
    bus.topic("t")

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        await gate.wait()

    return gate


async def one(bus: TestBus) -> HandlerHealth:
    [health] = (await bus.health()).handlers
    return health


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "eventbus.health"]


async def test_a_bus_that_does_not_run_is_not_healthy(bus: TestBus) -> None:
    assert await bus.health() == BusHealth(status="failed", reason="the bus is not running")
    async with bus:
        assert await bus.health() == BusHealth(status="ok", reason="the bus runs, without handlers")
    assert not (await bus.health()).is_healthy


async def test_starting_then_idle_then_running(bus: TestBus) -> None:
    gate = anyio.Event()
    bus.topic("t", partitions=2)

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        await gate.wait()

    async with bus:
        starting = await bus.health()
        assert starting.status == "starting" and starting.is_healthy
        assert starting.handlers[0].since_last_poll_ms is None and starting.handlers[0].lag_trend is None
        await bus.clock.settle()
        idle = await bus.health()
        assert (idle.status, idle.reason) == ("ok", "handlers: 1 idle")
        health = idle.handlers[0]
        assert (health.handler, health.group, health.status) == ("handle", "g", "idle")
        assert health.generation_id >= 1 and health.member_id
        assert health.assignment == (TopicPartition("t", 0), TopicPartition("t", 1))
        assert health.lag == 0 and health.lag_by_partition == {"t-0": 0, "t-1": 0}
        assert health.since_last_commit_ms is None and health.since_last_assignment_ms == 0
        for partition in (0, 0, 0, 1):
            await bus.send("t", "x", partition=partition)
        await bus.clock.advance(seconds=3)
        health = await one(bus)
        assert health.status == "running" and health.lag == 4 and health.lag_by_partition == {"t-0": 3, "t-1": 1}
        assert {work.topic_partition for work in health.at_work} == set(health.assignment)
        assert all(work.offset == 0 and 1_000 <= work.for_ms <= 3_000 for work in health.at_work)
        assert health.since_last_poll_ms is not None and health.since_last_poll_ms <= 10_000
        gate.set()
        await bus.log.drain()
        await bus.clock.advance(seconds=1)
        health = await one(bus)
        assert (health.status, health.lag, health.counts.handled) == ("idle", 0, 4)
        assert health.since_last_commit_ms is not None and health.since_last_commit_ms <= 1_100


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_handler_is_idle_after_transactions_for_as_long_as_nothing_comes(
    bus: TestBus, exactly_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute it counted as wedged: its offset stayed before what was aborted, and Kubernetes restarted it."""
    bus.topic("t")

    @bus.consumer("t", group="g", exactly_once=exactly_once)
    async def handle(text: str) -> None: ...

    async with bus:
        await bus.send("t", "x")
        with contextlib.suppress(LookupError):
            async with bus.transaction("id") as transaction:
                await transaction.send("t", "no")
                raise LookupError
        await bus.drain()
        await bus.clock.advance(seconds=600)
        health = await one(bus)
        assert (health.status, health.lag, (await bus.health()).is_healthy) == ("idle", 0, True)
        assert warnings_of(caplog) == []


@pytest.mark.system
@pytest.mark.parametrize("kind", ["async", "batch", "key", "exactly-once"])
async def test_a_record_that_never_ends_is_told_once_and_so_is_its_end(
    bus: TestBus, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = anyio.Event()
    options: dict[str, dict[str, Any]] = {
        "batch": {"batch": 2},
        "key": {"order": "key", "concurrency": 2},
        "exactly-once": {"exactly_once": True},
    }
    bus.topic("t")
    if kind == "batch":

        @bus.consumer("t", group="g", batch=2)
        async def handle(texts: list[str]) -> None:
            await gate.wait()
    else:

        @bus.consumer("t", group="g", **options.get(kind, {}))
        async def handle(text: str) -> None:
            await gate.wait()

    async with bus:
        for _ in range(4):
            await bus.send("t", "x", key="k")
        await bus.clock.advance(seconds=55)
        assert (await bus.health()).status == "ok" and warnings_of(caplog) == []
        await bus.clock.advance(seconds=15)
        failed = await bus.health()
        assert failed.status == "failed" and not failed.is_healthy
        assert failed.reason.startswith("handler 'handle': t-0 offset 0 has been in flight for")
        assert failed.handlers[0].status == "wedged" and "records wait for it" in failed.reason
        await bus.clock.advance(seconds=600)
        [warning] = warnings_of(caplog)
        assert warning.startswith("handler 'handle' is wedged: t-0 offset 0 has been in flight for 6")
        gate.set()
        await bus.log.drain()
        await bus.clock.advance(seconds=5)
        assert (await bus.health()).status == "ok"
        assert warnings_of(caplog)[1:] == ["handler 'handle' is not wedged any more: everything is handled"]


async def test_the_only_record_may_take_its_time(bus: TestBus, caplog: pytest.LogCaptureFixture) -> None:
    gate = waiting(bus)
    async with bus:
        await bus.send("t", "x")
        await bus.clock.advance(seconds=600)
        assert (await bus.health()).status == "ok" and warnings_of(caplog) == []
        gate.set()


async def test_wedged_after_ms_is_the_buss(caplog: pytest.LogCaptureFixture) -> None:
    bus = TestBus(wedged_after_ms=2_000)
    gate = waiting(bus)
    async with bus:
        await bus.send_many("t", ["x", "y"])
        await bus.clock.advance(seconds=5)
        assert (await bus.health()).status == "failed" and len(warnings_of(caplog)) == 1
        gate.set()


async def test_a_handler_that_stopped_says_why(bus: TestBus) -> None:
    bus.topic("t", partitions=2)

    @bus.consumer("t", group="g")
    async def handle(text: str, record: ConsumerRecord) -> None:
        if text == "bad":
            raise ValueError("no such customer")

    async with bus:
        await bus.send("t", "bad", partition=0)
        await bus.clock.advance(seconds=1)
        health = await bus.health()
        assert health.status == "degraded" and health.handlers[0].status == "stopped"
        assert "t-0 stopped" in health.reason and "no such customer" in health.reason
        await bus.send("t", "bad", partition=1)
        await bus.clock.advance(seconds=600)
        health = await bus.health()
        assert health.status == "failed" and "no other partition" in health.reason
        assert health.handlers[0].counts.failed == 2


async def test_acks_that_never_come_are_told(bus: TestBus, caplog: pytest.LogCaptureFixture) -> None:
    bus.topic("t")
    held: list[ConsumerRecord] = []

    @bus.consumer("t", group="g", ack="manual", max_unfinished=3)
    async def handle(record: ConsumerRecord) -> None:
        held.append(record)

    async with bus:
        for number in range(6):
            await bus.send("t", str(number))
        await bus.clock.advance(seconds=90)
        health = await bus.health()
        assert health.status == "failed" and "never acknowledged" in health.reason, health.reason
        assert "no record of t-0 has finished for" in health.reason
        while (await one(bus)).lag:
            for record in held:
                record.ack()
            held.clear()
            await bus.clock.advance(ms=200)
        await bus.clock.advance(seconds=5)
        assert (await bus.health()).status == "ok" and len(warnings_of(caplog)) == 2


async def test_commits_that_fail_are_degraded_then_wedged_then_well(bus: TestBus) -> None:
    waiting(bus).set()
    async with bus:
        await bus.clock.settle()
        with bus.log.faults.outage("commit"):
            await bus.send("t", "x")
            await bus.clock.advance(seconds=10)
            health = await bus.health()
            assert health.status == "degraded" and "commits fail since" in health.reason, health.reason
            await bus.clock.advance(seconds=60)
            health = await bus.health()
            assert health.status == "failed" and "no offset could be committed for" in health.reason
        await bus.clock.advance(seconds=10)
        assert (await bus.health()).status == "ok"


async def test_a_commit_that_is_never_answered_is_told_while_records_go_on(bus: TestBus) -> None:
    waiting(bus).set()
    answered = anyio.Event()
    backend = bus.log._memory.backend  # pyright: ignore[reportPrivateUsage] - a fault no method of faults has

    def keep_waiting(call: Call) -> Wait | None:
        return answered.wait if call.step == "commit" and call.when == "before" else None

    async with bus:
        backend.hooks.append(keep_waiting)
        for seconds, status in ((3, "ok"), (30, "degraded"), (60, "failed")):
            await bus.send("t", "x")
            await bus.clock.advance(seconds=seconds)
            health = await bus.health()
            assert health.status == status, health.reason
        assert re.search(r"no offset could be committed for 9\d s: the log does not answer", health.reason)
        backend.hooks.remove(keep_waiting)
        answered.set()
        await bus.clock.advance(seconds=1)
        assert (await bus.health()).status == "ok"


async def test_polls_that_fail_are_degraded_then_wedged_then_well(bus: TestBus) -> None:
    waiting(bus).set()
    async with bus:
        await bus.clock.settle()
        with bus.log.faults.outage("fetch"):
            await bus.clock.advance(seconds=20)
            health = await bus.health()
            assert health.status == "degraded" and "polls fail since" in health.reason, health
            await bus.clock.advance(seconds=60)
            assert (await bus.health()).status == "failed"
        await bus.clock.advance(seconds=20)  # a pause between two tries, and one poll
        assert (await bus.health()).status == "ok"


async def test_a_group_that_does_not_come_to_rest_is_told(bus: TestBus, caplog: pytest.LogCaptureFixture) -> None:
    bus.topic("t", partitions=2)

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None: ...

    async with bus:
        await bus.clock.settle()
        async with bus.new_consumer("t", group="g") as silent:
            await silent.poll(0)
            await bus.clock.settle()
            async with bus.new_consumer("t", group="g"):  # it makes the group share anew, and `silent` polls no more
                await bus.clock.advance(seconds=30)
                health = await bus.health()
                assert health.status == "ok" and health.handlers[0].status == "rebalancing", health
                await bus.clock.advance(seconds=60)
                health = await bus.health()
                assert health.status == "failed" and health.handlers[0].status == "wedged"
                assert "the group 'g' has been rebalancing for" in health.reason
                assert "eventbus groups describe g" in health.reason
        await bus.clock.advance(seconds=10)
        assert (await bus.health()).status == "ok" and len(warnings_of(caplog)) == 2


async def test_the_trend_of_the_lag_has_a_sign(bus: TestBus) -> None:
    gate = waiting(bus)
    async with bus:
        for _ in range(30):  # 10 records a second, none of which is handled
            await bus.send_many("t", ["x"] * 10)
            await bus.clock.advance(seconds=1)
        growing = await one(bus)
        assert growing.lag == 300 and growing.lag_trend is not None and 9 <= growing.lag_trend <= 11
        gate.set()
        await bus.log.drain()
        await bus.clock.advance(seconds=10)
        shrinking = await one(bus)
        assert shrinking.lag == 0 and shrinking.lag_trend is not None and shrinking.lag_trend < 0
        await bus.clock.advance(seconds=200)
        assert (await one(bus)).lag_trend == 0


async def test_it_can_be_asked_inside_a_handler_and_when_the_log_does_not_answer(
    bus: TestBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.topic("t")
    answers: list[BusHealth] = []

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        answers.append(await bus.health())

    async with bus:
        await bus.send("t", "x")
        await bus.log.drain()
        assert answers[0].status == "ok" and answers[0].handlers[0].lag == 1

        async def no_answer() -> Any:
            await anyio.sleep_forever()

        monkeypatch.setattr(bus.context.runners[0], "lag", no_answer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.health)
            await bus.clock.advance(seconds=2)  # it gives up on the log, and goes by what it knew
        monkeypatch.undo()


def test_under_trio_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bus = TestBus()
        gate = waiting(bus)
        async with bus:
            await bus.send_many("t", ["x", "y"])
            await bus.clock.advance(seconds=70)
            assert (await bus.health()).status == "failed"
            gate.set()

    with caplog.at_level(logging.WARNING):
        anyio.run(main, backend="trio")
    assert len(warnings_of(caplog)) == 1


async def test_a_directory_that_was_moved_away_degrades_the_health(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    async with EventBus(f"file://{path}") as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"1")
        assert (await bus.health()).status == "ok"
        path.rename(tmp_path / "moved")
        await bus.send("t", b"2")
        for _ in range(2):
            health = await bus.health()
        assert (health.status, health.is_healthy) == ("degraded", True)
        assert f"{path} does not lead to the directory of this log any more" in health.reason
        assert len([line for line in caplog.messages if "does not lead" in line]) == 1
    assert not path.exists()
    async with EventBus(f"file://{tmp_path}/moved") as bus:
        assert (await bus.send("t", b"3")).offset == 2


async def test_a_poisoned_partition_degrades_the_health() -> None:
    storage = FaultyStorage(CrashStorage(), only=("sync",))
    with contextlib.suppress(StorageError):
        async with bus_on(storage) as bus:
            await bus.admin.create_topic("t")
            await bus.send("t", b"0")
            storage.calls_count, storage.fail_at = 0, 1
            with pytest.raises(LogPoisoned):
                await bus.send("t", b"1")
            health = await bus.health()
    assert health.status == "degraded"
    assert "t-0 takes no more writes: its flush to disk failed" in health.reason


@pytest.mark.parametrize("order", ["key", "none"])
async def test_partitions_whose_workers_wait_for_the_end_of_an_outage_are_not_wedged(bus: TestBus, order: Any) -> None:
    bus.topic("t", partitions=4)

    @bus.consumer("t", group="g", order=order, concurrency=2)
    async def handle(text: str) -> None:
        raise ConnectionRefusedError("the database is away")

    async with bus:
        for partition in range(4):
            await bus.send("t", "text", partition=partition, key=f"{partition}")
        for _ in range(150):
            await bus.clock.advance(seconds=1)
            assert (await bus.health()).is_healthy
        assert (await one(bus)).reason.endswith("an outage: ConnectionRefusedError: the database is away")
