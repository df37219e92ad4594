"""Groups of unmodified clients, as the server sees them: librdkafka's members, and aiokafka's beside the bus."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka.admin import AdminClient, NewTopic

from eventbus.testing.server import KafkaServer
from tests.tiers import quick

pytestmark = pytest.mark.system

PATIENCE_S = 30
PARTITIONS = 4


class Watched:
    """What all readers have read and own. Somebody may wait for it to be so."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.owned: dict[str, set[int]] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(until, PATIENCE_S), (len(self.counts), self.owned)


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    with KafkaServer(num_partitions=PARTITIONS) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(PATIENCE_S)
        yield running


def produce(server: KafkaServer, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    for number in numbers:
        producer.produce("t", str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


Partitions = list[confluent_kafka.TopicPartition]


class Reader(threading.Thread):
    """A librdkafka consumer that commits each record before it reads the next."""

    protocol: ClassVar[dict[str, Any]] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}

    def __init__(self, server: KafkaServer, name: str, watched: Watched, **options: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.watched = watched
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.owned = watched.owned[name] = set()
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self.protocol,
                **options,
            }
        )
        self.start()

    def run(self) -> None:
        try:
            self.consumer.subscribe(["t"], on_assign=self.take, on_revoke=self.give, on_lost=self.give)
            while not self.stopping.is_set():
                message = self.consumer.poll(0.1)
                if message is not None:
                    assert message.error() is None, message.error()
                    self.consumer.commit(message, asynchronous=False)
                    with self.watched.change():
                        self.watched.counts[message.value().decode()] += 1
            self.consumer.close()
        except BaseException as error:  # told by `stop`
            self.error = error

    def take(self, _: confluent_kafka.Consumer, partitions: Partitions) -> None:
        with self.watched.change():
            self.owned |= {one.partition for one in partitions}

    def give(self, _: confluent_kafka.Consumer, partitions: Partitions) -> None:
        with self.watched.change():
            self.owned -= {one.partition for one in partitions}

    def stop(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def come_and_go(server: KafkaServer, reader: type[Reader], **option: str) -> None:
    """Each record is read once by members that come and go."""
    watched = Watched()
    with contextlib.ExitStack() as stack:
        first = reader(server, "first", watched, **option)
        stack.callback(first.stop)
        produce(server, range(100))
        watched.wait(lambda: len(watched.counts) == 100)
        assert first.owned == set(range(PARTITIONS))
        second = reader(server, "second", watched, **option)
        stack.callback(second.stop)
        watched.wait(lambda: len(first.owned) == len(second.owned) == 2)
        assert first.owned | second.owned == set(range(PARTITIONS))
        produce(server, range(100, 200))
        watched.wait(lambda: len(watched.counts) == 200)
        first.stop()
        watched.wait(lambda: len(second.owned) == PARTITIONS)
        produce(server, range(200, 300))
        watched.wait(lambda: len(watched.counts) == 300)
    assert watched.counts == Counter(str(number) for number in range(300))


def restart_a_static_member(server: KafkaServer, reader: type[Reader], generation: Callable[[], int]) -> None:
    """It keeps its partitions, and the group its generation."""
    watched = Watched()
    with contextlib.ExitStack() as stack:
        steady = reader(server, "steady", watched, **{"group.instance.id": "a"})
        stack.callback(steady.stop)
        restarted = reader(server, "restarted", watched, **{"group.instance.id": "b"})
        stack.callback(restarted.stop)
        watched.wait(lambda: len(steady.owned) == len(restarted.owned) == 2)
        kept, before = set(restarted.owned), generation()
        restarted.stop()
        again = reader(server, "again", watched, **{"group.instance.id": "b"})
        stack.callback(again.stop)
        watched.wait(lambda: again.owned == kept)
        produce(server, range(40))
        watched.wait(lambda: len(watched.counts) == 40)
        assert generation() == before
    assert watched.counts == Counter(str(number) for number in range(40))


@pytest.mark.parametrize("assignor", quick(["range", "roundrobin", "cooperative-sticky"], ["cooperative-sticky"]))
def test_librdkafka_members_come_and_go_and_each_record_is_read_once(server: KafkaServer, assignor: str) -> None:
    come_and_go(server, Reader, **{"partition.assignment.strategy": assignor})


def test_a_static_librdkafka_member_keeps_its_partitions_over_a_restart(server: KafkaServer) -> None:
    restart_a_static_member(server, Reader, lambda: server.node.broker.groups.describe(["g"])[0].generation_id)


class Owned(aiokafka.ConsumerRebalanceListener):
    """What an aiokafka consumer owns, and a way to wait for so many."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self._changed = asyncio.Event()

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self.partitions = {one.partition for one in assigned}
        self._changed.set()

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self.partitions = set()
        self._changed.set()

    async def wait(self, count: int) -> None:
        while len(self.partitions) != count:
            self._changed.clear()
            await self._changed.wait()


async def test_an_aiokafka_member_shares_a_group_with_the_bus() -> None:
    async with KafkaServer(num_partitions=PARTITIONS) as server, server.bus() as bus, asyncio.timeout(PATIENCE_S):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
            for number in range(8):
                await producer.send_and_wait("t", str(number).encode(), partition=number % PARTITIONS)
        theirs, owned = (
            aiokafka.AIOKafkaConsumer(
                bootstrap_servers=server.bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=50,
                partition_assignment_strategy=[RangePartitionAssignor],
            ),
            Owned(),
        )
        theirs.subscribe(["t"], listener=owned)
        async with theirs:
            read = [await theirs.getone() for _ in range(8)]
            assert sorted(int(one.value) for one in read) == list(range(8))
            await theirs.commit()
            ours = bus.new_consumer("t", group="g", partition_assignment_strategy="range")
            async with ours:

                async def polls() -> None:
                    while True:
                        assert not await ours.poll(50)

                polling = asyncio.create_task(polls())
                await owned.wait(PARTITIONS // 2)
                assert {one.partition for one in await ours.assigned()} == set(range(PARTITIONS)) - owned.partitions
                polling.cancel()
                await asyncio.wait([polling])
                assert polling.cancelled()
            await owned.wait(PARTITIONS)
            offsets = await bus.admin.group_offsets("g")
            assert {str(tp): found.offset for tp, found in offsets.items()} == {f"t-{n}": 2 for n in range(PARTITIONS)}
