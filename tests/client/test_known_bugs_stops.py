"""Reproduce bugs of other clients: consumers that stop silently, slow handlers. The list is in test_known_bugs.py."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition
from eventbus.errors import (
    IllegalGeneration,
    KafkaError,
    OffsetOutOfRange,
    ProducerFenced,
    RebalanceInProgress,
    StorageFull,
    UnknownMemberId,
)
from eventbus.testing import FakeClock, TestBus
from tests.client.fleets import committed, fleet
from tests.client.trials import LOGS, turns
from tests.support import until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOST_PLACE = (UnknownMemberId, IllegalGeneration, RebalanceInProgress)


# consumers that stop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hang", [False, True])
async def test_aiokafka_1154_reading_goes_on_after_an_outage(bus: TestBus, hang: bool) -> None:
    """Consumers never recovered after the brokers had been away. aio-libs/aiokafka#1154, #703, #264.

    Also confluentinc/confluent-kafka-python#173.
    """
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        await bus.send("t", 0)
        await bus.log.drain()
        with bus.log.faults.outage(hang=hang):
            await bus.clock.advance(seconds=600)
        await bus.clock.advance(seconds=1)
        await bus.send("t", 1)
        await bus.clock.advance(seconds=60)
        await bus.log.drain()
        assert seen == [0, 1]
        assert await committed(bus) == {T0: 2}


async def test_aiokafka_703_reading_goes_on_after_the_coordinator_restarted(bus: TestBus) -> None:
    """The whole cluster had been down, and the group never came back. aio-libs/aiokafka#703."""
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        for number in range(4):
            await bus.send("t", number)
            await bus.drain()
            await bus.log.faults.restart_coordinator()
            await bus.clock.advance(seconds=10)
        await bus.log.drain()
        assert seen == [0, 1, 2, 3]
        assert await committed(bus) == {T0: 4}


async def test_aiokafka_659_closing_ends_while_nobody_answers(bus: TestBus) -> None:
    """stop() hung for ever when no broker answered. aio-libs/aiokafka#659."""

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None: ...

    ended = anyio.Event()

    async def live() -> None:
        async with bus:
            await bus.send("t", 0)
            await stop.wait()
        ended.set()

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await turns(60)
        with bus.log.faults.outage("fetch", "commit", hang=True):
            stop.set()
            await bus.clock.advance(seconds=120)
            assert ended.is_set()


async def test_faststream_1414_a_commit_that_fails_blocks_nobody(bus: TestBus) -> None:
    """The consumer was blocked forever after a failed commit. ag2ai/faststream#1414, robinhood/faust#458."""
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        bus.log.faults.fail_next("commit", StorageFull("no room"), times=2)
        for number in range(3):
            await bus.send("t", number)
            await bus.clock.settle()
            await bus.clock.advance(seconds=1)
        assert seen == [0, 1, 2]
        await bus.log.drain()
        assert await committed(bus) == {T0: 3}


@pytest.mark.system
async def test_faust_175_consumers_live_for_days(bus: TestBus) -> None:
    """Consumers died slowly, over days. faust-streaming/faust#175, #523."""
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        [before] = await bus.admin.describe_groups(["g"])
        for day in range(3):
            await bus.clock.advance(seconds=5_000)  # thousands of heartbeats
            await bus.send("t", day)
            await bus.drain()
        assert seen == [0, 1, 2]
        [after] = await bus.admin.describe_groups(["g"])
        assert after.generation_id == before.generation_id, "nobody left it in between"


@pytest.mark.system
async def test_faust_133_a_rebalance_ends_though_a_member_does_not_answer() -> None:
    """A rebalance never completed. faust-streaming/faust#133."""
    async with (
        fleet(partitions=2) as all_,
        all_.keeper.new_consumer("t", group="g", max_poll_interval_ms=30_000) as silent,
    ):
        await silent.poll(0)
        async with all_.service("a") as a:
            await all_.clock.advance(seconds=31)
            await all_.send(2)
            await all_.send(2, 1)
            await a.drain()
            assert all_.offsets(0) == all_.offsets(1) == [0, 1]


