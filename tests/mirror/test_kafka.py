"""To Apache Kafka and back: the same mirror, real brokers, real markers."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from random import Random

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.security import security_of
from eventbus.backends.urls import open_backend
from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from eventbus.mirror import Mirror
from eventbus.mirror.journal import Journal
from eventbus.testing import RealKafka
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.kafka.listeners import Listeners
from tests.kafka.urls import bus_url
from tests.mirror.dying import Killed, Life, dying
from tests.mirror.logs import assert_copied, content, create, fill, opened, until, visible, write
from tests.support import examples

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]


@pytest.fixture
def topic() -> str:
    """One of this test's own: the broker is shared."""
    return f"mirror-{uuid.uuid4()}"


async def test_a_directory_moves_to_kafka_and_back(real: RealKafka, topic: str, tmp_path: Path) -> None:
    here, there, back = f"file://{tmp_path}/data", bus_url(real.bootstrap), f"file://{tmp_path}/back"
    async with opened(here) as source, opened(there) as cluster, opened(back) as returned:
        await create(source, topic, 3, retention_ms="-1")
        where, group = TopicPartition(topic, 0), f"billing-{topic}"
        async with EventBus(here) as bus:
            await fill(bus, topic, 3, Random(7), 60)
            await source.alter_group_offsets(group, {where: OffsetAndMetadata(7, "note")})
        async with Mirror(here, there, name=topic, topics=[topic], groups=group) as mirror:
            await mirror.copy()
            checks = await mirror.verify()
        assert [check.differences for check in checks] == [[], [], []]
        await assert_copied(source, cluster, topic, topic)
        [described] = await cluster.describe_topics([topic])
        assert described.configs["retention.ms"].value == "-1"
        async with Mirror(there, back, name=topic, topics=[topic], groups=group) as mirror:
            await mirror.copy()
        await assert_copied(cluster, returned, topic, topic)
        for number in range(3):
            first, last = [await visible(side, TopicPartition(topic, number)) for side in (source, returned)]
            assert [content(record) for record in last] == [content(record) for record in first]
        unread = set[int]()
        for side in (source, cluster, returned):
            committed = (await side.group_offsets(group))[where].offset
            unread.add(sum(record.offset >= committed for record in await visible(side, where)))
        assert len(unread) == 1
        assert (await returned.group_offsets(group))[where].metadata == "note"


async def test_killed_at_any_step_nothing_is_lost_or_doubled_on_kafka(real: RealKafka, topic: str) -> None:
    here, there, random = f"memory://{topic}", bus_url(real.bootstrap), Random(3)
    async with opened(here) as source, opened(there) as cluster, EventBus(here) as bus:
        await create(source, topic, 2)
        for _ in range(examples(3, 6)):
            await fill(bus, topic, 2, random, 8)
            life = Life(random.randint(5, 90))
            sides = [dying(open_backend(url, {}), life) for url in (here, there)]
            try:
                async with Mirror(sides[0], sides[1], name=topic, topics=[topic], groups=None) as mirror:
                    await mirror.copy()
            except Killed:
                continue
        async with Mirror(here, there, name=topic, topics=[topic], groups=None) as mirror:
            await mirror.copy()
            checks = await mirror.verify()
        await assert_copied(source, cluster, topic, topic)
        assert all(check.ok for check in checks)


async def test_the_first_millisecond_of_1970_moves_by_one(real: RealKafka, topic: str) -> None:
    """librdkafka takes 0 for "now"."""
    here, where = f"memory://{topic}", TopicPartition(topic, 0)
    async with opened(here) as source, opened(bus_url(real.bootstrap)) as cluster, EventBus(here) as bus:
        await create(source, topic)
        await bus.send(topic, b"first", timestamp_ms=0)
        await write(source, where, b"second")
        async with Mirror(here, bus_url(real.bootstrap), name=topic, topics=[topic], groups=None) as mirror:
            progress = await mirror.copy()
            [check] = await mirror.verify()
        assert progress.moved_timestamps == 1
        assert check.ok
        assert [record.timestamp_ms for record in await visible(cluster, where)] == [1, 1_700_000_000_000]


async def test_a_denied_topic_or_group_stops_none_of_its_neighbours(
    listeners: Listeners, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ACL of one topic ended the mirror. The topic is copied on when it is allowed again."""
    monkeypatch.setattr("eventbus.mirror.refusals._FIRST_PAUSE_SECONDS", 0.01)
    here, there = f"memory://{topic}", listeners.url("alice")
    denied, kept = TopicPartition(f"{topic}-denied", 0), TopicPartition(f"{topic}-kept", 0)
    journal = Journal(topic).topic
    write_to_denied = AclFilter(ResourceType.TOPIC, denied.topic, operation=Operation.WRITE)
    async with opened(here) as source, opened(bus_url(listeners.plaintext)) as admin:
        security = security_of(admin)
        for name in (denied.topic, kept.topic):
            await create(source, name)
            await create(admin, name)
            await source.alter_group_offsets(f"of-{name}", {TopicPartition(name, 0): OffsetAndMetadata(0)})
        await create(admin, journal, cleanup_policy="compact")
        allowed = [(ResourceType.TOPIC, name) for name in (denied.topic, kept.topic, journal)]
        allowed += [
            (ResourceType.TRANSACTIONAL_ID, f"eventbus-mirror.{topic}"),
            (ResourceType.GROUP, f"of-{kept.topic}"),
        ]
        assert (
            await security.create_acls([_acl(*one, Operation.ALL, Permission.ALLOW) for one in allowed]) == [None] * 5
        )
        async with Mirror(here, there, name=topic, refresh_seconds=0.1) as mirror, anyio.create_task_group() as tasks:
            tasks.start_soon(mirror.follow)
            for where in (denied, kept):
                await write(source, where, b"1")
            await until(lambda: mirror.progress.copied == 2)
            deny = _acl(ResourceType.TOPIC, denied.topic, Operation.WRITE, Permission.DENY)
            assert await security.create_acls([deny]) == [None]
            for where in (denied, kept):
                await write(source, where, b"2")
            await until(lambda: mirror.progress.copied == 3 and mirror.progress.refused)
            await write(source, kept, b"3")
            await until(lambda: mirror.progress.copied == 4)
            assert mirror.progress.refused.keys() == {denied}
            assert re.search(rf"{denied} .*offset 1 of.*Write on the topic", mirror.progress.refused[denied])
            assert {name: one.state for name, one in mirror.progress.groups.items()} == {
                f"of-{denied.topic}": "refused", f"of-{kept.topic}": "translated",
            }  # fmt: skip
            await security.delete_acls([write_to_denied])
            await until(lambda: mirror.progress.copied == 5)
            assert not mirror.progress.refused
            tasks.cancel_scope.cancel()
        for where in (denied, kept):
            copies = await visible(admin, where)
            assert [content(one) for one in copies] == [content(one) for one in await visible(source, where)]


def _acl(kind: ResourceType, name: str, operation: Operation, permission: Permission) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:alice", "*", operation, permission)
