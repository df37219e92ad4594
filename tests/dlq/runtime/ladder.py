"""The retries of a failing record: at once, then delayed, then a dead letter."""

from __future__ import annotations

from typing import Any

from dlq import Park, Reject, Retry, RetryLater, Skip
from dlq.letters import DeadLetter, dead_letter
from eventbus import EventBus, TopicPartition
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import promise
from tests.dlq.runtime.shapes import (
    FEW,
    IN_ORDER,
    ONCE,
    SHAPES,
    Calls,
    Shape,
    bad,
    failing,
    handle,
)

ALONE = Retry(immediate=0, delays=None)


def policy(log: Log, *delays: int, **options: Any) -> Retry:
    options = {"immediate": 1, "jitter": False, **options}
    return Retry(delays=[log.delay(number) for number in delays] or None, **options)


async def letters(log: Log, bus: EventBus, topic: str = "") -> list[DeadLetter]:
    return [dead_letter(record) for record in await log.read(bus, topic or log.dead_letter_topic)]


@promise(SHAPES)
async def tries_at_once_then_later_then_a_dead_letter(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, bad)
    handle(bus, log, shape, calls, retry=policy(log, 1, 2))
    async with bus:
        await bus.send(log.topic, b"b1", key=b"b", headers={"trace": b"t-1"}, timestamp_ms=1_600_000_000_000)
        await log.until(lambda: calls.count("b1") == 4)
        await log.drain(bus)
        await log.send(bus, "a1")
        await log.drain(bus)
        first, second, third, fourth = calls.of("b1")
        assert [first.attempt, second.attempt, third.attempt, fourth.attempt] == [0, 0, 2, 3]
        assert third.at_ms - second.at_ms >= log.delay_ms(1) and fourth.at_ms - third.at_ms >= log.delay_ms(2)
        assert calls.values == ["b1"] * 4 + ["a1"]
        (letter,) = await letters(log, bus)
        assert (letter.key, letter.value, letter.headers) == (b"b", b"b1", (("trace", b"t-1"),))
        assert (letter.source, letter.source_offset) == (TopicPartition(log.topic, 0), 0)
        assert (letter.reason, letter.attempts, letter.group) == ("exhausted", 4, log.group)
        assert (letter.error_class, letter.message, letter.original_timestamp_ms) == (
            "ValueError", "b1 is bad", 1_600_000_000_000,
        )  # fmt: skip
        assert letter.first_failed_ms is not None and letter.last_failed_ms is not None
        assert letter.last_failed_ms - letter.first_failed_ms >= log.delay_ms(3)
        assert "shapes.py:__call__" in letter.top_frame
    await _nothing_is_left(log, shape, {"b1": 4, "a1": 1})


async def _nothing_is_left(log: Log, shape: Shape, counts: dict[str, int]) -> None:
    """Check that a restarted handler has nothing to do."""
    bus, calls = log.bus(), Calls(log)
    handle(bus, log, shape, calls, retry=policy(log, 1, 2))
    async with bus:
        await log.drain(bus)
        await log.passes(log.delay(3))
        assert calls.values == []


@promise(SHAPES, on_kafka=FEW)
async def a_record_that_is_better_the_next_time_is_handled(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, failing(b1=1, c1=2, d1=3))
    handle(bus, log, shape, calls, retry=policy(log, 1, 2))
    async with bus:
        for value in ("b1", "c1", "d1", "e1"):
            await log.send(bus, value)
            await log.drain(bus)
        await log.until(lambda: len(calls.done) == 4)
        await log.drain(bus)
        assert await letters(log, bus) == []
        assert {value: calls.count(value) for value in calls.done} == {"b1": 2, "c1": 3, "d1": 4, "e1": 1}


