"""Retry topics and dead-letter topics that are missing, closed, too small, too narrow, or used by others."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import EventBus, TopicPartition
from eventbus.errors import EventBusError, KafkaError
from eventbus.server.admin import error_of
from tests.dlq.faults.failing import Breaking, entries, letters, retry, settle

pytestmark = pytest.mark.system

AWAY = error_of(19, "two replicas are away")
READ_ONLY = error_of(29, "not authorized to write")


def service(log: Breaking, seen: list[bytes], *, partitions: int = 1, **options: Any) -> EventBus:
    """Its handler fails with records that begin with "bad"."""
    bus = log.bus(partitions=partitions)

    @bus.consumer(log.topic, **{"group": log.group, "retry": retry(), **options})
    async def bill(order: bytes) -> None:
        seen.append(order)
        if order.startswith(b"bad"):
            raise LookupError(order)

    return bus


@pytest.mark.parametrize("where", ["retry", "dlq"])
@pytest.mark.parametrize(
    "error",
    [AWAY, READ_ONLY],
    ids=["brokers away", "read-only"],
)
async def test_what_cannot_be_written_down_is_not_passed_over(log: Breaking, where: str, error: KafkaError) -> None:
    """Its record is not committed as finished; it is there when the topic takes records again."""
    seen: list[bytes] = []
    log.refuse(f"{where}.{log.group}", error)
    async with log.opened():
        bus = service(log, seen)
        try:
            async with bus:
                for order in (b"bad", b"good"):
                    await bus.send(log.topic, order, key=order)
                await log.passes(200)
                assert await letters(log, bus) == []
        except EventBusError:
            assert not error.retriable, "what may pass is waited for"
        log.hooks.clear()
        async with service(log, seen) as bus:
            await settle(log, bus)
            assert [letter.value for letter in await letters(log, bus)] == [b"bad"]
            assert b"good" in seen


async def test_an_outage_of_the_dead_letters_is_waited_for_and_order_stays(log: Breaking) -> None:
    seen: list[bytes] = []
    async with service(log, seen, retry=retry(delays=None)) as bus:
        log.refuse(log.dead_letter_topic, AWAY)
        for order in (b"bad 1", b"good 1", b"bad 2"):
            await bus.send(log.topic, order, key=b"k")
        await log.passes(300)
        committed = await bus.admin.group_offsets(log.group)
        assert committed.get(TopicPartition(log.topic, 0)) is None
        log.hooks.clear()
        await log.passes(60)
        await log.drain(bus)
        assert [letter.value for letter in await letters(log, bus)] == [b"bad 1", b"bad 2"]
        assert bus.failure is None


async def test_a_dead_letter_topic_that_was_deleted_is_made_again(log: Breaking) -> None:
    """It is created at the next start. Until then no record is skipped."""
    seen: list[bytes] = []
    async with log.opened():
        bus = service(log, seen)
        try:
            async with bus:
                await bus.admin.delete_topics(log.dead_letter_topic)
                await bus.send(log.topic, b"bad", key=b"k")
                await log.passes(200)
        except EventBusError as error:
            assert log.dead_letter_topic in str(error), "it says which topic is missing"
        async with service(log, seen) as bus:
            await settle(log, bus)
            assert [letter.value for letter in await letters(log, bus)] == [b"bad"]


async def test_what_does_not_fit_the_dead_letter_topic_stays_in_its_source(log: Breaking) -> None:
    seen: list[bytes] = []
    async with log.opened(), log.bus() as other:
        await other.admin.create_topic(log.dead_letter_topic, configs={"max.message.bytes": 10_000})
        async with service(log, seen) as bus:
            await bus.send(log.topic, b"bad" + b"x" * 20_000, key=b"k", headers={"h": b"kept"})
            await settle(log, bus)
            (letter,) = await letters(log, bus)
            assert (letter.key, letter.value, letter.has_payload) == (b"k", None, False)
            assert (letter.source, letter.source_offset) == (TopicPartition(log.topic, 0), 0)
            assert letter.headers == (("h", b"kept"),)
            assert len(seen) == 3


async def test_a_retry_topic_that_is_too_narrow_is_widened(log: Breaking) -> None:
    seen: list[bytes] = []
    async with log.opened(), log.bus(partitions=3) as other:
        await other.admin.create_topic(log.retry_topic, partitions=1)
        async with service(log, seen, partitions=3) as bus:
            for partition in range(3):
                await bus.send(log.topic, b"bad %d" % partition, key=b"k", partition=partition)
            await settle(log, bus)
            assert {entry.partition for entry in await entries(log, bus)} == {0, 1, 2}
            assert sorted(letter.value for letter in await letters(log, bus)) == [b"bad 0", b"bad 1", b"bad 2"]


async def test_two_services_may_share_their_dead_letters(log: Breaking) -> None:
    shared = log.name("dlq.shared")
    seen: list[bytes] = []
    async with (
        service(log, seen, dead_letter=shared) as one,
        service(log, seen, dead_letter=shared, group=log.name("mailing")),
    ):
        await one.send(log.topic, b"bad", key=b"k")
        await log.until(lambda: len(seen) == 6 or one.failure)
        await log.passes(1)
        found = await letters(log, one, shared)
        assert sorted(letter.group for letter in found) == sorted([log.group, log.name("mailing")])
        assert {(letter.value, letter.source_offset, letter.attempts) for letter in found} == {(b"bad", 0, 3)}


async def test_a_renamed_group_begins_anew_and_the_old_one_keeps_what_waits(log: Breaking) -> None:
    seen: list[bytes] = []
    new = log.name("invoicing")
    async with log.opened():
        async with service(log, seen) as bus:
            await bus.send(log.topic, b"bad", key=b"k")
            await log.drain(bus)
        async with service(log, seen, group=new, start="earliest") as bus:
            await settle(log, bus)
            assert [letter.group for letter in await letters(log, bus, f"dlq.{new}")] == [new]
            assert await letters(log, bus) == []
        async with service(log, seen) as bus:
            await settle(log, bus)
            assert [letter.attempts for letter in await letters(log, bus)] == [3]


async def test_a_dead_letter_that_fails_is_a_dead_letter_of_whoever_read_it(log: Breaking) -> None:
    """And says how often it has been one."""
    seen: list[bytes] = []
    sorting = log.name("sorting")
    async with service(log, seen, retry=retry(delays=None)) as bus:
        await bus.send(log.topic, b"bad", key=b"k", headers={"h": b"1"})
        await log.drain(bus)
        sorter = log.bus()

        @sorter.consumer(log.dead_letter_topic, group=sorting, retry=retry(), start="earliest")
        async def sort(order: bytes) -> None:
            raise LookupError("nor can I")

        async with sorter:
            await settle(log, sorter)
            (first,), (second,) = await letters(log, bus), await letters(log, bus, f"dlq.{sorting}")
        assert (first.hops, second.hops) == (0, 1)
        assert (second.value, second.headers, second.source) == (
            b"bad",
            (("h", b"1"),),
            TopicPartition(log.dead_letter_topic, 0),
        )
