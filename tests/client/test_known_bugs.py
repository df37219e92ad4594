"""Bugs that others had in consumers and frameworks, each played here by its name.

Where they stand as tests already:

| bug | test |
| --- | --- |
| KAFKA-9144 / KIP-664, KAFKA-14402 / KIP-890, KAFKA-17754, KAFKA-18401, KIP-1228 | tests/broker/test_transactions.py |
| KAFKA-12980 | test_regressions_handlers.py::test_a_poll_that_passes_what_is_not_for_readers_returns |
| librdkafka: an empty aborted transaction hides later commits | tests/broker/test_transactions.py |
| aio-libs/aiokafka#844 (offsets of a zombie in a transaction), Spring Kafka #1612 | tests/faults/test_zombies.py |
| JasperFx/wolverine#1708, dotnetcore/CAP#78 at every await | test_cancel_trials.py |
| faust-streaming/faust#517 (duplicates after a kill) | tests/faults/test_exactly_once_crashes.py |

What cannot be played on the embedded log, and why:

- librdkafka #4953, aiokafka "out of order after leader change", dotnetcore/CAP#1251: one broker, no leader moves;
- librdkafka #3575, #3712, #4736: producers; tests/client/test_producer.py, tests/broker/test_producers*.py;
- Spring Kafka #990, #1516, binder #946 (dead letter and offset part ways): no dead letter topics yet; what stands for
  it is `test_spring_kafka_990_what_is_published_and_the_offset_go_together`;
- Apache Spark SPARK-25005, Paimon #9666, Pinot #19161: sinks; tests/spark;
- YDB #52731: the server's answer, tests/broker/test_transactions_shard.py (ConcurrentTransactions).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, TopicPartition
from eventbus.errors import (
    HandlerError,
    IllegalGeneration,
    InvalidTxnState,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.testing import TestBus
from tests.client.fleets import committed, life
from tests.client.trials import turns
from tests.support import until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOST_PLACE = (UnknownMemberId, IllegalGeneration, RebalanceInProgress)


# commits --------------------------------------------------------------------------------------------------------------


async def test_faststream_2618_a_failed_record_is_not_passed_by_a_later_commit(bus: TestBus) -> None:
    """A failed message vanished as soon as a later one was committed; here its partition stands still.

    ag2ai/faststream#2618, #1980.
    """
    seen: list[int] = []
    is_broken = True

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)
        if number == 2 and is_broken:
            raise ValueError(number)

    async with bus:
        await bus.send_many("t", range(4))
        with pytest.raises(HandlerError, match="offset 2"):
            await bus.drain()
        await bus.send_many("t", range(4, 8))
        await bus.clock.advance(seconds=60)
        assert seen == [0, 1, 2]
    is_broken = False
    async with bus:
        assert await committed(bus) == {T0: 2}
        await bus.drain()
    assert seen == [0, 1, 2, *range(2, 8)]


@pytest.mark.parametrize("end", ["close", "cancel"])
async def test_faststream_2999_a_cancelled_handler_has_not_finished(bus: TestBus, end: str) -> None:
    """The offset of a cancelled handler's record was committed; here it is handled again.

    ag2ai/faststream#2999, #3000, #171.
    """
    seen: list[int] = []
    hangs = True

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)
        if number == 1 and hangs:
            await anyio.sleep_forever()

    async with life(bus) as one:
        await bus.send_many("t", range(3))
        await until(lambda: 1 in seen)
        if end == "cancel":
            one.scope.cancel()
        else:
            one.stop.set()
            await bus.clock.advance(seconds=31)  # longer than drain_timeout_ms
        await one.ended.wait()
    hangs = False
    async with bus:
        assert await committed(bus) == {T0: 1}
        await bus.drain()
    assert seen == [0, 1, 1, 2]


async def test_faststream_923_what_was_finished_is_committed_at_ctrl_c(bus: TestBus) -> None:
    """Offsets were not committed at Ctrl-C: duplicates after the restart. Here a cancelled bus commits.

    ag2ai/faststream#923.
    """
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    with anyio.CancelScope() as scope:
        async with bus:
            await bus.send_many("t", range(3))
            await until(lambda: len(seen) == 3)
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    async with bus:
        await bus.drain()
    assert seen == [0, 1, 2]


async def test_faststream_2610_nothing_is_committed_behind_the_callers_back(bus: TestBus) -> None:
    """Offsets were committed automatically despite the settings; a consumer here commits only when asked."""
    async with bus:
        await bus.send_many("t", range(3))
        for _ in range(2):
            async with bus.new_consumer("t", group="g") as consumer:
                assert [record.offset for record in await consumer.poll()] == [0, 1, 2]
                await bus.clock.advance(seconds=60)
                await consumer.poll(0)
            assert await committed(bus) == {}


async def test_cap_1815_a_record_that_no_handler_has_seen_is_not_committed_at_shutdown(bus: TestBus) -> None:
    """The offset was committed during shutdown although the subscriber never ran. dotnetcore/CAP#1815."""
    seen: list[int] = []
    go_on = anyio.Event()

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)
        await go_on.wait()

    async with life(bus) as one:
        await bus.send_many("t", range(5))
        await until(lambda: seen == [0])
        one.stop.set()
        await turns(20)
        go_on.set()
    assert seen == [0]
    async with bus:
        assert await committed(bus) == {T0: 1}
        await bus.drain()
    assert seen == [0, 1, 2, 3, 4]