@promise(SHAPES, on_kafka=FEW)
async def many_at_once_go_each_its_way(log: Log, shape: Shape) -> None:
    """All are in one fetch: none is lost or handled twice, whatever happens to others."""
    bus, calls = log.bus(partitions=2), Calls(log, _mixed)
    handle(bus, log, shape, calls, retry=policy(log, 1))
    names = [f"{letter}{number}" for number in range(5) for letter in "abcdefghij"]
    async with bus:
        for name in names:
            bus.send_nowait(log.topic, name.encode(), key=name.encode())
        await bus.flush()
        await log.until(lambda: len(calls.done) >= 35 and sum(calls.count(name) >= 3 for name in names) >= 15)
        await log.drain(bus)
        await log.passes(log.delay(2))
        dead = sorted(letter.value.decode() for letter in await letters(log, bus) if letter.value is not None)
    assert dead == sorted(name for name in names if name[0] in "bcd")
    assert sorted(set(calls.done)) == sorted(name for name in names if name[0] not in "bcd")
    assert len(calls.done) == 35


def _mixed(value: str, call: int) -> BaseException | None:
    return ValueError(value) if value[0] in "bcd" or (value[0] == "e" and call == 1) else None


# what the handler, the error and the policy say -----------------------------------------------------------------------


def _says(value: str, call: int) -> BaseException | None:
    """Fail by the first letter of the value."""
    match value[0]:
        case "r":
            return Reject("no such customer")
        case "p":
            return Park("somebody has to look")
        case "s":
            return Skip("seen before")
        case "t":
            return TypeError("a mistake in the handler")
        case _:
            return None


@promise(SHAPES, on_kafka=FEW)
async def a_handler_says_itself_what_becomes_of_a_record(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, _says)
    handle(bus, log, shape, calls, retry=policy(log, 1))
    async with bus:
        await log.send(bus, "r1 p1 s1 t1 a1")
        await log.until(lambda: calls.done)
        await log.drain(bus)
        found = {letter.value: (letter.reason, letter.attempts, letter.message) for letter in await letters(log, bus)}
        assert found == {
            b"r1": ("rejected", 1, "no such customer"),
            b"p1": ("parked", 1, "somebody has to look"),
            b"t1": ("never", 1, "a mistake in the handler"),
        }
        assert {value: calls.count(value) for value in calls.values} == dict.fromkeys(["r1", "p1", "s1", "t1", "a1"], 1)
        counts = bus.metrics().handlers[0].counts
        assert (counts.dead_lettered, counts.retried, counts.skipped, counts.handled) == (3, 0, 1, 1)


@promise(SHAPES, on_kafka=(IN_ORDER, ONCE))
async def a_handler_says_when_to_try_again(log: Log, shape: Shape) -> None:
    bus = log.bus()
    calls = Calls(log, lambda value, call: RetryLater(after=log.delay(3)) if call == 1 else None)
    handle(bus, log, shape, calls, retry=policy(log, 1, jitter=True))
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.done)
        first, second = calls.made
        assert log.delay_ms(3) <= second.at_ms - first.at_ms
        await log.drain(bus)
        counts = bus.metrics().handlers[0].counts
        assert (counts.dead_lettered, counts.retried, counts.handled) == (0, 1, 1)


@promise(SHAPES, on_kafka=FEW)
async def a_function_says_when(log: Log, shape: Shape) -> None:
    asked: list[tuple[int, str]] = []

    def when(attempt: int, error: Exception) -> float | type[Park] | None:
        asked.append((attempt, str(error)))
        return Park if str(error).startswith("c1") else log.delay(1) if attempt < 3 else None

    bus, calls = log.bus(), Calls(log, failing(b1=9, c1=9))
    handle(bus, log, shape, calls, retry=when)
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1") == 3)
        await log.send(bus, "c1")
        await log.drain(bus)
        found = {letter.value: (letter.reason, letter.attempts) for letter in await letters(log, bus)}
        assert found == {b"b1": ("exhausted", 3), b"c1": ("parked", 1)}
    assert asked == [(1, "b1, call 1"), (2, "b1, call 2"), (3, "b1, call 3"), (1, "c1, call 1")]


