"""Tables on a cluster: filled at the start, read committed, followed, and made anew with their topic."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.testing import RealKafka
from tests.kafka.targets import Node, bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

PATIENCE_SECONDS = 60


def added(state: int, event: int) -> int:
    return state + event


async def fills_and_follows(url: str, name: str) -> None:
    async with EventBus(url) as bus:
        await bus.admin.create_topic(name, 2, configs={"cleanup.policy": "compact"})
        await bus.admin.create_topic(f"{name}-events", 2, configs={"retention.ms": -1})
        for number in range(100):
            await bus.send(name, f"{number}", key=f"k-{number % 7}")
            await bus.send(f"{name}-events", number, key=f"k-{number % 7}")
        with pytest.raises(RuntimeError):
            async with bus.transaction(f"{name}-writer") as tx:
                await tx.send(name, "never", key="k-0")
                raise RuntimeError  # its marker is the last thing in the partition

    bus = EventBus(url)
    table = bus.table(name, key=str, value=str)
    sums = bus.table("sums", of=f"{name}-events", key=str, value=int, fold=added, initial=int)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with bus:
            assert table == {f"k-{number % 7}": f"{number}" for number in range(100)}
            assert sums == {f"k-{rest}": sum(range(rest, 100, 7)) for rest in range(7)}
            await table.until(await table.put("new", "value"))
            await table.until(await table.delete("k-0"))
            assert (table["new"], "k-0" in table) == ("value", False)
            await bus.send(f"{name}-events", 5, key="k-0")
            await bus.drain()
            assert sums["k-0"] == sum(range(0, 100, 7)) + 5
            await bus.admin.delete_topics([name, f"{name}-events"])


@pytest.mark.slow  # the broker of memory:// and file://, with the client of Kafka: both are tried elsewhere
async def test_on_eventbus_serve(served: Node) -> None:
    await fills_and_follows(bus_url(served.bootstrap), "table-of-served")


async def test_on_a_kafka(real: RealKafka) -> None:
    await fills_and_follows(bus_url(real.bootstrap), "table-of-kafka")