async def test_cap_78_a_store_that_fails_loses_no_message(bus: TestBus) -> None:
    """The database was away when a message came, and the message was gone. dotnetcore/CAP#78, JasperFx/wolverine."""
    stored: list[int] = []
    is_away = True

    @bus.consumer("t", group="g")
    async def store(number: int) -> None:
        if is_away:
            raise OSError("no route to the database")
        stored.append(number)

    async with bus:
        await bus.send_many("t", range(3))
        await bus.clock.advance(seconds=60)
        assert bus.failure is None
    is_away = False
    async with bus:
        await bus.drain()
    assert stored == [0, 1, 2]


async def test_wolverine_2256_offsets_advance_with_what_is_finished(bus: TestBus) -> None:
    """In durable mode the offsets never moved. JasperFx/wolverine#2256."""

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None: ...

    async with bus:
        for end in range(1, 4):
            await bus.send("t", end)
            await bus.log.drain()
            assert await committed(bus) == {T0: end}


async def test_kafka_2942_an_automatic_commit_does_not_pass_what_poll_has_returned(bus: TestBus) -> None:
    """Prefetched records counted as consumed, and a crash lost them; here a commit covers what poll has returned.

    KAFKA-2942, twmb/franz-go#57.
    """
    options: dict[str, Any] = {"group": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 1_000}
    async with bus:
        await bus.send_many("t", range(6))
        with anyio.CancelScope():
            consumer = await bus.new_consumer("t", **options).__aenter__()
            assert len(await consumer.poll(max_records=2)) == 2
            await bus.clock.advance(seconds=5)
            assert await committed(bus) == {}, "what is being handled now is not finished"
            assert [record.offset for record in await consumer.poll(max_records=1)] == [2]
            assert await committed(bus) == {T0: 2}
        await bus.log.faults.lose("g")  # this one is never seen again
        async with bus.new_consumer("t", **options) as successor:
            assert [record.offset for record in await successor.poll()] == [2, 3, 4, 5]
        await consumer.aclose()


