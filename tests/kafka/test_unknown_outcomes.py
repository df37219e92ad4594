"""A commit that is not answered: what became of it is found out, and what is still on its way hits nothing.

The case of the torn transaction: librdkafka ends transactions without an epoch of their own, so an end that arrives
late would end the next one, if the id were not taken anew before that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from eventbus import EventBus
from eventbus.client.producer import Producer
from eventbus.errors import TransactionAborted
from eventbus.types import GroupMetadata, IsolationLevel, TopicPartition
from tests.kafka.frames import END_TXN, FrameProxy
from tests.kafka.targets import KillableServer, bus_url

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


class Setting:
    def __init__(self, bus: EventBus, proxy: FrameProxy) -> None:
        self.bus = bus
        self.proxy = proxy

    def producer(self) -> Producer:
        return self.bus.new_producer(transactional_id="id", max_block_ms=1_000)

    async def values(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[bytes]:
        where = TopicPartition("topic", 0)
        end = (await self.bus.admin.list_offsets({where: -1}, isolation))[where].offset
        found: list[bytes] = []
        async with self.bus.new_consumer(isolation=isolation) as consumer:
            await consumer.assign([where])
            while await consumer.position(where) < end:
                found += [record.value for record in await consumer.poll(timeout_ms=100)]
        return found


@asynccontextmanager
async def setting(folder: Path) -> AsyncGenerator[Setting]:
    """A bus that reaches its server through a proxy, and a topic."""
    async with FrameProxy().running() as proxy:
        server = KillableServer(folder, "--advertised", f"127.0.0.1:{proxy.port}")
        await anyio.to_thread.run_sync(server.start)
        try:
            proxy.broker_port = server.port
            async with EventBus(bus_url(f"127.0.0.1:{proxy.port}")) as bus:
                await bus.admin.create_topic("topic")
                yield Setting(bus, proxy)
        finally:
            await anyio.to_thread.run_sync(server.stop)


async def test_an_answer_that_is_lost_after_the_commit(tmp_path: Path) -> None:
    async with setting(tmp_path) as here, here.producer() as producer:
        here.proxy.mute = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send("topic", b"yes")
        await producer.commit()
        assert await here.values() == [b"yes"]
        here.proxy.mute = lambda api_key: False
        await producer.begin()
        await producer.send("topic", b"and on")
        await producer.commit()
        assert await here.values() == [b"yes", b"and on"]


async def test_a_commit_that_never_arrives_is_an_abort(tmp_path: Path) -> None:
    async with setting(tmp_path) as here, here.producer() as producer:
        here.proxy.hold = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send("topic", b"no")
        with pytest.raises(TransactionAborted, match="not answered"):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        assert await here.values() == []
        await producer.begin()
        await producer.send("topic", b"again")
        await producer.commit()
        assert await here.values() == [b"again"]
        assert await here.values(UNCOMMITTED) == [b"no", b"again"]


async def test_a_commit_that_arrives_late_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    async with setting(tmp_path) as here, here.producer() as producer:
        here.proxy.hold = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send("topic", b"first")
        with pytest.raises(TransactionAborted):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        await producer.begin()
        await producer.send("topic", b"second")
        assert here.proxy.held
        for held in here.proxy.held:
            await held.release()
        with anyio.fail_after(10):
            await here.proxy.answered_late.wait()
        assert await here.values() == []
        await producer.abort()
        assert await here.values() == []


async def test_offsets_alone_tell_what_became_of_their_transaction(tmp_path: Path) -> None:
    where = TopicPartition("topic", 0)
    async with setting(tmp_path) as here, here.producer() as producer:
        here.proxy.mute = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send_offsets({where: 5}, GroupMetadata("group"))
        await producer.commit()
        assert (await here.bus.admin.group_offsets("group"))[where].offset == 5
        here.proxy.mute = lambda api_key: False
        here.proxy.hold = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send_offsets({where: 6}, GroupMetadata("group"))
        with pytest.raises(TransactionAborted, match="not answered"):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        assert (await here.bus.admin.group_offsets("group"))[where].offset == 5


async def test_an_abort_that_is_not_answered_is_one(tmp_path: Path) -> None:
    async with setting(tmp_path) as here, here.producer() as producer:
        here.proxy.hold = lambda api_key: api_key == END_TXN
        await producer.begin()
        await producer.send("topic", b"no")
        await producer.abort()
        here.proxy.hold = lambda api_key: False
        await producer.begin()
        await producer.send("topic", b"yes")
        await producer.commit()
        assert await here.values() == [b"yes"]
