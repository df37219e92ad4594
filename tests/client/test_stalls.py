"""One test for each way in which a handler of a running bus stalls: its health is degraded and gives the reason."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import anyio
import pytest

from dlq import Circuit, Retry
from eventbus import EventBus
from eventbus.backends.embedded_consumer import EmbeddedConsumer
from eventbus.errors import RequestTimedOut, TopicAuthorizationFailed
from eventbus.testing import TestBus
from eventbus.testing.faulty import Call


@pytest.fixture
def bus() -> TestBus:
    bus = TestBus()
    bus.topic("t", partitions=2)
    return bus


async def reason(bus: EventBus) -> str:
    health = await bus.health()
    assert health.status == "degraded", health
    return health.reason


async def test_a_source_topic_that_was_deleted_and_created_again(bus: TestBus) -> None:
    @bus.consumer("t", group="g")
    async def handle(text: str) -> None: ...

    async with bus:
        await bus.clock.settle()
        await bus.admin.delete_topics(["t"])
        await bus.clock.advance(seconds=10)
        assert await reason(bus) == (
            "handler 'handle': topic 't', which it reads, does not exist: eventbus topics create t"
        )
        await bus.admin.create_topic("t")
        await bus.clock.advance(seconds=10)
        assert (await bus.health()).status == "ok"


@pytest.mark.parametrize("is_narrow", [False, True])
async def test_a_retry_topic_that_was_deleted_is_created_again(bus: TestBus, is_narrow: bool) -> None:
    """A source partition waited for ever for its retry partition, which no member had."""
    got: list[str] = []

    @bus.consumer("t", group="g", retry=Retry(immediate=0, delays=["100ms"]))
    async def handle(text: str) -> None:
        got.append(text)

    async with bus:
        await bus.drain()
        await bus.admin.delete_topics(["retry.g"])
        if is_narrow:
            await bus.admin.create_topic("retry.g", partitions=1)
        for partition in range(2):
            await bus.send("t", "x", partition=partition)
        await bus.clock.advance(seconds=2)
        await bus.clock.advance(seconds=20)
        assert got == ["x", "x"]
        assert (await bus.health()).status == "ok"
        [topic] = await bus.admin.describe_topics(["retry.g"])
        assert len(topic.partitions) == 2


async def test_a_transaction_that_stays_open_is_named(bus: TestBus) -> None:
    """Nothing counted as lag, because a reader of committed records may read up to the transaction only."""

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None: ...

    async with bus:
        await bus.send("t", "before", partition=0)
        await bus.drain()
        async with bus.transaction("shop.import") as transaction:
            await transaction.send("t", "open", partition=0)
            await bus.send("t", "held back", partition=0, transactional=False)
            await bus.clock.advance(seconds=30)
            said = await reason(bus)
            assert "t-0 waits: 2 offsets from 1 on are not readable (for " in said
            assert "because the transaction of 'shop.import' is open since " in said
        await bus.clock.advance(seconds=10)
        assert (await bus.health()).status == "ok"


async def test_an_open_circuit(bus: TestBus) -> None:
    retry = Retry(immediate=0, delays=["1s"], circuit=Circuit(failures=0.5, of=2, open="60s"))

    @bus.consumer("t", group="g", order="none", retry=retry)
    async def handle(text: str) -> None:
        raise ConnectionRefusedError("the shop is away")

    async with bus:
        for _ in range(5):
            await bus.send("t", "x", partition=0)
        await bus.clock.advance(seconds=5)
        assert "waits (and 1 more partitions): a circuit is open" in await reason(bus)


async def test_a_handler_that_may_not_write_its_output_waits_for_the_acl(bus: TestBus) -> None:
    got: list[str] = []
    is_denied = True

    @bus.consumer("t", group="g", on_error="skip")
    async def handle(text: str) -> None:
        if is_denied:
            raise TopicAuthorizationFailed("not authorized for topic 'out'")
        got.append(text)

    async with bus:
        await bus.send("t", "x")
        await bus.clock.advance(seconds=30)
        assert "not authorized for topic 'out'" in await reason(bus)
        is_denied = False
        await bus.clock.advance(seconds=120)
        assert got == ["x"]


@pytest.mark.parametrize("topic", ["retry.g", "dlq.g"])
async def test_a_policy_that_may_not_write_to_its_topic_waits_for_the_acl(topic: str) -> None:
    bus = TestBus()
    bus.topic("t")
    denied = [topic]
    delays: Any = ["1s"] if topic == "retry.g" else None

    @bus.consumer("t", group="g", retry=Retry(immediate=0, delays=delays))
    async def handle(text: str) -> None:
        raise ValueError(text)

    def refuse(call: Call) -> None:
        if call.step == "send" and call.when == "before" and call.topic in denied:
            raise TopicAuthorizationFailed(f"not authorized for topic {topic!r}")

    bus.log.faults._backend.hooks.append(refuse)
    async with bus:
        await bus.send("t", "x")
        await bus.clock.advance(seconds=30)
        assert f"not authorized for topic {topic!r}" in await reason(bus)
        denied.clear()
        await bus.clock.advance(seconds=60)
        assert (await bus.health()).status == "ok"
        assert (await bus.health()).handlers[0].counts.dead_lettered == 1


async def test_a_table_whose_topic_was_deleted(bus: TestBus) -> None:
    bus.topic("prices", configs={"cleanup.policy": "compact"})
    bus.table("prices", key=str, value=str)
    async with bus:
        await bus.clock.advance(seconds=5)
        await bus.admin.delete_topics(["prices"])
        await bus.clock.advance(seconds=10)
        assert await reason(bus) == "table prices: topic 'prices' does not exist: eventbus topics create prices"
        await bus.admin.create_topic("prices", configs={"cleanup.policy": "compact"})
        await bus.clock.advance(seconds=20)
        assert (await bus.health()).status == "ok"


@pytest.mark.parametrize("missing", ["topic", "partition"])
async def test_scheduled_records_wait_for_their_topic_and_others_are_delivered(bus: TestBus, missing: str) -> None:
    """Such a record was put aside at once, and health was ok."""
    bus.topic("late", partitions=2)
    async with bus:
        await bus.send("late", "waits", delay=1, partition=1)
        await bus.send("t", "other", delay=1)
        await bus.admin.delete_topics(["late"])
        if missing == "partition":
            await bus.admin.create_topic("late", partitions=1)
        await bus.clock.advance(seconds=20)
        assert bus.log.values("t", str) == ["other"]
        assert ": records for topic 'late' wait: " in await reason(bus)
        if missing == "partition":
            await bus.admin.add_partitions("late", 2)
        else:
            await bus.admin.create_topic("late", partitions=2)
        await bus.clock.advance(seconds=10)
        assert bus.log.values("late", str) == ["waits"]
        assert (await bus.health()).status == "ok"


async def test_scheduled_records_that_cannot_be_delivered(bus: TestBus) -> None:
    bus.topic("small", configs={"max.message.bytes": 20_000})
    async with bus:
        await bus.send("small", "x" * 10_000, delay=1)
        await bus.admin.alter_configs("small", {"max.message.bytes": 1_000})
        await bus.clock.advance(seconds=20)
        assert (await reason(bus)).endswith("records that cannot be delivered: 1. See: eventbus schedule list --dead")


async def test_a_topic_of_schedules_that_was_deleted_is_created_again_with_its_functions() -> None:
    bus = TestBus(service="shop")
    fired: list[int] = []

    @bus.every(timedelta(seconds=30))
    async def tick() -> None:
        fired.append(1)

    async with bus:
        await bus.clock.advance(seconds=5)
        await bus.admin.delete_topics(["_scheduled.shop"])
        await bus.clock.advance(seconds=60)
        assert fired
        assert (await bus.health()).status == "ok"


async def test_a_topic_of_replies_that_was_deleted_is_created_again(bus: TestBus) -> None:
    """No request of the process was ever answered again."""

    @bus.consumer("t", group="g", replies=True)
    async def double(number: int) -> int:
        return 2 * number

    async with bus:
        assert await bus.request("t", 1, returns=int) == 2
        await bus.admin.delete_topics(["eventbus.replies"])
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(RequestTimedOut, match=r"'eventbus.replies', was deleted, and is created again"):
                    await bus.request("t", 2, returns=int)

            tasks.start_soon(ask)
            await bus.clock.advance(seconds=31)
        assert await bus.request("t", 3, returns=int) == 6


async def test_retry_partitions_that_are_not_taken_up_because_the_log_does_not_answer(bus: TestBus) -> None:
    """The callback of an assignment asks the log. Meanwhile the handler does not poll."""
    is_away = False
    committed = EmbeddedConsumer.committed

    async def ask(self: EmbeddedConsumer, partitions: Any) -> Any:
        partitions = list(partitions)
        if is_away and any(partition.topic == "retry.g" for partition in partitions):
            raise RequestTimedOut("the log does not answer")
        return await committed(self, partitions)

    @bus.consumer("t", group="g", retry=Retry(immediate=0, delays=["1s"]))
    async def handle(text: str) -> None: ...

    with patch.object(EmbeddedConsumer, "committed", ask):
        async with bus:
            await bus.drain()
            is_away = True
            for topic in ("t", "retry.g"):
                await bus.admin.add_partitions(topic, 3)
            await bus.clock.advance(seconds=10)
            health = await bus.health()
            is_away = False
            assert health.status == "degraded"
            assert "retry.g-0 waits (and 2 more partitions): the log does not answer where it begins: " in health.reason
            assert re.search(r"\(for \d+ s, tried \d+ times\)", health.reason)
            await bus.clock.advance(seconds=5)
            assert (await bus.health()).status == "ok"
