"""Tests that need access to internals, refused arguments, or a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import eventbus.testing.memory
from dlq import Circuit, Retry
from eventbus import ConsumerRecord, TopicPartition
from eventbus.delays.retry_records import attempts_of
from eventbus.errors import ConfigError
from eventbus.testing import TestBus


def never_mind(seconds: float, times: int = 1) -> Retry:
    return Retry(immediate=0, delays=[seconds] * times, jitter=False)


async def test_minutes_take_no_time_and_nothing_comes_early() -> None:
    bus, at = TestBus(auto_create_topics=True), list[int]()

    @bus.consumer("orders", group="billing", retry=Retry(immediate=1, delays=["1m", "10m"], jitter=False))
    async def bill(value: bytes) -> None:
        at.append(bus.clock())
        raise ValueError

    async with bus:
        start = bus.clock()
        await bus.send("orders", b"1")
        await bus.log.drain()
        assert at == [start, start]
        await bus.clock.advance(ms=59_999)
        assert len(at) == 2
        await bus.clock.advance(ms=1)
        await bus.log.drain()
        assert at[2:] == [start + 60_000]
        await bus.clock.advance(seconds=600)
        await bus.log.drain()
        assert at[3:] == [start + 660_000]
        assert len(bus.log.records("dlq.billing")) == 1


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_a_record_that_had_published_waits_for_its_next_try_after_those_before_it(order: Any) -> None:
    """Its transaction is aborted, with the records before it: these are handled again, and do not wait for it."""
    bus, calls, failed = TestBus(auto_create_topics=True), "", False

    @bus.consumer(
        "orders", group="billing", exactly_once=True, retry=Retry(immediate=0, delays=["1m"], jitter=False, order=order)
    )
    @bus.producer("bills")
    async def bill(value: bytes) -> AsyncIterator[bytes]:
        nonlocal calls, failed
        calls += value.decode()
        yield value
        if value == b"1" and not failed:
            failed = True
            raise ValueError

    async with bus:
        for number in b"0123":
            await bus.send("orders", bytes((number,)))
        await bus.clock.advance(seconds=1)
        assert calls == ("010" if order == "partition" else "01023")
        await bus.clock.advance(seconds=60)
        await bus.log.drain()
        bills = b"".join(record.value or b"" for record in bus.log.records("bills"))
        assert bills == (b"0123" if order == "partition" else b"0231")


async def test_draining_does_not_wait_for_what_is_due_later() -> None:
    bus, calls = TestBus(auto_create_topics=True), list[bytes]()

    @bus.consumer("orders", group="billing", retry=never_mind(60))
    async def bill(value: bytes) -> None:
        calls.append(value)
        if len(calls) == 1:
            raise ValueError

    async with bus:
        await bus.send("orders", b"1")
        await bus.log.drain()
        assert calls == [b"1"] and all([await runner.is_idle() for runner in bus.context.runners])
    async with bus:  # what waits is there when it starts, and the clock need not move to find it
        await bus.send("orders", b"2")
        await bus.log.drain()
        assert calls == [b"1", b"2"]
        await bus.clock.advance(seconds=60)
        await bus.log.drain()
        assert calls == [b"1", b"2", b"1"]
        counts = bus.metrics().handlers[0].counts
        assert (counts.handled, counts.retried, counts.dead_lettered, counts.failed) == (2, 0, 0, 0)


async def test_who_waits_is_healthy() -> None:
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=never_mind(3600))
    async def bill(value: bytes) -> None:
        raise ValueError

    async with bus:
        await bus.send("orders", b"1")
        for _ in range(30):
            await bus.clock.advance(seconds=5)
        health = await bus.health()
        assert health.is_healthy, health


@pytest.fixture
def closing_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closing test bus gives threads a second of real time to return; these tests have none."""
    monkeypatch.setattr(eventbus.testing.memory, "_LEAVE_SECONDS", 0.001)


@pytest.mark.usefixtures("closing_takes_no_time")
@pytest.mark.parametrize("circuit", [False, True])
async def test_stopping_does_not_wait_for_a_next_try(circuit: bool) -> None:
    bus, calls = TestBus(auto_create_topics=True), list[bytes]()
    retry = Retry(immediate=0, delays=[60], circuit=Circuit(failures=1.0, of=2, open=600) if circuit else None)

    @bus.consumer("orders", group="billing", retry=retry)
    async def bill(value: bytes) -> None:
        calls.append(value)
        raise ValueError

    async with bus:
        for value in (b"1", b"2", b"3"):
            await bus.send("orders", value, key=value)
        await bus.clock.advance(seconds=1)
        before = bus.clock()
    assert bus.clock() - before < 1_000
    assert len(calls) == (2 if circuit else 3)


