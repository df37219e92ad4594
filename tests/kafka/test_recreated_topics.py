"""A topic that was deleted and created again by somebody else: librdkafka goes on at the old offset, without a word."""

from __future__ import annotations

import anyio
import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.backends.kafka import backend as kafka_backend
from eventbus.errors import UnknownTopicOrPartition
from eventbus.testing import KafkaServer
from eventbus.types import TopicPartition
from tests.cluster_faults.load import until

pytestmark = pytest.mark.system


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_backend, "_LOOK_SECONDS", 0.1)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
async def test_a_handler_and_a_table_begin_again(
    exactly_once: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler skipped as many records as it had handled of the old topic, with health "everything is handled".

    Without the regular look-up: the first records after a silence have the topic verified.
    """
    monkeypatch.setattr(kafka_backend, "_LOOK_SECONDS", 600)
    async with KafkaServer() as server:
        bus, other = EventBus(f"kafka://{server.bootstrap}"), EventBus(f"kafka://{server.bootstrap}")
        handled: list[str] = []
        table = bus.table("orders", key=str, value=str)

        @bus.consumer("orders", group="g", start="earliest", exactly_once=exactly_once)
        async def handle(value: str) -> None:
            handled.append(value)

        async def create_and_fill(word: str, count: int) -> None:
            await other.admin.create_topic("orders", partitions=1, configs={"cleanup.policy": "compact"})
            for number in range(count):
                await other.send("orders", f"{word}-{number}", key=str(number))

        async with other:
            await create_and_fill("old", 5)
            async with bus:
                await bus.drain()
                await other.admin.delete_topics("orders")
                await create_and_fill("new", 8)
                await until(lambda: "new-7" in handled)
                await until(lambda: table.get("0") == "new-0")
                await bus.drain()
            new = [value for value in handled if value.startswith("new")]
            assert new == [f"new-{number}" for number in range(8)], "none was read at an old offset"
            offsets = await other.admin.group_offsets("g")
        assert offsets[TopicPartition("orders", 0)].offset >= 8
    assert "Topic 'orders' was deleted and created again" in caplog.text


@pytest.mark.usefixtures("quick_looks")
async def test_sends_use_the_new_number_of_partitions() -> None:
    """A send to a partition that is gone waited for a minute, and so did lookups of all other topics."""
    async with KafkaServer() as server:
        bus, other = EventBus(f"kafka://{server.bootstrap}"), EventBus(f"kafka://{server.bootstrap}")
        async with bus, other:
            for topic, partitions in (("fewer", 4), ("more", 1)):
                await other.admin.create_topic(topic, partitions=partitions)
                for partition in range(partitions):
                    await bus.send(topic, b"x", partition=partition)
            await other.admin.delete_topics(["fewer", "more"])
            for topic, partitions in (("fewer", 2), ("more", 3)):
                await other.admin.create_topic(topic, partitions=partitions)
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(refused, bus, "fewer", 3)
                    for number in range(10):
                        await bus.send("more", b"x", key=str(number))
                for number in range(10):
                    await bus.send("fewer", b"x", key=str(number))


async def refused(bus: EventBus, topic: str, partition: int) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await bus.send(topic, b"x", partition=partition)
