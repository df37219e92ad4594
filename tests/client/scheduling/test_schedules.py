"""Scheduled records: delivered once and in time, over restarts, with other instances, in transactions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, Firing, ProducerRecord, Scheduled, Transaction
from eventbus.client.scheduling import partition_owner
from eventbus.client.scheduling.entries import Entry, Every, encode, key_of
from eventbus.client.scheduling.partition_schedule import PartitionSchedule
from eventbus.client.scheduling.timetable import Timetable
from eventbus.errors import (
    ConfigError,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    SerializationError,
    UnknownTopicOrPartition,
)
from eventbus.testing import FakeClock, TestBus, in_memory
from eventbus.testing.faulty import Step
from eventbus.types import TopicPartition
from tests.client.conftest import MakeBus
from tests.client.fleets import Life, life
from tests.client.trials import LOGS
from tests.support import until

BACKENDS = ("asyncio", "trio")


def records(bus: TestBus, topic: str = "t") -> list[Any]:
    return [record.value for record in bus.log.records(topic)]


async def stored(bus: EventBus, topic: str = "t") -> list[ConsumerRecord]:
    async with bus.new_consumer(topic) as consumer:
        return [record async for record in consumer.until_end()]


@pytest.fixture
async def bus() -> Any:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t", 3)
        yield bus


# what is delivered when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_comes_at_its_time_and_not_before(backend: str) -> None:
    async def main() -> None:
        async with TestBus(auto_create_topics=True) as bus:
            await bus.admin.create_topic("t")
            at = bus.clock() + 5_000
            one = await bus.send("t", {"a": 1}, key="k", headers={"h": b"1"}, delay=5)
            assert (one.topic, one.due_ms) == ("t", at) and isinstance(one, Scheduled)
            await bus.clock.advance(ms=4_999)
            assert records(bus) == []
            await bus.clock.advance(ms=1)
            [record] = bus.log.records("t")
            assert (record.key, record.value, record.headers) == (b"k", b'{"a":1}', (("h", b"1"),))
            assert record.timestamp_ms == at

    anyio.run(main, backend=backend)


async def test_each_way_to_say_when(bus: TestBus) -> None:
    now = datetime.fromtimestamp(bus.clock() / 1000, UTC)
    await bus.send("t", b"3", deliver_at=now + timedelta(seconds=3))
    await bus.send("t", b"2", deliver_at=bus.clock() + 2_000)
    await bus.send("t", b"1", delay=timedelta(seconds=1))
    await bus.send("t", b"0", deliver_at=bus.clock() - 1)
    await bus.clock.advance(seconds=10)
    assert [record.value for record in sorted(bus.log.records("t"), key=lambda one: one.timestamp_ms)] == [
        b"0", b"1", b"2", b"3",
    ]  # fmt: skip


async def test_what_is_past_is_delivered_at_once_and_drain_waits_for_it(bus: TestBus) -> None:
    await bus.send("t", b"now", delay=0)
    await bus.send("t", b"later", delay=60)
    await bus.drain()
    assert records(bus) == [b"now"]


async def test_keys_partitions_times_and_tombstones_are_kept(bus: TestBus) -> None:
    direct = await bus.send("t", b"x", key="k")
    await bus.send("t", None, key="k", delay=1)
    await bus.send("t", b"p", partition=2, delay=1, timestamp_ms=7)
    await bus.send("t", b"q", key="a", partition_key="k", delay=1)
    await bus.clock.advance(seconds=1)
    found = {record.value: record for record in bus.log.records("t")}
    assert found[None].partition == direct.partition == found[b"q"].partition
    assert (found[b"p"].partition, found[b"p"].timestamp_ms) == (2, 7)


async def test_handlers_get_what_is_delivered_and_drain_follows() -> None:
    bus = TestBus(auto_create_topics=True)
    got: list[int] = []

    @bus.consumer("chain", group="g")
    async def handle(number: int) -> None:
        got.append(number)
        if number < 3:
            await bus.send("chain", number + 1, delay=0)

    async with bus:
        await bus.send("chain", 0, delay=0)
        await bus.drain()
    assert got == [0, 1, 2, 3]


async def test_an_applications_bus_under_a_clock_that_stands_still() -> None:
    app = EventBus("file://./nowhere", service="app", auto_create_topics=True)
    got: list[bytes] = []

    @app.consumer("t", group="g")
    async def handle(value: bytes) -> None:
        got.append(value)

    clock = FakeClock()
    async with in_memory(app, clock):
        await app.send("t", b"x", delay=timedelta(days=30))
        await clock.jump(seconds=30 * 86_400 - 1)
        assert got == []
        await clock.advance(seconds=1)
        await app.drain()
    assert got == [b"x"]


async def test_a_clock_that_is_set_forward_is_noticed(bus: TestBus) -> None:
    await bus.send("t", b"x", delay=3600)
    await bus.clock.jump(seconds=3600)
    await bus.clock.settle()
    assert records(bus) == [b"x"]


# over restarts, and beside others ------------------------------------------------------------------------------------


async def test_what_waits_survives_a_restart(file_url: str) -> None:
    make_bus, clock = partial(EventBus, file_url, service="shop"), FakeClock()
    async with make_bus(clock=clock) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"soon", delay=0)
        await bus.drain()
        await bus.send("t", b"later", delay=60)
    await clock.advance(seconds=120)
    async with make_bus(clock=clock) as bus:
        await bus.drain()
        assert [record.value for record in await stored(bus)] == [b"soon", b"later"]
    async with make_bus(clock=clock) as bus:
        await bus.drain()
        assert len(await stored(bus)) == 2


async def test_a_bus_without_handlers_delivers_what_an_earlier_life_put_by() -> None:
    bus = TestBus(auto_create_topics=True)
    async with bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"x", delay=5)
    async with bus:
        await bus.clock.advance(seconds=5)
        await bus.drain()
        assert records(bus) == [b"x"]


async def test_a_bus_with_nothing_to_deliver_makes_no_topic_and_says_nothing(make_bus: MakeBus) -> None:
    async with make_bus() as bus:
        await bus.drain()
        assert await bus.admin.list_topics(internal=True) == await bus.admin.list_topics()
        assert not [name for name in await bus.admin.list_topics() if "scheduled" in name]
        assert (await bus.health()).parts == () and bus.metrics().parts == ()


async def both(first: Life, second: Life, clock: FakeClock, wanted: Callable[[], Awaitable[int]], count: int) -> None:
    with anyio.fail_after(20):
        while await wanted() < count:
            await clock.advance(ms=50)


async def test_two_instances_deliver_once_and_one_takes_over() -> None:
    clock, url = FakeClock(), f"memory://scheduled-{next(LOGS)}"
    async with EventBus(url, service="keeper", clock=clock) as keeper:
        await keeper.admin.create_topic("t")
        await keeper.admin.create_topic("_scheduled.shop", 2)

        async def count() -> int:
            return len(await stored(keeper))

        async with life(EventBus(url, service="shop", clock=clock)) as one:
            async with life(EventBus(url, service="shop", clock=clock)) as two:
                for number in range(40):
                    await (one if number % 2 else two).bus.send("t", b"%d" % number, delay=number / 10)
                await both(one, two, clock, count, 20)
            await both(one, one, clock, count, 40)
        assert sorted(int(record.value or b"") for record in await stored(keeper)) == [*range(40)]


async def test_an_instance_that_began_when_nothing_was_scheduled_takes_over_too() -> None:
    clock, url = FakeClock(), f"memory://scheduled-{next(LOGS)}"
    async with EventBus(url, service="keeper", clock=clock) as keeper:
        await keeper.admin.create_topic("t")

        async def count() -> int:
            return len(await stored(keeper))

        async with life(EventBus(url, service="shop", clock=clock)) as one:
            await clock.advance(seconds=1)
            async with EventBus(url, service="shop", clock=clock) as two:
                await two.send("t", b"later", delay=5)
            await both(one, one, clock, count, 1)


async def test_another_service_has_a_topic_of_its_own() -> None:
    clock, url = FakeClock(), f"memory://scheduled-{next(LOGS)}"
    async with (
        EventBus(url, client_id="shop/1", clock=clock) as shop,
        EventBus(url, client_id="bank", clock=clock) as bank,
    ):
        await shop.admin.create_topic("t")
        one = await shop.send("t", b"x", delay=5)
        assert not await bank.cancel_scheduled(one)
        assert {"_scheduled.shop-1", "_scheduled.bank"} < {*await shop.admin.list_topics()}


async def test_whoever_lost_the_partition_delivers_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """A second owner of the transactional id: the first is fenced, takes it over again, and all comes once."""
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"a", delay=1)
        await bus.clock.advance(ms=100)
        async with bus.new_producer(transactional_id="_scheduled.eventbus-0") as other:
            await other.init()
            with caplog.at_level(logging.WARNING, "eventbus.scheduling"):
                await bus.clock.advance(seconds=1)
            assert records(bus) == [] and "tried again" in caplog.text
            await bus.clock.advance(seconds=2)
            assert records(bus) == [b"a"]
            with pytest.raises(ProducerFenced):
                async with other.transaction() as tx:
                    await tx.send("t", b"z")


@pytest.mark.system
@pytest.mark.parametrize("held_bytes", [0, 600])
async def test_more_than_is_held_in_memory_is_read_again(
    bus: TestBus, held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "PartitionSchedule", partial(PartitionSchedule, held_bytes=held_bytes))
    for number in range(200):
        await bus.send("t", b"%d" % number, partition=0, delay=(number * 37 % 200) / 10)
    await bus.clock.advance(seconds=20)
    assert [*map(int, records(bus))] == sorted(range(200), key=lambda one: one * 37 % 200)


# taking back ---------------------------------------------------------------------------------------------------------


async def test_what_is_cancelled_never_comes(make_bus: MakeBus) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        one = await bus.send("t", b"x", delay=3600)
        other = await bus.send("t", b"y", delay=3600, schedule_id="mine")
        assert other.id == "mine"
        assert await bus.cancel_scheduled(one) is True
        assert await bus.cancel_scheduled("mine") is True
        assert await bus.cancel_scheduled("mine") is False
        assert await bus.cancel_scheduled("never-heard-of") is False
        await bus.drain()
        assert await stored(bus) == []


async def test_what_was_delivered_cannot_be_cancelled(make_bus: MakeBus) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        one = await bus.send("t", b"x", delay=0)
        await bus.drain()
        assert await bus.cancel_scheduled(one) is False


async def test_an_answer_is_true_however_close_it_is(make_bus: MakeBus) -> None:
    """Cancelled during delivery: after True the record is never seen, after False it always is."""
    clock = FakeClock()
    async with make_bus(clock=clock) as bus:
        await bus.admin.create_topic("t")
        ones = [await bus.send("t", b"%d" % number, delay=number / 1000) for number in range(60)]
        answers: dict[int, bool] = {}

        async def cancel(number: int) -> None:
            answers[number] = await bus.cancel_scheduled(ones[number])

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(cancel, number)
                if number % 3 == 0:
                    await clock.advance(ms=2)
        await clock.advance(ms=100)
        await bus.drain()
        delivered = {int(record.value or b"") for record in await stored(bus)}
        assert delivered == {number for number, was_cancelled in answers.items() if not was_cancelled}
        assert len(await stored(bus)) == len(delivered) and any(answers.values())


async def test_the_same_id_again_takes_the_place_of_the_first(bus: TestBus) -> None:
    await bus.send("t", b"first", delay=5, schedule_id="reminder-1")
    await bus.send("t", b"second", delay=10, schedule_id="reminder-1")
    await bus.clock.advance(seconds=6)
    assert records(bus) == []
    await bus.clock.advance(seconds=6)
    assert records(bus) == [b"second"]
    await bus.send("t", b"third", delay=0, schedule_id="reminder-1")
    await bus.drain()
    assert sorted(records(bus)) == [b"second", b"third"]


async def test_nobody_who_delivers_no_answer() -> None:
    """The other instance owns the partition, and does not come to it: a transaction is open below the request."""
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t")
        one = await bus.send("t", b"x", delay=3600)
        async with bus.transaction("slow") as tx:
            await tx.send("t", b"y", delay=3600)
            errors: list[RequestTimedOut] = []

            async def cancel() -> None:
                try:
                    await bus.cancel_scheduled(one, timeout=5)
                except RequestTimedOut as error:
                    errors.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                await bus.clock.advance(seconds=5)
        assert "no answer within 5 s; it is asked for" in str(errors[0])
        assert await bus.cancel_scheduled(one) is False, "the first request counted"


# transactions --------------------------------------------------------------------------------------------------------


async def test_it_is_scheduled_only_if_the_transaction_commits(make_bus: MakeBus) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with pytest.raises(ZeroDivisionError):
            async with bus.transaction("importer") as tx:
                await tx.send("t", b"never", delay=0)
                raise ZeroDivisionError
        async with bus.transaction("importer") as tx:
            await tx.send("t", b"direct")
            one = await tx.send("t", b"later", delay=0)
            gone = await tx.send("t", b"cancelled", delay=3600)
        await bus.drain()
        assert [record.value for record in await stored(bus)] == [b"direct", b"later"]
        assert not await bus.cancel_scheduled(one) and await bus.cancel_scheduled(gone)


async def test_an_exactly_once_handler_schedules_with_its_offset() -> None:
    bus = TestBus(auto_create_topics=True)
    tries: list[int] = []

    @bus.consumer("in", group="g", exactly_once=True, retry=1)
    async def handle(number: int, tx: Transaction) -> None:
        await tx.send("out", number, delay=1)
        tries.append(number)
        if len(tries) == 1:
            raise ZeroDivisionError

    async with bus:
        await bus.admin.create_topic("out")
        await bus.send("in", 5)
        await bus.drain()
        await bus.clock.advance(seconds=1)
        await bus.drain()
        assert len(tries) == 2 and len(bus.log.records("out")) == 1


# what goes wrong -----------------------------------------------------------------------------------------------------


async def test_what_cannot_be_sent_is_told_at_the_send(make_bus: MakeBus) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        send: Any = bus.send
        with pytest.raises(UnknownTopicOrPartition, match="'tt'"):
            await bus.send("tt", b"x", delay=5)
        with pytest.raises(UnknownTopicOrPartition, match="no partition 7"):
            await bus.send("t", b"x", partition=7, delay=5)
        with pytest.raises(SerializationError):
            await bus.send("t", object(), delay=5)
        with pytest.raises(RecordTooLarge):
            await bus.send("t", b"x" * 2_000_000, delay=5)
        with pytest.raises(ConfigError, match="one of the two"):
            await send("t", b"x", schedule_id="a")
        with pytest.raises(ConfigError, match="one of the two"):
            await send("t", b"x", delay=5, deliver_at=1_700_000_000_000)
        for id in ("", "x" * 201, "a\0b", 5):
            with pytest.raises(ConfigError, match="schedule_id"):
                await send("t", b"x", delay=5, schedule_id=id)
        with pytest.raises(ConfigError, match=r"belong to @bus\.every"):
            await bus.send("t", b"x", delay=5, schedule_id="every:mine")
        with pytest.raises(ConfigError, match="timestamp_ms"):
            await bus.send("t", b"x", delay=5, timestamp_ms=-1)
    with pytest.raises(ConfigError, match="not running"):
        await bus.send("t", b"x", delay=5)
    with pytest.raises(ConfigError, match="not running"):
        await bus.cancel_scheduled("a")


async def test_a_record_whose_topic_is_gone_at_delivery_waits_alone_and_can_be_cancelled(make_bus: MakeBus) -> None:
    clock = FakeClock()
    async with make_bus(clock=clock) as bus:
        await bus.admin.create_topic("t")
        await bus.admin.create_topic("gone")
        await bus.send("gone", b"x", delay=1, schedule_id="lost")
        await bus.send("t", b"y", delay=1)
        await bus.admin.delete_topics("gone")
        await clock.advance(seconds=1)
        await bus.drain()
        assert [record.value for record in await stored(bus)] == [b"y"]
        assert (await bus.health()).parts[0].reason.startswith("records for topic 'gone' wait: ")
        assert await bus.cancel_scheduled("lost") is True


async def test_a_schedule_topic_that_is_created_again_goes_on(make_bus: MakeBus) -> None:
    """The new topic was given up as the old one, after it was taken up: nothing was delivered, with health "ok"."""
    clock = FakeClock()
    bus = make_bus(clock=clock, service="shop")
    times: list[int] = []

    @bus.every(timedelta(seconds=10))
    async def tick(firing: Firing) -> None:
        times.append(firing.scheduled_ms)

    async with bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"lost", delay=30)
        await clock.advance(seconds=10)
        await bus.drain()
        [topic] = await bus.admin.describe_topics(["_scheduled.shop"])
        await bus.admin.delete_topics(topic.name)
        await bus.admin.create_topic(topic.name, 1, configs={"cleanup.policy": "compact"})
        await bus.send("t", b"kept", delay=15)
        await bus.drain()
        before = len(times)
        await clock.advance(seconds=20)
        await bus.drain()
        assert [record.value for record in await stored(bus)] == [b"kept"]
        assert len(times) > before


NOW = Every(0, "t", "look", Timetable(interval_ms=1_000))


@pytest.mark.parametrize(
    "value",
    [
        encode(Entry(0, "t", 99, None, b"no such partition")),
        encode(Entry(0, "t", 0, None, b"x", timestamp_ms=2**63)),
        encode(Entry(2**63, "t", 0, None, b"x")),
        encode(Entry(2**63, "t", 0, None, b"x", delay_ms=5)),
        encode(Entry(9_000, "t", 0, None, b"x", delay_ms=-(2**62))),
        encode(msgspec.structs.replace(NOW, timetable=Timetable("* * * * *", "No/Where"))),
        encode(msgspec.structs.replace(NOW, timetable=Timetable("often"))),
        encode(msgspec.structs.replace(NOW, timetable=Timetable(interval_ms=-1))),
        encode(msgspec.structs.replace(NOW, timetable=Timetable("* * * * *", missed="all"), due_ms=-(2**62))),
        b"\x93\xa6record\x00" + b"\x91" * 5_000,
        b"\x93\xa6record\x00\xa3\xff\xfe\xfd",
    ],
)
async def test_a_record_that_can_never_be_delivered_holds_nobody_up(value: bytes) -> None:
    """Any client with Write on the topic may produce it."""
    clock = FakeClock()
    async with EventBus("memory://", client_id="shop", clock=clock) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"before", delay=1)
        await bus.send("_scheduled.shop", value, key=key_of("odd", "1"), partition=0)
        await bus.send("t", b"after", delay=1)
        await clock.advance(seconds=1)
        await bus.drain()
        assert [record.value for record in await stored(bus)] == [b"before", b"after"]
        assert (await bus.health()).is_healthy


async def test_a_record_that_its_topic_refuses_is_found_among_others(caplog: pytest.LogCaptureFixture) -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 1_000})
        await bus.admin.create_topic("u")
        for number in range(20):
            await bus.send("t" if number % 2 else "u", b"%d" % number, delay=1)
        await bus.send("t", b"x" * 2_000, delay=1, schedule_id="large")
        await bus.clock.advance(seconds=30)
        assert sorted(map(int, (*records(bus), *records(bus, "u")))) == [*range(20)]
        assert "'large' for topic 't' cannot be delivered" in caplog.text
        assert (await bus.health()).parts[0].details["dead"] == 1


@pytest.mark.system
async def test_a_log_that_is_away_for_a_while_loses_nothing() -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"x", delay=1)
        await bus.clock.advance(ms=10)
        with bus.log.faults.outage():
            await bus.clock.advance(seconds=300)
            assert (await bus.health()).parts[0].status == "degraded"
        await bus.clock.advance(seconds=30)
        assert records(bus) == [b"x"] and (await bus.health()).parts[0].status == "ok"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["fetch", "send", "init_transactions", "commit_transaction"])
async def test_a_step_that_fails_or_whose_answer_is_lost_costs_time_alone(step: Step, after: bool) -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t")
        for number in range(20):
            await bus.send("t", b"%d" % number, delay=1 + number % 4)
        await bus.clock.advance(ms=10)
        for _ in range(4):
            bus.log.faults.fail_next(step, after=after)
            await bus.clock.advance(seconds=1)
        await bus.clock.advance(seconds=120)
        assert sorted(map(int, records(bus))) == [*range(20)]


async def test_a_partition_that_is_lost_and_found_delivers_once() -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("t")
        for number in range(30):
            await bus.send("t", b"%d" % number, delay=number / 10)
        for _ in range(3):
            await bus.clock.advance(ms=500)
            await bus.log.faults.lose("_scheduled.eventbus")
            await bus.clock.advance(ms=500)
            await bus.log.faults.rebalance("_scheduled.eventbus")
        await bus.clock.advance(seconds=60)
        assert sorted(map(int, records(bus))) == [*range(30)]


# what is around ------------------------------------------------------------------------------------------------------


async def test_interceptors_see_the_record_when_it_is_sent_and_nothing_of_ours() -> None:
    seen: list[str] = []

    class Marks:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append(record.topic)
            record.headers = (*record.headers, ("trace", b"1"))
            return record

        def on_acknowledgement(self, metadata: Any, error: Any) -> None: ...

        def close(self) -> None: ...

    async with TestBus(auto_create_topics=True, interceptors=[Marks()]) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"x", delay=1)
        await bus.clock.advance(seconds=1)
        assert [record.headers for record in bus.log.records("t")] == [(("trace", b"1"),)]
    assert seen == ["t"]


async def test_numbers_of_what_waits(bus: TestBus) -> None:
    await bus.send("t", b"x", delay=5)
    await bus.send("t", b"y", delay=500)
    await bus.clock.advance(seconds=6)
    samples = {sample.name: sample.value for sample in bus.metrics().parts}
    assert samples["eventbus_scheduled_pending_records"] == 1
    assert samples["eventbus_scheduled_delivered_records_total"] == 1
    assert samples["eventbus_scheduled_late_seconds"] == 0
    assert samples["eventbus_scheduled_next_due_timestamp_seconds"] == pytest.approx(bus.clock() / 1000 + 494)
    [part] = (await bus.health()).parts
    assert (part.status, part.reason) == ("ok", "1 wait, the next one until 2023-11-14T22:21:40+00:00")


def test_from_a_plain_thread(tmp_path: Path) -> None:
    with EventBus(f"file://{tmp_path}/log", service="shop").blocking() as bus:
        bus.admin.create_topic("t")
        one = bus.send("t", b"x", delay=3600)
        assert bus.cancel_scheduled(one) is True
        with bus.transaction("a") as tx:
            tx.send("t", b"y", delay=0)
        bus.drain()
        assert bus.admin.list_offsets({TopicPartition("t", 0): -1})[TopicPartition("t", 0)].offset > 0


async def test_ends_in_the_middle_of_it(make_bus: MakeBus) -> None:
    """A bus closes right after a send: the waiting record is delivered by the next one."""
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        for number in range(50):
            await bus.send("t", b"%d" % number, delay=0)
    if "memory" not in bus.url:
        async with make_bus() as again:
            await again.drain()
            assert sorted(int(one.value or b"") for one in await stored(again)) == [*range(50)]


async def test_waits_for_nobody_who_is_cancelled() -> None:
    bus = TestBus(auto_create_topics=True)
    with anyio.CancelScope() as scope:
        async with bus:
            await bus.admin.create_topic("t")
            await bus.send("t", b"x", delay=5)
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    async with bus:
        await bus.clock.advance(seconds=5)
        await bus.drain()
        await until(lambda: records(bus) == [b"x"])