@promise(SHAPES, on_kafka=FEW)
async def dead_letters_alone(log: Log, shape: Shape) -> None:
    """The retry topic stays empty. It exists for letters that are redriven."""
    bus, calls = log.bus(), Calls(log, bad)
    handle(bus, log, shape, calls, dead_letter=True)
    async with bus:
        await log.send(bus, "a1 b1 b2 a2")
        await log.until(lambda: len(calls.done) == 2)
        await log.drain(bus)
        assert [(letter.value, letter.attempts) for letter in await letters(log, bus)] == [(b"b1", 1), (b"b2", 1)]
        topics = {topic.name for topic in await bus.admin.describe_topics()}
        assert {log.dead_letter_topic, log.retry_topic} <= topics
        assert await log.values(bus, log.retry_topic) == []


@promise(FEW)
async def several_tries_and_no_dead_letter_topic(log: Log, shape: Shape) -> None:
    """After the last try ``on_error`` decides."""
    bus, calls = log.bus(), Calls(log, failing(b1=9))
    handle(bus, log, shape, calls, retry=policy(log, 1), dead_letter=False, on_error="skip")
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1") == 3)
        await log.send(bus, "b2")
        await log.until(lambda: calls.done == ["b2"])
        await log.drain(bus)
        assert log.dead_letter_topic not in {topic.name for topic in await bus.admin.describe_topics()}
        assert calls.count("b1") == 3


@promise(FEW)
async def groups_share_a_dead_letter_topic(log: Log, shape: Shape) -> None:
    bus, billing, audit = log.bus(), Calls(log, bad), Calls(log, bad)
    dead = log.name("dead")
    handle(bus, log, shape, billing, retry=0, dead_letter=dead)
    handle(bus, log, shape, audit, retry=1, dead_letter=dead, group=log.name("audit"), name="audit")
    async with bus:
        await log.send(bus, "b1 a1")
        await log.until(lambda: billing.done and audit.done)
        await log.drain(bus)
        found = sorted((letter.group, letter.value, letter.attempts) for letter in await letters(log, bus, dead))
        assert found == [(log.name("audit"), b"b1", 2), (log.group, b"b1", 1)]


@promise(FEW)
async def what_cannot_be_read_is_a_dead_letter_at_once(log: Log, shape: Shape) -> None:
    bus, seen = log.bus(), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=policy(log, 1), **shape.options)
    async def bill(number: int) -> None:
        seen.append(number)

    async with bus:
        for value in (1, b"no number", 2):
            await bus.send(log.topic, value, key=b"a")
        await log.until(lambda: seen == [1, 2])
        await log.drain(bus)
        (letter,) = await letters(log, bus)
        assert (letter.value, letter.reason, letter.attempts) == (b"no number", "unreadable", 1)


@promise(FEW, on_kafka=(IN_ORDER,))
async def a_call_that_takes_too_long_counts_as_a_try(log: Log, shape: Shape) -> None:
    bus, begun, cut = log.bus(), list[bytes](), list[bytes]()

    @bus.consumer(log.topic, group=log.group, timeout=log.delay(1), retry=policy(log, 1, immediate=0), **shape.options)
    async def bill(value: bytes) -> None:
        begun.append(value)
        if value == b"b1":
            try:
                await log.sleep_ms(log.delay_ms(50))
            finally:
                cut.append(value)

    async with bus:
        await log.send(bus, "b1 a1")
        await log.until(lambda: len(cut) == 2)
        await log.drain(bus)
        (letter,) = await letters(log, bus)
        assert (letter.value, letter.attempts, letter.error_class.rpartition(".")[2]) == (b"b1", 2, "CallTimedOut")
        assert bus.metrics().handlers[0].counts.timed_out == 2
        assert begun.count(b"b1") == 2 and begun.count(b"a1") == 1


@promise(FEW)
async def outages_never_make_dead_letters(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, lambda value, call: ConnectionError("away") if call <= 6 else None)
    handle(bus, log, shape, calls, retry=policy(log, 1))
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.done)
        await log.drain(bus)
        assert await letters(log, bus) == [] and calls.count("b1") == 7