@pytest.mark.system
async def test_an_open_circuit_fills_no_dead_letters() -> None:
    bus, calls, works = TestBus(auto_create_topics=True), list[int](), False
    circuit = Circuit(failures=0.5, of=4, open=30)

    @bus.consumer("orders", group="billing", retry=Retry(immediate=0, delays=[1], circuit=circuit))
    async def bill(value: bytes) -> None:
        calls.append(bus.clock())
        if not works:
            raise ValueError

    async with bus:
        for number in range(40):
            await bus.send("orders", b"%d" % number, key=b"%d" % number)
        await bus.clock.advance(seconds=300)
        assert len(calls) < 30, "four, and then one whenever it half opens, and those that come back"
        assert bus.log.records("dlq.billing") == []
        works = True
        await bus.clock.advance(seconds=120)
        await bus.log.drain()
        assert bus.log.records("dlq.billing") == []
        assert bus.metrics().handlers[0].counts.handled == 40


@pytest.mark.usefixtures("closing_takes_no_time")
@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_cancelled_call_is_no_try(exactly_once: bool) -> None:
    bus = TestBus(auto_create_topics=True, drain_timeout_ms=100)
    attempts, hangs = list[int](), True

    @bus.consumer("orders", group="billing", retry=never_mind(10, 2), exactly_once=exactly_once)
    async def bill(record: ConsumerRecord) -> None:
        attempts.append(attempts_of(record).attempt)
        if len(attempts) == 1:
            raise ValueError
        if hangs:
            await bus.clock.sleep(1_000_000)

    async with bus:
        await bus.send("orders", b"1")
        await bus.clock.advance(seconds=11)
        assert attempts == [0, 1]
    for _ in range(2):
        async with bus:
            await bus.clock.advance(seconds=1)
    hangs = False
    async with bus:
        await bus.clock.advance(seconds=1)
        await bus.log.drain()
        assert bus.metrics().handlers[0].counts.handled == 1
    assert attempts == [0, 1, 1, 1, 1]
    assert bus.log.records("dlq.billing") == []


class Fatal(BaseException):
    """A BaseException that is not an Exception."""


async def test_what_is_no_exception_ends_the_bus_and_moves_nothing() -> None:
    bus, calls = TestBus(auto_create_topics=True), list[bytes]()

    @bus.consumer("orders", group="billing", retry=never_mind(10))
    async def bill(value: bytes) -> None:
        calls.append(value)
        if len(calls) == 1:
            raise Fatal

    with pytest.raises((Fatal, BaseExceptionGroup)):
        async with bus:
            await bus.send("orders", b"1")
            await bus.clock.advance(seconds=30)
    async with bus:
        await bus.log.drain()
    assert calls == [b"1", b"1"]
    assert bus.log.records("dlq.billing") == bus.log.records("retry.billing") == []


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_what_a_failed_try_published(exactly_once: bool) -> None:
    """Exactly once: nothing. At least once: what was sent is sent."""
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=Retry(immediate=1, delays=[5]), exactly_once=exactly_once)
    @bus.producer("bills")
    async def bill(record: ConsumerRecord) -> AsyncIterator[str]:
        value = (record.value or b"").decode()
        yield f"{value} begun"
        if value[0] == "b":
            raise ValueError
        yield f"{value} done"

    async with bus:
        for value in ("a1", "b1", "a2"):
            await bus.send("orders", value.encode(), key=value[:1].encode())
        for _ in range(10):
            await bus.clock.advance(seconds=1)
        await bus.log.drain()
        begun = [value for value in bus.log.values("bills", str) if value == "b1 begun"]
        assert len(begun) == (0 if exactly_once else 3)
        others = [value for value in bus.log.values("bills", str) if value != "b1 begun"]
        assert others == ["a1 begun", "a1 done", "a2 begun", "a2 done"]
        (letter,) = bus.log.records("dlq.billing")
        assert letter.value == b"b1" and dict(letter.headers)["__dlq.errors.delivery.count"] == b"3"