async def test_spring_kafka_990_what_is_published_and_the_offset_go_together(bus: TestBus) -> None:
    """The dead letter was published and its offset was not committed, or the reverse. spring-projects/spring-kafka#990.

    Also spring-kafka#1516 and the binder's #946. Here both are one transaction, whichever call fails.
    """

    @bus.consumer("t", group="g", exactly_once=True)
    @bus.producer("dead")
    async def bury(number: int) -> int:
        return number

    for step in ("send_offsets", "commit_transaction"):
        async with bus:
            await bus.send_many("t", range(3))
            bus.log.faults.fail_next(step, InvalidTxnState("a test's fault"))  # one that waiting does not heal
            with suppress(HandlerError):
                await bus.drain()
        offset = (bus.log.committed("g") or {}).get(T0, 0)
        assert sorted(bus.log.values("dead", int)) == sorted((list(range(3)) * 2)[:offset])


@pytest.mark.parametrize("step", ["send_offsets", "commit_transaction"])
async def test_spring_kafka_990_an_answer_that_is_lost_is_waited_out(bus: TestBus, step: str) -> None:
    """The same where the log is away for a while: the handler's partition waits, and each record goes out once."""

    @bus.consumer("t", group="g", exactly_once=True)
    @bus.producer("dead")
    async def bury(number: int) -> int:
        return number

    async with bus:
        bus.log.faults.fail_next(step)
        await bus.send_many("t", range(3))
        await until(lambda: not bus.log.faults.hooks_count)
        for _ in range(60):
            await bus.clock.advance(seconds=1)
        await bus.drain()
        assert bus.failure is None
    assert bus.log.committed("g") == {T0: 3}
    assert bus.log.values("dead", int) == [0, 1, 2]


async def test_faust_312_a_gap_in_the_acknowledgements_is_not_committed_over(bus: TestBus) -> None:
    """With a gap in the acks a wrong offset was committed, or none at all. faust-streaming/faust#312, #596."""
    records: dict[int, ConsumerRecord] = {}

    @bus.consumer("t", group="g", ack="manual")
    async def handle(record: ConsumerRecord) -> None:
        records[record.offset] = record

    async with bus:
        await bus.send_many("t", range(6))
        await until(lambda: len(records) == 6)
        for acknowledged, prefix in ((4, 0), (0, 1), (2, 1), (1, 3), (3, 5), (5, 6)):
            records[acknowledged].ack()
            await bus.clock.advance(seconds=2)
            assert (await committed(bus)).get(T0, 0) == prefix


@pytest.mark.parametrize("raises", [False, True])
async def test_faststream_1001_what_is_not_acknowledged_is_not_committed(
    bus: TestBus, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message counted as acknowledged after a nack, or because its handler returned; here it comes again.

    ag2ai/faststream#1001, #2610, #1446.
    """
    monkeypatch.setattr("eventbus.testing.memory._LEAVE_SECONDS", 0.001)
    seen: list[int] = []
    refuses = True

    @bus.consumer("t", group="g", ack="manual")
    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        if record.offset == 1 and refuses:
            if raises:
                raise ValueError("not this one")
            return
        record.ack()

    async with life(bus):
        await bus.send_many("t", range(3))
        await bus.clock.advance(seconds=5)
        assert await committed(bus) == {T0: 1}
    refuses = False
    async with life(bus):
        assert await committed(bus) == {T0: 1}
        await bus.clock.advance(seconds=5)
        assert await committed(bus) == {T0: 3}
    assert seen[-2:] == [1, 2]


async def test_faust_532_a_handler_that_is_over_its_time_stops_no_other(bus: TestBus) -> None:
    """A task's timeout stopped every consumer. faust-streaming/faust#532."""
    seen: list[int] = []

    @bus.consumer("slow", group="g", timeout=5, on_error="stop")
    async def hangs(number: int) -> None:
        await anyio.sleep_forever()

    @bus.consumer("t", group="g2", timeout=5)
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        await bus.send("slow", 0)
        for number in range(3):
            await bus.send("t", number)
            await bus.clock.advance(seconds=10)
        assert seen == [0, 1, 2]
        assert await committed(bus, "g2") == {T0: 3}
        assert await committed(bus, "g") == {}
        with pytest.raises(HandlerError, match="slow-0 offset 0"):
            await bus.drain()
