"""Records that are deleted before a handler reads them: it continues, and health reports their number."""

from __future__ import annotations

from dlq import Retry
from eventbus import EventBus, TopicPartition
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import promise
from tests.dlq.runtime.shapes import Shape


async def _states(log: Log, bus: EventBus, lost: str) -> None:
    while lost not in (await bus.health()).reason:
        await log.passes(1)
    assert (await bus.health()).status == "degraded"


@promise()
async def a_position_below_the_log_start_is_reported(log: Log, _: Shape) -> None:
    seen: list[bytes] = []
    source = TopicPartition(log.topic, 0)
    async with log.bus() as bus:
        await log.send(bus, "a1 a2 a3 a4 a5")
        await bus.admin.alter_group_offsets(log.group, {source: 1})
        await bus.admin.delete_records({source: 4})
    bus = log.bus()

    @bus.consumer(log.topic, group=log.group)
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with bus:
        await log.until(lambda: seen)
        await _states(log, bus, f"{source}: 3 record(s) are lost to the handler. They were deleted before it read them")
        assert seen == [b"a5"]
        assert bus.metrics().handlers[0].deleted_unread_by_partition == {str(source): 3}
        if log.stands_still and not log.has_threads:  # with threads, ten minutes of a fake clock take ten seconds
            await log.passes(600)
            assert (await bus.health()).status == "ok"


@promise()
async def entries_that_are_left_in_a_shortened_retry_topic_are_tried(log: Log, _: Shape) -> None:
    """``start="latest"`` applies only to the handler's own topics."""
    seen: list[bytes] = []
    is_broken = True

    def service() -> EventBus:
        bus = log.bus()

        @bus.consumer(log.topic, group=log.group, start="latest", retry=Retry(immediate=0, delays=[log.delay(30)]))
        async def handle(value: bytes) -> None:
            if is_broken:
                raise ValueError(value)
            seen.append(value)

        return bus

    async with service() as bus:
        while (
            not (await bus.health()).handlers[0].counts.retried
        ):  # where a Kafka's latest is settles some time after the start
            await log.send(bus, "a")
            await log.passes(log.delay(1))
        await log.send(bus, "b c")
        await log.drain(bus)
        entries = await log.read(bus, log.retry_topic)
        await bus.admin.delete_records({TopicPartition(log.retry_topic, 0): entries[-1].offset})
    is_broken = False
    async with service() as bus:
        await log.until(lambda: seen)
        await _states(log, bus, f"{log.retry_topic}-0: {entries[-1].offset} record(s) are lost to the handler")
        assert seen == [b"c"]