async def test_patterns_and_retries() -> None:
    bus, seen = TestBus(auto_create_topics=True), list[tuple[str, int]]()
    bus.topic("orders.eu")
    bus.topic("orders.us", partitions=3)

    @bus.consumer(pattern=r"orders\..*", group="billing", retry=never_mind(5))
    async def bill(record: ConsumerRecord) -> None:
        seen.append((record.topic, attempts_of(record).attempt))
        if len(seen) <= 2:
            raise ValueError

    async with bus:
        await bus.send("orders.eu", b"1")
        await bus.send("orders.us", b"2", partition=2)
        await bus.clock.advance(seconds=6)
        await bus.log.drain()
        assert sorted(seen) == [("orders.eu", 0), ("orders.eu", 1), ("orders.us", 0), ("orders.us", 1)]
        assert len(bus.log.records("retry.billing", partition=2)) >= 1


@pytest.mark.parametrize("names", ["dlq.billing", "retry.billing"])
@pytest.mark.parametrize("is_pattern", [False, True])
async def test_a_handler_that_reads_its_own_failures_is_refused(names: str, is_pattern: bool) -> None:
    bus = TestBus(auto_create_topics=True)
    bus.topic("dlq.billing")
    retry = Retry(delays=[5], order="none")

    async def bill(value: bytes) -> None: ...

    listen = bus.consumer(pattern=names, group="billing", retry=retry) if is_pattern else None
    (listen or bus.consumer(names, group="billing", retry=retry))(bill)
    with pytest.raises(ConfigError, match=r"reads '.*', where its own failed records go"):
        async with bus:
            pass


async def test_a_narrow_retry_topic_is_widened() -> None:
    bus, calls = TestBus(auto_create_topics=True), list[bytes]()
    bus.topic("orders", partitions=4)
    bus.topic("retry.billing", partitions=1)

    @bus.consumer("orders", group="billing", retry=never_mind(5))
    async def bill(value: bytes) -> None:
        calls.append(value)
        if len(calls) == 1:
            raise ValueError

    async with bus:
        (retry,) = await bus.admin.describe_topics(["retry.billing"])
        assert len(retry.partitions) == 4
        await bus.send("orders", b"1", partition=3)
        await bus.clock.advance(seconds=6)
        assert calls == [b"1", b"1"]
        assert [record.partition for record in bus.log.records("retry.billing")] == [3] * 1


async def test_two_handlers_of_one_group() -> None:
    """They share the group's topics: each would get the other's entries."""
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=never_mind(5))
    async def bill(value: bytes) -> None: ...

    @bus.consumer("refunds", group="billing", retry=never_mind(5))
    async def refund(value: bytes) -> None: ...

    with pytest.raises(ConfigError, match=r"handlers 'bill' and 'refund' share the retry topic 'retry\.billing'"):
        async with bus:
            pass


async def test_at_most_once_and_retries() -> None:
    with pytest.raises(ConfigError, match="delivery='at-most-once' contradict each other"):
        TestBus(auto_create_topics=True).consumer(
            "orders", group="billing", delivery="at-most-once", retry=never_mind(5)
        )


async def test_many_entries_at_once_hold_up_no_reading() -> None:
    """Far more wait than may wait in memory."""
    bus, calls = TestBus(auto_create_topics=True), dict[bytes, int]()
    retry = Retry(immediate=0, delays=[5], jitter=False, max_waiting=10)

    @bus.consumer("orders", group="billing", retry=retry)
    async def bill(value: bytes) -> None:
        calls[value] = calls.get(value, 0) + 1
        if calls[value] == 1:
            raise ValueError

    values = [b"%d" % number for number in range(300)]
    for _ in range(3):
        async with bus:
            if not calls:
                for value in values:
                    bus.send_nowait("orders", value, key=value)
                await bus.flush()
            await bus.clock.advance(seconds=8)
    async with bus:
        for _ in range(100):
            await bus.clock.advance(seconds=5)
            if len(calls) == 300 and min(calls.values()) == 2:
                break
    assert calls == dict.fromkeys(values, 2)
    assert bus.log.records("dlq.billing") == []


async def test_what_waits_moves_no_offset_past_it() -> None:
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=never_mind(60))
    async def bill(value: bytes) -> None:
        raise ValueError

    async with bus:
        await bus.send("orders", b"1")
        await bus.clock.advance(seconds=1)
        offsets = await bus.admin.group_offsets("billing")
        assert offsets[TopicPartition("orders", 0)].offset == 1
        assert offsets[TopicPartition("retry.billing", 0)].offset == 0
