"""A topic, a partition or an ACL that is missing for a while delays its events, and only those."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select

from eventbus.backends.delivery import BatchDelivery
from eventbus.client.health import PartHealth
from eventbus.client.producer import Producer
from eventbus.errors import TopicAuthorizationFailed
from outbox.relay import releases
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import ON_SQLITE, Scene, running
from tests.support import until

pytestmark = pytest.mark.system


def is_waiting(scene: Scene, topic: str) -> Callable[[], bool]:
    return lambda: topic in scene.relay.health().details["waiting_topics"]


async def is_published(scene: Scene) -> None:
    await until(lambda: scene.count(scene.outbox.tables.events) == 0, poll_seconds=0.01)


@pytest.mark.parametrize("database", [*THREE, "asyncpg"], indirect=True)
async def test_a_topic_that_is_created_later_delays_its_events_and_no_others(database: Database) -> None:
    async with running(database) as scene:
        scene.publish("orders", b"placed", key=b"o-1")
        scene.publish("t", b"other", key=b"o-1")
        await until(is_waiting(scene, "orders"), poll_seconds=0.01)
        health = scene.relay.health()
        assert health.status == "degraded"
        assert health.reason.startswith("events for topic 'orders' wait: there is no topic 'orders'")
        assert await scene.drained() == [b"other"]
        scene.publish("orders", b"paid", key=b"o-1")
        await scene.bus.admin.create_topic("orders")
        await is_published(scene)
        assert await scene.drained("orders") == [b"placed", b"paid"]
        assert scene.relay.metrics().quarantined == 0
        assert scene.relay.health().status == "ok"


@ON_SQLITE
async def test_an_event_due_later_waits_for_its_topic_too(database: Database) -> None:
    async with running(database) as scene:
        scene.publish("orders", b"later", deliver_at=timedelta(0))
        await until(is_waiting(scene, "orders"), poll_seconds=0.01)
        await scene.bus.admin.create_topic("orders")
        await is_published(scene)
        assert await scene.drained("orders") == [b"later"]


@ON_SQLITE
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_a_topic_deleted_under_a_relay_delays_its_events(database: Database, delivery: Any) -> None:
    async with running(database, delivery=delivery) as scene:
        await scene.bus.admin.create_topic("orders")
        scene.publish("orders", b"before")
        await scene.bus.drain()
        await scene.bus.admin.delete_topics(["orders"])
        scene.publish("orders", b"after")
        scene.publish("t", b"other")
        await until(is_waiting(scene, "orders"), poll_seconds=0.01)
        assert await scene.drained() == [b"other"]
        await scene.bus.admin.create_topic("orders")
        await is_published(scene)
        assert await scene.drained("orders") == [b"after"]


@ON_SQLITE
async def test_a_partition_that_is_missing_delays_its_events_and_no_others_of_the_topic(database: Database) -> None:
    """A topic that is created again may have fewer partitions."""
    async with running(database) as scene:
        scene.publish("t", b"waits", partition=2)
        scene.publish("t", b"other", partition=1)
        await until(is_waiting(scene, "t"), poll_seconds=0.01)
        assert scene.relay.health().reason.startswith("events for partition 2 of topic 't' wait: topic 't' has")
        assert await scene.drained() == [b"other"]
        await scene.bus.admin.add_partitions("t", 3)
        await is_published(scene)
        assert sorted(await scene.drained()) == [b"other", b"waits"]
        assert scene.relay.metrics().quarantined == 0


@asynccontextmanager
async def no_acl(topic: str) -> AsyncIterator[None]:
    """The log refuses records of the topic as it stores them, as a Kafka does without an ACL for Write."""
    adder = Producer.adder

    async def denied(self: Producer, name: str) -> Any:
        add = await adder(self, name)

        def refuse(*record: Any) -> BatchDelivery:
            if name == topic:
                raise TopicAuthorizationFailed(f"not authorized for topic {topic!r}")
            return add(*record)

        return refuse

    with patch.object(Producer, "adder", denied):
        yield


@ON_SQLITE
async def test_an_acl_that_is_missing_delays_events_and_quarantines_none(database: Database) -> None:
    async with running(database) as scene:
        await scene.bus.admin.create_topic("orders")
        async with no_acl("orders"):
            for number in range(3):
                scene.publish("orders", b"%d" % number, key=b"k")
            scene.publish("t", b"other")
            await until(is_waiting(scene, "orders"), poll_seconds=0.01)
            assert await scene.drained() == [b"other"]
            assert "not authorized for topic 'orders'" in scene.relay.health().reason
        await is_published(scene)
        assert await scene.drained("orders") == [b"0", b"1", b"2"]
        assert scene.relay.metrics().quarantined == 0


@ON_SQLITE
async def test_quarantined_events_are_put_back_when_their_topic_exists(database: Database) -> None:
    """Also those that another relay, or an earlier one, has quarantined. Others stay where they are."""
    async with running(database, patience_ms=0) as scene:
        for number in range(3):
            scene.publish("orders", b"%d" % number, key=b"k")
        scene.publish("t", b"." * 50_000)
        await scene.bus.drain()
        assert scene.count(scene.outbox.tables.failed) == 4
    with patch.object(releases, "_LOOK_SECONDS", 0.05):
        async with running(database, outbox=scene.outbox) as scene:
            health: Callable[[], PartHealth] = scene.relay.health
            await until(lambda: health().status == "degraded", poll_seconds=0.01)
            assert health().details["refused"] == 4
            await scene.bus.admin.create_topic("orders")
            await until(lambda: scene.relay.metrics().published == 3, poll_seconds=0.01)
            assert await scene.drained("orders") == [b"0", b"1", b"2"]
            assert scene.relay.metrics().put_back == 3
            with database.plain.begin() as connection:
                assert list(connection.scalars(select(scene.outbox.tables.failed.c.topic))) == ["t"]


@ON_SQLITE
async def test_an_acl_is_tried_with_one_quarantined_event(database: Database) -> None:
    async with running(database, patience_ms=0) as scene:
        await scene.bus.admin.create_topic("orders")
        async with no_acl("orders"):
            for number in range(5):
                scene.publish("orders", b"%d" % number)
            await until(lambda: scene.count(scene.outbox.tables.failed) == 5, poll_seconds=0.01)
    with patch.object(releases, "_LOOK_SECONDS", 0.05):
        async with running(database, outbox=scene.outbox) as scene:
            await scene.bus.admin.create_topic("orders")
            async with no_acl("orders"):
                await until(is_waiting(scene, "orders"), poll_seconds=0.01)
                assert scene.count(scene.outbox.tables.failed) == 4
            await until(lambda: scene.relay.metrics().published == 5, poll_seconds=0.01)
