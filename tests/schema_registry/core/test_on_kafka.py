"""The same registry over the network: two of them race on our own server, and on Apache Kafka."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import anyio
import pytest

from eventbus import EventBus
from eventbus.testing import KafkaServer, RealKafka
from schema_registry import ConfigUpdate, Registry, RegistryRefused, SchemaRequest
from tests.kafka.urls import bus_url
from tests.schema_registry.core.lab import INT, LONG, record

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

_numbers = count()


@asynccontextmanager
async def two(url: str, topic: str) -> AsyncGenerator[tuple[Registry, Registry]]:
    """Two registries, as of two services."""
    async with (
        EventBus(url) as first, EventBus(url) as second,
        Registry(first, topic=topic) as one, Registry(second, topic=topic) as other,
    ):  # fmt: skip
        yield one, other


async def race(url: str, topic: str) -> None:
    """Ids may be left out, those of batches that were overtaken; none is given twice."""
    async with two(url, topic) as (one, other):
        ids: dict[str, set[int]] = {}

        async def register(registry: Registry, number: int) -> None:
            text = record(f"R{number}")
            schema = await registry.register(f"s{number}", SchemaRequest(schema=text))
            ids.setdefault(text, set()).add(schema.id)

        for begin in (0, 5, 10):
            async with anyio.create_task_group() as tasks:
                for number in range(begin, begin + 10):
                    tasks.start_soon(register, one, number)
                    tasks.start_soon(register, other, number)
        given = [id for found in ids.values() for id in found]
        assert len(given) == len(set(given)) == len(ids) == 20, ids
        await one.update_config("s1", ConfigUpdate(compatibility="NONE"))
        await other.delete_subject("s1")
        assert await one.catch_up() or "s1" not in one.subjects()
        await other.catch_up()
        assert list(one.export_lines()) == list(other.export_lines())
    async with EventBus(url) as bus, Registry(bus, topic=topic) as registry:
        assert len(registry.subjects()) == 19
        assert (await registry.register("new", SchemaRequest(schema=INT))).id > max(given)


@pytest.mark.slow  # the broker of the other tests of this folder, and the client that is tried on a Kafka
async def test_over_our_own_server() -> None:
    with KafkaServer() as server:  # in a thread: a client's first look at a topic blocks
        await race(f"kafka://{server.bootstrap}", "_schemas")


async def test_on_apache_kafka(real: RealKafka) -> None:
    await race(bus_url(real.bootstrap), f"_schemas-{next(_numbers)}")


async def test_the_topic_on_apache_kafka(real: RealKafka) -> None:
    """Made as it must be; and one that is not is refused there too."""
    url, topic = bus_url(real.bootstrap), f"_schemas-{next(_numbers)}"
    async with EventBus(url) as bus:
        async with Registry(bus, topic=topic) as registry:
            await registry.register("a", SchemaRequest(schema=LONG))
        found = (await bus.admin.describe_topics([topic]))[0]
        assert len(found.partitions) == 1 and found.configs["cleanup.policy"].value == "compact"
        await bus.admin.create_topic("wrong", 1, configs={"cleanup.policy": "delete"})
        with pytest.raises(RegistryRefused, match=r"cleanup\.policy=delete"):
            await Registry(bus, topic="wrong").start()
