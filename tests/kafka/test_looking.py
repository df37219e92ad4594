"""What the backend asks a cluster for, whom it asks, and what it says when that is not possible."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.backends.kafka import backend as kafka_backend
from eventbus.backends.kafka.cluster_metadata import ClusterMetadata
from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.server import Listener, ServerConfig
from eventbus.testing import KafkaServer
from tests.ports import free_ports

pytestmark = pytest.mark.system


async def test_only_topics_in_use_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large cluster has thousands; who reads by pattern needs them all."""
    listed: list[None] = []
    monkeypatch.setattr(kafka_backend, "_LOOK_SECONDS", 0.05)
    every = ClusterMetadata.all_counts

    def counted(self: ClusterMetadata) -> dict[str, int]:
        listed.append(None)
        return every(self)

    monkeypatch.setattr(ClusterMetadata, "all_counts", counted)
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        await bus.send("orders", b"1")
        async with bus.new_consumer("orders", group="g") as consumer:
            assert [record.value for record in await consumer.poll(timeout_ms=20_000)] == [b"1"]
        await bus.admin.delete_topics("orders")
        assert listed == []
        await bus.admin.create_topic("visits")
        async with bus.new_consumer(pattern="vis.*", group="h"):
            assert listed


async def test_a_topic_that_is_missing_has_its_nearest_named() -> None:
    """Also one that nobody here has used before."""
    async with (
        KafkaServer() as server,
        EventBus(f"kafka://{server.bootstrap}") as here,
        EventBus(f"kafka://{server.bootstrap}") as there,
    ):
        await here.admin.create_topic("orders")
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
            await there.send("ordres", b"1")


async def test_other_brokers_are_asked_when_the_first_is_away() -> None:
    """Administration too: of the brokers in the URL, one is enough."""
    async with KafkaServer() as server, EventBus(f"kafka://127.0.0.1:1,{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        assert await bus.admin.list_transactions() == []
        assert await bus.admin.security.scram_users() == {}


async def test_an_advertised_address_that_nobody_reaches() -> None:
    (port,) = free_ports(1)
    listener = Listener(port=port, advertised_host="127.0.0.1", advertised_port=1)
    async with KafkaServer(config=ServerConfig(listeners=(listener,))):
        with pytest.raises(
            ConfigError, match=r"sends its clients to 127\.0\.0\.1:1, .*advertised\.listeners"
        ) as caught:
            async with EventBus(f"kafka://127.0.0.1:{port}"):
                pass
    assert f"kafka://127.0.0.1:{port} answers" in str(caught.value)