async def test_quix_1114_a_committed_offset_that_retention_has_passed(
    bus: TestBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Stuck when the committed offset fell out of retention; here reading goes on and says so, or the error is named.

    quixio/quix-streams#1114.
    """
    caplog.set_level(logging.WARNING)
    seen: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        seen.append(number)

    async with bus:
        await bus.send_many("t", range(3))
        await bus.drain()
    async with bus:
        await bus.admin.alter_group_offsets("strict", {T0: 1})
        await bus.admin.alter_group_offsets("lenient", {T0: 1})
        await bus.send_many("t", range(3, 6))
        await bus.admin.delete_records({T0: 4})
        async with bus.new_consumer("t", group="lenient") as lenient:
            assert [record.offset for record in await lenient.poll()] == [4, 5]
        assert "3 offset(s) skipped" in caplog.text
        async with bus.new_consumer("t", group="strict", start="none") as strict:
            with pytest.raises(OffsetOutOfRange):
                await strict.poll()


async def test_quix_1067_a_negative_offset_is_refused(bus: TestBus) -> None:
    """A worker hung in its recovery with a negative offset. quixio/quix-streams#1067."""
    async with bus:
        await bus.send("t", 0)
        async with bus.new_consumer("t", group="g") as consumer:
            with pytest.raises((KafkaError, ValueError)):
                await consumer.commit({T0: OffsetAndMetadata(-1)})
        with pytest.raises((KafkaError, ValueError)):
            await bus.admin.alter_group_offsets("h", {T0: -5})
        async with bus.new_consumer("t", group="g") as consumer:
            assert [record.offset for record in await consumer.poll()] == [0]


async def test_librdkafka_pause_and_resume_skip_nothing(bus: TestBus) -> None:
    """Records fetched ahead were gone after a pause. librdkafka's release notes, versions 1.6 to 2.3."""
    async with bus:
        await bus.send_many("t", range(9))
        async with bus.new_consumer("t", group="g") as consumer:
            found: list[int] = []
            for _ in range(9):
                found += [record.offset for record in await consumer.poll(0, max_records=1)]
                consumer.pause(T0)
                assert await consumer.poll(0) == []
                consumer.resume(T0)
        assert found == list(range(9))


async def test_aiokafka_a_compacted_topic_is_read_to_its_end() -> None:
    """Offsets that compaction had taken stopped the reader. aio-libs/aiokafka, fixed in its version 0.5."""
    clock = FakeClock()
    async with EventBus(f"memory://known-{next(LOGS)}", clock=clock) as bus:
        await bus.admin.create_topic(
            "t",
            1,
            configs={"cleanup.policy": "compact", "internal.segment.bytes": 300, "min.cleanable.dirty.ratio": 0.01},
        )
        for number in range(60):
            await bus.send("t", b"%d" % number, key=b"%d" % (number % 3))
        bus.context.backend.engine.broker.clean_now(clock())
        async with bus.new_consumer("t", group="g") as consumer:
            found = [record.value for record in await consumer.poll()]
            with anyio.fail_after(20):
                while await consumer.position(T0) < 60:
                    found += [record.value for record in await consumer.poll(0)]
            await consumer.commit()
        assert len(found) < 60 and found[-3:] == [b"57", b"58", b"59"]
        assert await committed(bus) == {T0: 60}


async def test_spring_kafka_1612_a_handler_whose_id_was_taken_takes_it_back_or_stops(bus: TestBus) -> None:
    """A fenced producer went on, and everything it did failed. spring-projects/spring-kafka#1612.

    Also confluentinc/confluent-kafka-go#722.
    """

    @bus.consumer("t", group="g", exactly_once=True)
    @bus.producer("out")
    async def copy(number: int) -> int:
        return number

    async with bus:
        for number in range(4):
            await bus.send("t", number)
            await bus.drain()
            await bus.log.faults.fence("copy")
        bus.log.assert_published("out", 0, 1, 2, 3)
        producer = bus.new_producer(transactional_id="mine")
        await producer.begin()
        await producer.send("out", 9)
        await bus.log.faults.fence("mine")
        with pytest.raises(ProducerFenced):
            await producer.commit()


# slow handlers --------------------------------------------------------------------------------------------------------


@pytest.mark.system
async def test_aiokafka_848_a_handler_of_seven_minutes_keeps_its_place(bus: TestBus) -> None:
    """A message that took seven minutes: an endless loop of rebalances. aio-libs/aiokafka#848.

    Also confluent-kafka-python#552 and #629, librdkafka#2971.
    """
    seen: list[int] = []

    @bus.consumer("t", group="g", max_poll_interval_ms=300_000)
    async def handle(number: int) -> None:
        seen.append(number)
        await bus.clock.sleep(420)

    async with bus:
        await bus.send_many("t", range(3))
        await bus.clock.advance(seconds=3 * 420 + 1)
        await bus.log.drain()
        assert seen == [0, 1, 2]
        assert await committed(bus) == {T0: 3}
        [group] = await bus.admin.describe_groups(["g"])
        assert (group.state, group.generation_id) == ("Stable", 1)


@pytest.mark.system
async def test_kafka_python_2070_a_plain_function_that_sleeps_keeps_its_place(bus: TestBus) -> None:
    """A sleep in the handler: no heartbeat, no progress, endless rebalances. dpkp/kafka-python#2070, #2422."""
    seen: list[int] = []
    at_work, go_on = threading.Event(), threading.Event()

    @bus.consumer("t", group="g", max_poll_interval_ms=300_000)
    def handle(number: int) -> None:
        seen.append(number)
        at_work.set()
        assert go_on.wait(20)

    async with bus:
        await bus.send_many("t", range(2))
        await until(at_work.is_set)
        await bus.clock.advance(seconds=900)
        go_on.set()
        await bus.log.drain()
        assert seen == [0, 1]
        [group] = await bus.admin.describe_groups(["g"])
        assert (group.state, group.generation_id) == ("Stable", 1)


@pytest.mark.system
async def test_kafkajs_1764_a_slow_batch_needs_no_heartbeats(bus: TestBus) -> None:
    """A batch with heartbeats by hand: duplicates, rebalances. tulios/kafkajs#1764."""
    seen: list[int] = []

    @bus.consumer("t", group="g", batch=3, max_poll_interval_ms=60_000)
    async def handle(numbers: list[int]) -> None:
        await bus.clock.sleep(90)
        seen.extend(numbers)

    async with bus:
        await bus.send_many("t", range(6))
        await bus.clock.advance(seconds=200)
        await bus.log.drain()
        assert seen == list(range(6))
        [group] = await bus.admin.describe_groups(["g"])
        assert group.generation_id == 1
