"""ACLs that are missing on a Kafka with an authorizer delay an outbox and a handler's policy until they are granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from sqlalchemy import create_engine, func, select

from dlq import Retry
from eventbus import EventBus
from eventbus.backends.security import security_of
from eventbus.backends.urls import open_backend
from eventbus.coordinator.acls import Acl, Operation, PatternType, Permission, ResourceType
from outbox import Outbox
from tests.kafka.listeners import Listeners
from tests.kafka.test_faults_refused import anyone

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(300)]

TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
_PATIENCE_SECONDS = 90


async def allow(listeners: Listeners, kind: ResourceType, prefix: str, *operations: Operation) -> None:
    """Let alice do this with all resources whose names begin with the prefix."""
    backend = open_backend(listeners.url("admin"), {})
    await backend.start()
    acls = [Acl(kind, prefix, PatternType.PREFIXED, "User:alice", "*", one, Permission.ALLOW) for one in operations]
    try:
        assert await security_of(backend).create_acls(acls) == [None] * len(acls)
    finally:
        await backend.aclose()


async def _until_reason(bus: EventBus, holds: Callable[[str, str], bool]) -> None:
    """Return when status and reason of the bus's health are so."""
    with anyio.fail_after(_PATIENCE_SECONDS):
        while not holds((health := await bus.health()).status, health.reason):  # noqa: ASYNC110 - a broker's time is real
            await anyio.sleep(0.1)


async def _values(listeners: Listeners, topic: str, count: int) -> list[bytes | None]:
    """Return the first records of a topic when there are so many."""
    async with anyone(listeners) as admin, admin.new_consumer(topic, start="earliest") as consumer:
        found: list[bytes | None] = []
        with anyio.fail_after(_PATIENCE_SECONDS):
            while len(found) < count:
                found += [record.value for record in await consumer.poll(200)]
        return found


@pytest.mark.parametrize("patience_ms", [600_000, 0])
async def test_a_relay_that_may_not_write_to_one_of_its_topics(
    listeners: Listeners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_ms: int
) -> None:
    """Events of the other topic are published. Events that were quarantined for it are put back."""
    monkeypatch.setattr("outbox.relay.releases._LOOK_SECONDS", 0.2)
    run = f"acl-relay-{patience_ms}"
    opened, closed = f"{run}-open", f"{run}-closed"
    async with anyone(listeners) as admin:
        await admin.admin.create_topics([opened, closed])
    await allow(listeners, TOPIC, f"_outbox.{run}", CREATE, READ, DESCRIBE)
    await allow(listeners, GROUP, f"outbox.{run}", READ)
    await allow(listeners, TRANSACTIONAL_ID, f"outbox.{run}", WRITE, DESCRIBE)
    await allow(listeners, TOPIC, opened, WRITE, DESCRIBE)
    await allow(listeners, TOPIC, closed, DESCRIBE)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine, run)
    outbox.create_tables()
    bus = EventBus(listeners.url("alice"))
    bus.include(outbox.relay(patience_ms=patience_ms, poll_ms=(5, 50)))
    async with bus:
        with engine.begin() as connection:
            for topic in (closed, opened):
                for value in (b"1", b"2"):
                    outbox.publish(connection, topic, value, key=b"k")
        assert await _values(listeners, opened, 2) == [b"1", b"2"]
        await _until_reason(bus, lambda status, reason: status == "degraded" and bool(reason))
        if patience_ms:
            with engine.begin() as connection:
                assert connection.scalar(select(func.count()).select_from(outbox.tables.failed)) == 0
            assert closed in (await bus.health()).reason
        await allow(listeners, TOPIC, closed, WRITE)
        assert await _values(listeners, closed, 2) == [b"1", b"2"]
        await _until_reason(bus, lambda status, _: status == "ok")
    engine.dispose()


@pytest.mark.parametrize("missing", ["dead letters", "retry"])
async def test_a_policy_that_may_not_write_to_its_topic(listeners: Listeners, missing: str) -> None:
    run = f"acl-policy-{missing.replace(' ', '-')}"
    retry, dead, source = f"retry.{run}", f"dlq.{run}", run
    calls: list[bytes] = []
    async with anyone(listeners) as admin:
        await admin.admin.create_topics([source, retry, dead])
        await admin.send_many(source, [b"bad", b"good"])
    await allow(listeners, TOPIC, source, READ, DESCRIBE)
    await allow(listeners, GROUP, run, READ)
    await allow(listeners, TRANSACTIONAL_ID, f"{run}.", WRITE, DESCRIBE)
    await allow(listeners, TOPIC, retry, READ, DESCRIBE, *(() if missing == "retry" else (WRITE,)))
    await allow(listeners, TOPIC, dead, DESCRIBE, *(() if missing == "dead letters" else (WRITE,)))
    bus = EventBus(listeners.url("alice") + "&topic.metadata.refresh.interval.ms=1000")

    @bus.consumer(source, group=run, retry=Retry(immediate=0, delays=["100ms"]))
    async def handle(value: bytes) -> None:
        calls.append(value)
        if value == b"bad":
            raise ValueError(value)

    denied = retry if missing == "retry" else dead
    async with bus:
        await _until_reason(bus, lambda status, reason: status == "degraded" and repr(denied) in reason)
        await allow(listeners, TOPIC, denied, WRITE)
        assert await _values(listeners, dead, 1) == [b"bad"]
        await _until_reason(bus, lambda status, _: status == "ok")
    assert b"good" in calls


async def test_a_retry_topic_that_may_not_be_created_again(listeners: Listeners) -> None:
    run = "acl-create"
    retry, dead, source = f"retry.{run}", f"dlq.{run}", run
    got: list[bytes] = []
    async with anyone(listeners) as admin:
        await admin.admin.create_topics([source, retry, dead])
        await allow(listeners, TOPIC, source, READ, DESCRIBE)
        await allow(listeners, GROUP, run, READ)
        await allow(listeners, TOPIC, retry, READ, WRITE, DESCRIBE)
        await allow(listeners, TOPIC, dead, WRITE, DESCRIBE)
        bus = EventBus(listeners.url("alice") + "&topic.metadata.refresh.interval.ms=1000")

        @bus.consumer(source, group=run, retry=Retry(immediate=0, delays=["100ms"]))
        async def handle(value: bytes) -> None:
            got.append(value)

        async with bus:
            await _until_reason(bus, lambda status, _: status == "ok")
            await admin.admin.delete_topics([retry])
            await admin.send(source, b"1")
            await _until_reason(bus, lambda status, reason: status == "degraded" and "created again" in reason)
            await allow(listeners, TOPIC, retry, CREATE)
            await _until_reason(bus, lambda status, _: status == "ok" and got == [b"1"])
