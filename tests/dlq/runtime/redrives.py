"""Redriven dead letters reach the group that failed, and no other."""

from __future__ import annotations

from dlq import DeadLetters, Selection
from eventbus import EventBus
from tests.dlq.runtime.ladder import ALONE, letters, policy
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import promise
from tests.dlq.runtime.shapes import FEW, IN_ORDER, SHAPES, Calls, Shape, bad, failing, handle


def dead_letters(log: Log, bus: EventBus) -> DeadLetters:
    """Return the dead letters of this log's topics."""
    return DeadLetters(bus, log.dead_letter_topic, log.name("_state"))


@promise(SHAPES, on_kafka=FEW)
async def a_redriven_letter_reaches_the_group_that_failed_and_no_other(log: Log, shape: Shape) -> None:
    bus, billing, audit = log.bus(), Calls(log, failing(b1=1)), Calls(log)
    handle(bus, log, shape, billing, retry=ALONE)
    handle(bus, log, IN_ORDER, audit, group=log.name("audit"), name="audit")
    async with bus:
        await log.send(bus, "a1 b1 b2")
        await log.until(lambda: len(billing.made) >= 3 and len(audit.done) == 3)
        await log.drain(bus)
        done = await dead_letters(log, bus).redrive(Selection())
        assert (done.topics, done.groups, done.other_groups) == ({log.retry_topic: 1}, {log.group: 1}, {})
        await log.until(lambda: len(billing.done) == 3)
        await log.drain(bus)
        assert sorted(billing.done) == sorted(audit.done) == ["a1", "b1", "b2"]
        assert [call.attempt for call in billing.of("b1")] == [0, 0]
        assert await log.values(bus, log.topic) == [b"a1", b"b1", b"b2"]


@promise(FEW, on_kafka=())
async def a_redriven_record_that_fails_again_has_all_its_tries_and_a_letter_that_names_the_first(
    log: Log, shape: Shape
) -> None:
    bus, calls = log.bus(), Calls(log, bad)
    handle(bus, log, shape, calls, retry=policy(log, 1))
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1") == 3)
        await log.drain(bus)
        assert (await dead_letters(log, bus).redrive(Selection())).redriven == 1
        await log.until(lambda: calls.count("b1") == 6)
        await log.drain(bus)
        first, second = await letters(log, bus)
        assert (second.former_id, second.hops, second.attempts) == (first.id, 1, 3)
        assert (second.source, second.source_offset) == (first.source, first.source_offset)
        assert [call.attempt for call in calls.of("b1")] == [0, 0, 2] * 2
