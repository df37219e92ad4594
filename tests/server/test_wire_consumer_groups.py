"""Groups of the consumer protocol (KIP-848) with unmodified clients: librdkafka's members, among themselves, beside
members of the classic protocol, and beside a bus of the server's own process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from eventbus.testing.server import KafkaServer
from tests.server.test_wire_groups import (
    PARTITIONS,
    PATIENCE_S,
    Reader,
    Watched,
    come_and_go,
    produce,
    restart_a_static_member,
)

pytestmark = pytest.mark.system


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    with KafkaServer(num_partitions=PARTITIONS, group_consumer_heartbeat_interval_ms=50) as running:
        create(running, "t")
        yield running


def create(server: KafkaServer, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_S)


class NewReader(Reader):
    """As its base, but of the consumer protocol."""

    protocol: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


def listing(server: KafkaServer) -> tuple[str, str]:
    """The group's type and state."""
    (found,) = server.node.broker.groups.list()
    return found.group_type, found.state


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go_and_each_record_is_read_once(server: KafkaServer, assignor: str) -> None:
    come_and_go(server, NewReader, **{"group.remote.assignor": assignor})
    assert listing(server) == ("consumer", "Empty")


def test_a_static_member_keeps_its_partitions_over_a_restart(server: KafkaServer) -> None:
    restart_a_static_member(server, NewReader, lambda: server.node.broker.groups.describe_consumers("g").group_epoch)


def test_a_group_goes_over_to_the_consumer_protocol_and_back_while_it_reads(server: KafkaServer) -> None:
    """Restarting one member after the other, as KIP-848 has it: nothing is read twice, nothing is left out."""
    watched = Watched()
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    with contextlib.ExitStack() as stack:
        old = Reader(server, "old", watched, **cooperative)
        stack.callback(old.stop)
        produce(server, range(100))
        watched.wait(lambda: len(watched.counts) == 100)
        assert listing(server) == ("classic", "Stable")
        new = NewReader(server, "new", watched)
        stack.callback(new.stop)
        watched.wait(lambda: len(old.owned) == len(new.owned) == 2)
        assert listing(server)[0] == "consumer"
        produce(server, range(100, 200))
        watched.wait(lambda: len(watched.counts) == 200)
        older = Reader(server, "older", watched, **cooperative)
        stack.callback(older.stop)
        watched.wait(lambda: sorted(map(len, (old.owned, new.owned, older.owned))) == [1, 1, 2])
        produce(server, range(200, 300))
        watched.wait(lambda: len(watched.counts) == 300)
        new.stop()
        watched.wait(lambda: len(old.owned) == len(older.owned) == 2)
        assert listing(server)[0] == "classic"
        produce(server, range(300, 400))
        watched.wait(lambda: len(watched.counts) == 400)
    assert watched.counts == Counter(str(number) for number in range(400))


def test_the_server_matches_a_pattern_and_finds_topics_that_come_later(server: KafkaServer) -> None:
    create(server, "orders-eu")
    create(server, "flights")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["^orders-.*"])
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    seen: list[str] = []
    for topic in ("orders-eu", "orders-us"):
        if topic == "orders-us":
            create(server, topic)
        producer.produce(topic, b"x")
        producer.produce("flights", b"x")
        assert producer.flush(PATIENCE_S) == 0
        (message,) = consumer.consume(1, PATIENCE_S)
        assert message.error() is None, message.error()
        seen.append(message.topic())
    assert seen == ["orders-eu", "orders-us"]
    (member,) = server.node.broker.groups.describe_consumers("g").members
    assert member.regex == "(^orders-.*)"  # librdkafka puts several together
    consumer.close()


def test_admin_clients_see_the_group(server: KafkaServer) -> None:
    watched = Watched()
    reader = NewReader(server, "reader", watched)
    produce(server, range(4))
    watched.wait(lambda: len(watched.counts) == 4)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    (found,) = admin.list_consumer_groups().result(PATIENCE_S).valid
    assert (found.group_id, found.state.name, found.type.name) == ("g", "STABLE", "CONSUMER")
    described = admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
    assert (described.state.name, described.type.name, described.partition_assignor) == (
        "STABLE",
        "CONSUMER",
        "uniform",
    )
    (member,) = described.members
    assert {one.partition for one in member.assignment.topic_partitions} == set(range(PARTITIONS))
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
    reader.stop()
    admin.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
    assert admin.list_consumer_groups().result(PATIENCE_S).valid == []


async def test_a_member_shares_its_group_with_a_bus_of_the_servers_process() -> None:
    settings = {"group_consumer_heartbeat_interval_ms": 50}
    async with KafkaServer(num_partitions=PARTITIONS, **settings) as server, server.bus() as bus:
        for number in range(8):
            await bus.send("t", str(number).encode(), partition=number % PARTITIONS)
        watched = Watched()
        theirs = NewReader(server, "theirs", watched)
        try:
            await asyncio.to_thread(watched.wait, lambda: len(watched.counts) == 8)
            async with bus.new_consumer("t", group="g") as ours:
                has_its_share = asyncio.Event()

                async def polls() -> None:
                    while True:
                        assert not await ours.poll(50)
                        if len(await ours.assigned()) == 2:
                            has_its_share.set()

                polling = asyncio.create_task(polls())
                await asyncio.to_thread(watched.wait, lambda: len(theirs.owned) == 2)
                async with asyncio.timeout(PATIENCE_S):
                    await has_its_share.wait()
                assert {one.partition for one in await ours.assigned()} == set(range(PARTITIONS)) - theirs.owned
                assert listing(server)[0] == "consumer"
                polling.cancel()
                await asyncio.wait([polling])
            await asyncio.to_thread(watched.wait, lambda: len(theirs.owned) == PARTITIONS)
        finally:
            await asyncio.to_thread(theirs.stop)
        offsets = await bus.admin.group_offsets("g")
        assert {str(tp): found.offset for tp, found in offsets.items()} == {f"t-{n}": 2 for n in range(PARTITIONS)}
