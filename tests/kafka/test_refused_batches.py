"""A broker refuses a batch as a whole. The faulty record is isolated; its neighbours are stored, in their order."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.backends.kafka.backend import KafkaBackend
from eventbus.backends.kafka.limits import UNKNOWN
from eventbus.errors import EventBusError, InvalidRecord, InvalidTimestamp, RecordTooLarge
from eventbus.testing import RealKafka
from tests.support import records_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

SMALL = {"max.message.bytes": "2000"}
YOUNG = {"message.timestamp.before.max.ms": "3600000"}
LONG_AGO_MS = 1_000


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"refused-{request.node.name}".replace("[", "-").replace("]", "")


@asynccontextmanager
async def opened(real: RealKafka, topic: str, configs: dict[str, str]) -> AsyncGenerator[EventBus]:
    async with EventBus(real.url) as bus:
        await bus.admin.create_topic(topic, configs=configs)
        yield bus


async def numbers(bus: EventBus, topic: str) -> list[int]:
    return [int(record.value.split()[0]) for record in await records_of(bus, topic) if record.value]


def numbered(count: int, size: int = 300) -> list[bytes]:
    return [(b"%d " % number).ljust(size, b"x") for number in range(count)]


async def test_small_records_fit_whatever_the_limit_of_their_batch(real: RealKafka, topic: str) -> None:
    async with opened(real, topic, SMALL) as bus:
        deliveries = [bus.send_nowait(topic, value) for value in numbered(50)]
        await bus.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(50))
        await bus.send_many(topic, numbered(50))
        assert await numbers(bus, topic) == [*range(50), *range(50)]


async def test_a_transaction_of_small_records(real: RealKafka, topic: str) -> None:
    async with opened(real, topic, SMALL) as bus:
        for _ in range(2):
            async with bus.transaction(topic) as transaction, anyio.create_task_group() as tasks:
                for value in numbered(20):
                    tasks.start_soon(transaction.send, topic, value)
        assert sorted(await numbers(bus, topic)) == sorted([*range(20), *range(20)])


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_large_record_among_small_ones(
    real: RealKafka, topic: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the topic's limit cannot be learnt, as without the permission to describe its configs."""
    if not known:
        monkeypatch.setattr(KafkaBackend, "learn_limits", not_allowed)
    values = numbered(40)
    values[20] = b"20 ".ljust(5_000, b"x")
    async with opened(real, topic, SMALL) as bus:
        deliveries = [bus.send_nowait(topic, value) for value in values]
        await bus.flush()
        failed = [number for number, delivery in enumerate(deliveries) if delivery.exception()]
        assert failed == [20] and isinstance(deliveries[20].exception(), RecordTooLarge)
        assert "max.message.bytes" in str(deliveries[20].exception())
        found = await numbers(bus, topic)
        assert sorted(found) == [number for number in range(40) if number != 20]
        assert not known or found == sorted(found)
        with pytest.raises(RecordTooLarge):
            await bus.send_many(topic, values)
        await bus.flush()
        assert sorted((await numbers(bus, topic))[39:]) == sorted(found)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_an_old_record_among_new_ones(
    real: RealKafka, topic: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent again is as it was: its key, its headers, its timestamp, no value or an empty one."""
    if not known:
        monkeypatch.setattr(KafkaBackend, "learn_limits", not_allowed)
    now_ms = time.time_ns() // 1_000_000
    async with opened(real, topic, YOUNG) as bus:
        deliveries = [
            bus.send_nowait(
                topic,
                (None, b"", b"x")[number % 3],
                key=b"%d" % number,
                headers=[("n", b"%d" % number)],
                timestamp_ms=LONG_AGO_MS if number == 50 else now_ms - number,
            )
            for number in range(100)
        ]
        await bus.flush()
        assert [number for number, one in enumerate(deliveries) if one.exception() is not None] == [50]
        assert isinstance(deliveries[50].exception(), InvalidTimestamp)
        assert "message.timestamp.before.max.ms" in str(deliveries[50].exception())
        found = await records_of(bus, topic)
        if not known:
            found.sort(key=lambda record: int(record.key or b""))
        assert [
            (record.key, record.value, tuple(record.headers), record.timestamp_ms) for record in found
        ] == [
            (b"%d" % number, (None, b"", b"x")[number % 3], (("n", b"%d" % number),), now_ms - number)
            for number in range(100)
            if number != 50
        ]  # fmt: skip


async def test_a_record_without_a_key_in_a_compacted_topic(real: RealKafka, topic: str) -> None:
    async with opened(real, topic, {"cleanup.policy": "compact"}) as bus:
        deliveries = [
            bus.send_nowait(topic, value, key=None if number == 7 else b"k")
            for number, value in enumerate(numbered(20))
        ]
        await bus.flush()
        assert [type(one.exception()) for one in deliveries if one.exception()] == [InvalidRecord]
        assert await numbers(bus, topic) == [number for number in range(20) if number != 7]


async def test_retries_and_dead_letters_that_are_written_together(real: RealKafka, topic: str) -> None:
    dead, bus = f"{topic}.dead", EventBus(real.url)
    retry = Retry(immediate=0, delays=["10ms"])

    @bus.consumer(topic, group=topic, start="earliest", retry=retry, dead_letter=dead)
    async def handle(value: bytes) -> None:
        raise ValueError("not today")

    async with EventBus(real.url) as operator:
        await operator.admin.create_topic(topic, configs=SMALL)
        await operator.admin.create_topic(dead, configs={"max.message.bytes": "8000"})
        await operator.send_many(topic, numbered(50))
        async with bus:
            await bus.drain()
        assert sorted(await numbers(operator, dead)) == list(range(50))


async def test_outputs_of_an_exactly_once_handler(real: RealKafka, topic: str) -> None:
    output, calls, bus = f"{topic}.output", list[bytes](), EventBus(real.url)

    @bus.consumer(topic, group=topic, start="earliest", exactly_once=True)
    @bus.producer(output)
    async def handle(value: bytes) -> bytes:
        calls.append(value)
        return value

    async with EventBus(real.url) as operator:
        await operator.admin.create_topic(topic)
        await operator.admin.create_topic(output, configs=SMALL)
        await operator.send_many(topic, numbered(50))
        async with bus:
            await bus.drain()
        assert await numbers(operator, output) == list(range(50))
        assert len(calls) == 50


async def test_a_limit_that_was_lowered_meanwhile(real: RealKafka, topic: str) -> None:
    async with opened(real, topic, {}) as bus, EventBus(real.url) as operator:
        await bus.send(topic, numbered(1)[0])
        await operator.admin.alter_configs(topic, set=SMALL)
        deliveries = [bus.send_nowait(topic, value) for value in numbered(50)]
        await bus.flush()
        assert [delivery.exception() for delivery in deliveries] == [None] * 50
        try:
            async with bus.transaction(topic) as transaction:  # another producer of this bus: it has the new limit
                for value in numbered(20):
                    transaction.send_nowait(topic, value)
        except EventBusError as error:
            raise AssertionError("the limit was not learnt") from error


def not_allowed(backend: KafkaBackend, topics: list[str]) -> None:
    backend.known_limits.update(dict.fromkeys(topics, UNKNOWN))
