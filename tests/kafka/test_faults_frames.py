"""Requests and answers that get lost, come late or come twice: none of it is seen in the log.

A proxy in front of a real broker, and of ``eventbus serve``, keeps back and doubles what a network and its retries may.
Also the torn transaction: librdkafka ends transactions without an epoch of their own, so an end that arrives late would
end the next one, if the id were not taken anew before that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import pytest

from eventbus import EventBus
from eventbus.client.producer import Producer
from eventbus.errors import TransactionAborted
from eventbus.types import GroupMetadata, IsolationLevel, TopicPartition
from tests.kafka import frames
from tests.kafka.frames import FrameProxy, first
from tests.kafka.targets import KillableServer, bus_url
from tests.ports import kept_ports
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


class Door(NamedTuple):
    """Where a broker is, and where it tells its clients that it is."""

    broker_port: int
    proxy_port: int


@pytest.fixture(scope="module")
def served_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    (proxy_port,) = kept_ports(tmp_path_factory, 1)
    server = KillableServer(tmp_path_factory.mktemp("served"), "--advertised", f"127.0.0.1:{proxy_port}")
    with server:
        yield Door(server.port, proxy_port)


@pytest.fixture(params=quick(["real", "served"], 1))
def door(request: pytest.FixtureRequest) -> Door:
    if request.param == "served":
        return request.getfixturevalue("served_door")
    listeners = request.getfixturevalue("listeners")
    return Door(listeners.proxied_port, listeners.proxy_port)


class Scene:
    """A bus behind a proxy, a topic of this test alone, and a transactional id."""

    def __init__(self, bus: EventBus, proxy: FrameProxy, name: str) -> None:
        self.bus = bus
        self.proxy = proxy
        self.name = name

    def producer(self, max_block_ms: int = 20_000) -> Producer:
        return self.bus.new_producer(transactional_id=self.name, max_block_ms=max_block_ms)

    async def values(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[bytes]:
        where = TopicPartition(self.name, 0)
        end = (await self.bus.admin.list_offsets({where: -1}, isolation))[where].offset
        found: list[bytes] = []
        async with self.bus.new_consumer(isolation_level=isolation) as consumer:
            await consumer.assign([where])
            while await consumer.position(where) < end:
                found += [record.value for record in await consumer.poll(timeout_ms=100)]
        return found


@asynccontextmanager
async def scene(door: Door, request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    name = request.node.originalname.removeprefix("test_")
    proxy = FrameProxy(door.proxy_port)
    proxy.broker_port = door.broker_port
    async with proxy.running(), EventBus(bus_url(f"127.0.0.1:{proxy.port}")) as bus:
        await bus.admin.create_topic(name)
        with anyio.fail_after(60):
            yield Scene(bus, proxy, name)


async def test_records_whose_acks_are_lost_are_stored_once(door: Door, request: pytest.FixtureRequest) -> None:
    async with scene(door, request) as here:
        here.proxy.cut = first(5, frames.PRODUCE)
        sent = [here.bus.send_nowait(here.name, b"%d" % number) for number in range(3)]
        for number in range(3, 200):
            if number % 20 == 0:
                await sent[-1]
            sent.append(here.bus.send_nowait(here.name, b"%d" % number))
        await here.bus.flush()
        assert [(await delivery).offset for delivery in sent] == list(range(200))
        assert await here.values() == [b"%d" % number for number in range(200)]


async def test_doubled_requests_of_a_transaction(door: Door, request: pytest.FixtureRequest) -> None:
    kinds = (frames.PRODUCE, frames.ADD_PARTITIONS_TO_TXN, frames.ADD_OFFSETS_TO_TXN, frames.TXN_OFFSET_COMMIT)
    async with scene(door, request) as here, here.producer() as producer:
        here.proxy.double = lambda api_key: api_key in (*kinds, frames.END_TXN)
        where = TopicPartition(here.name, 0)
        for number in range(5):
            await producer.begin()
            for part in range(3):
                await producer.send(here.name, b"%d/%d" % (number, part))
            await producer.send_offsets({where: number + 1}, GroupMetadata(here.name))
            if number == 3:
                await producer.abort()
            else:
                await producer.commit()
        here.proxy.pass_all()
        assert await here.values() == [b"%d/%d" % (number, part) for number in (0, 1, 2, 4) for part in range(3)]
        assert (await here.bus.admin.group_offsets(here.name))[where].offset == 5


async def test_a_commit_that_librdkafka_asked_for_twice_ends_one_transaction(
    door: Door, request: pytest.FixtureRequest
) -> None:
    """Its first request was lost on the way, its second was answered; the first arrives in the next transaction."""
    async with scene(door, request) as here, here.producer() as producer:
        here.proxy.lose = first(1, frames.END_TXN)
        await producer.begin()
        await producer.send(here.name, b"first")
        await producer.commit()
        assert await here.values() == [b"first"]
        await producer.begin()
        await producer.send(here.name, b"second, part 1")
        (late,) = here.proxy.held
        await late.release()
        assert await here.values() == [b"first"]
        await producer.send(here.name, b"second, part 2")
        await producer.abort()
        assert await here.values() == [b"first"]


async def test_an_abort_that_librdkafka_asked_for_twice_ends_one_transaction(
    door: Door, request: pytest.FixtureRequest
) -> None:
    async with scene(door, request) as here, here.producer() as producer:
        here.proxy.lose = first(1, frames.END_TXN)
        await producer.begin()
        await producer.send(here.name, b"first")
        await producer.abort()
        await producer.begin()
        await producer.send(here.name, b"second, part 1")
        (late,) = here.proxy.held
        await late.release()
        await producer.send(here.name, b"second, part 2")
        await producer.commit()
        assert await here.values() == [b"second, part 1", b"second, part 2"]


# A commit that nobody answers: what became of it is found out, and what is still on its way hits nothing.


async def test_an_answer_that_is_lost_after_the_commit(door: Door, request: pytest.FixtureRequest) -> None:
    async with scene(door, request) as here, here.producer(1_000) as producer:
        here.proxy.mute = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send(here.name, b"yes")
        await producer.commit()
        assert await here.values() == [b"yes"]
        here.proxy.mute = lambda api_key: False
        await producer.begin()
        await producer.send(here.name, b"and on")
        await producer.commit()
        assert await here.values() == [b"yes", b"and on"]


async def test_a_commit_that_never_arrives_is_an_abort(door: Door, request: pytest.FixtureRequest) -> None:
    async with scene(door, request) as here, here.producer(1_000) as producer:
        here.proxy.hold = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send(here.name, b"no")
        with pytest.raises(TransactionAborted, match="not answered"):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        assert await here.values() == []
        await producer.begin()
        await producer.send(here.name, b"again")
        await producer.commit()
        assert await here.values() == [b"again"]
        assert await here.values(UNCOMMITTED) == [b"no", b"again"]


async def test_a_commit_that_arrives_late_does_not_end_the_next_transaction(
    door: Door, request: pytest.FixtureRequest
) -> None:
    async with scene(door, request) as here, here.producer(1_000) as producer:
        here.proxy.hold = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send(here.name, b"first")
        with pytest.raises(TransactionAborted):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        await producer.begin()
        await producer.send(here.name, b"second")
        assert here.proxy.held
        for held in here.proxy.held:
            await held.release()
        assert await here.values() == []
        await producer.abort()
        assert await here.values() == []


async def test_offsets_alone_tell_what_became_of_their_transaction(door: Door, request: pytest.FixtureRequest) -> None:
    async with scene(door, request) as here, here.producer(1_000) as producer:
        where = TopicPartition(here.name, 0)
        here.proxy.mute = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send_offsets({where: 5}, GroupMetadata(here.name))
        await producer.commit()
        assert (await here.bus.admin.group_offsets(here.name))[where].offset == 5
        here.proxy.mute = lambda api_key: False
        here.proxy.hold = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send_offsets({where: 6}, GroupMetadata(here.name))
        with pytest.raises(TransactionAborted, match="not answered"):
            await producer.commit()
        here.proxy.hold = lambda api_key: False
        assert (await here.bus.admin.group_offsets(here.name))[where].offset == 5


async def test_an_abort_that_is_not_answered_is_one(door: Door, request: pytest.FixtureRequest) -> None:
    async with scene(door, request) as here, here.producer(1_000) as producer:
        here.proxy.hold = lambda api_key: api_key == frames.END_TXN
        await producer.begin()
        await producer.send(here.name, b"no")
        await producer.abort()
        here.proxy.hold = lambda api_key: False
        await producer.begin()
        await producer.send(here.name, b"yes")
        await producer.commit()
        assert await here.values() == [b"yes"]
