"""Groups that move: a translated offset skips nothing, reads nothing again, and takes nothing from who is there."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend
from eventbus.mirror import Mirror
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.logs import Undone, create, opened, until, visible, write

ORDERS = TopicPartition("orders", 0)


async def prepared(bus: EventBus, source: Backend) -> None:
    """Offsets 0 to 2, aborted ones and their marker at 3 to 5, then 6 and 7, and a marker at 8."""
    await create(source, "orders")
    await write(source, ORDERS, b"0", b"1", b"2")
    with pytest.raises(Undone):
        async with bus.transaction("filler") as transaction:
            await transaction.send("orders", b"undone", partition=0)
            await transaction.send("orders", b"undone", partition=0)
            raise Undone
    async with bus.transaction("filler") as transaction:
        await transaction.send("orders", b"6", partition=0)
        await transaction.send("orders", b"7", partition=0)


async def copied(here: str, there: str, **options: object) -> Mirror:
    async with Mirror(here, there, name="m", **options) as mirror:  # pyright: ignore[reportArgumentType]
        await mirror.copy()
    return mirror


@pytest.mark.parametrize(
    ("committed", "next_value"),
    [(0, b"0"), (2, b"2"), (3, b"6"), (4, b"6"), (5, b"6"), (6, b"6"), (7, b"7"), (8, None), (9, None), (99, None)],
)
async def test_the_next_record_is_the_same_one(new_log: NewLog, committed: int, next_value: bytes | None) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await prepared(bus, source)
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(committed, "a note")})
        mirror = await copied(here, there)
        found = (await destination.group_offsets("billing"))[ORDERS]
        unread = [record.value for record in await visible(destination, ORDERS) if record.offset >= found.offset]
        assert unread[:1] == ([next_value] if next_value is not None else [])
        assert found.metadata == "a note"
        state = "ahead of the copy" if committed == 99 else "translated"
        assert mirror.progress.groups["billing"].state == state


async def test_an_offset_before_the_sources_first_record_becomes_the_first_copied(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await prepared(bus, source)
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(1)})
        await source.delete_records({ORDERS: 2})
        await copied(here, there)
        first, *_ = await visible(destination, ORDERS)
        assert first.value == b"2"
        assert (await destination.group_offsets("billing"))[ORDERS].offset == first.offset


async def test_an_offset_is_never_before_the_destinations_first_record(new_log: NewLog) -> None:
    """A consumer there would be reset, perhaps to the end."""
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await prepared(bus, source)
        await copied(here, there)
        await destination.delete_records({ORDERS: 2})
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(0)})
        await copied(here, there)
        assert (await destination.group_offsets("billing"))[ORDERS].offset == 2


async def test_a_group_that_moves_at_the_source_is_followed_both_ways(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await prepared(bus, source)
        for offset in (2, 7, 0):
            await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(offset)})
            await copied(here, there)
            expected = {0: 0, 2: 2, 7: 4}[offset]
            assert (await destination.group_offsets("billing"))[ORDERS].offset == expected


async def test_a_group_that_has_moved_at_the_destination_is_left_alone(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await prepared(bus, source)
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(2)})
        await copied(here, there)
        await destination.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(4)})
        mirror = await copied(here, there)
        assert (await destination.group_offsets("billing"))[ORDERS].offset == 4
        assert mirror.progress.groups["billing"].state == "moved at the destination"
        await copied(here, there, overwrite_groups=True)
        assert (await destination.group_offsets("billing"))[ORDERS].offset == 2


async def test_a_group_with_members_at_the_destination_is_left_alone(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus, EventBus(there) as moved:
        await prepared(bus, source)
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(2)})
        await create(destination, "orders")
        async with moved.new_consumer(group="billing", topics=["orders"]) as consumer:
            await consumer.poll(timeout_ms=0)
            for overwrite in (False, True):
                mirror = await copied(here, there, overwrite_groups=overwrite)
                assert await destination.group_offsets("billing") == {}
                assert mirror.progress.groups["billing"].state == "live at the destination"


async def test_groups_are_chosen_by_pattern_or_not_at_all(new_log: NewLog) -> None:
    here = new_log("memory")
    async with opened(here) as source, EventBus(here) as bus:
        await prepared(bus, source)
        for group in ("billing", "audit"):
            await source.alter_group_offsets(group, {ORDERS: OffsetAndMetadata(2)})
        for pattern, expected in ((".*", {"audit", "billing"}), ("b.*", {"billing"}), (None, set[str]())):
            there = new_log("memory")
            async with opened(there) as destination:
                await copied(here, there, groups=pattern)
                assert {listing.group for listing in await destination.list_groups()} == expected


async def test_a_service_that_moves_handles_every_record_once(new_log: NewLog) -> None:
    """Stopped there, started here, at a translated offset; records go on coming all the while."""
    here, there = new_log("memory"), new_log("memory")
    handled: list[int] = []

    def service(url: str) -> EventBus:
        bus = EventBus(url)

        @bus.consumer("orders", group="billing")
        async def handle(value: bytes) -> None:
            handled.append(int(value))

        return bus

    async with opened(here) as source, opened(there):
        await create(source, "orders", 3)
        stopped = anyio.Event()
        async with EventBus(here) as producing, Mirror(here, there, refresh_seconds=0.02) as mirror:

            async def produce() -> None:
                for number in range(600):
                    await producing.send("orders", b"%d" % number, partition=number % 3)
                    if number == 300:
                        await stopped.wait()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mirror.follow)
                tasks.start_soon(produce)
                async with service(here):
                    await until(lambda: len(handled) > 200)
                stopped.set()  # drained and committed: nothing is handled here any more
                await until(lambda: mirror.progress.copied >= 600)
                # The offsets that the last commit left behind are translated at the next look.
                looks = mirror.progress.looks
                await until(lambda: mirror.progress.looks >= looks + 2)
                async with service(there):
                    await until(lambda: len(handled) >= 600)
                tasks.cancel_scope.cancel()
    assert sorted(handled) == list(range(600))
