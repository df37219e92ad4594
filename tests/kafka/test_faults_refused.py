"""What a real broker refuses: how it is said, and that nothing is lost or stored twice for it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.kafka.backend import KafkaBackend
from eventbus.backends.security import security_of
from eventbus.backends.urls import open_backend
from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from eventbus.errors import (
    ConfigError,
    EventBusError,
    HandlerError,
    IllegalGeneration,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    RebalanceInProgress,
    RecordTooLarge,
    TransactionAborted,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from eventbus.types import TopicPartition
from tests.cluster_faults.load import until
from tests.kafka.listeners import Listeners
from tests.kafka.targets import bus_url
from tests.ports import kept_ports
from tests.support import values_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

SOON = "topic.metadata.refresh.interval.ms=300"
AT_ONCE_SECONDS = 8
"""Far below the 30 s and more that librdkafka's own timeouts are; a busy machine included."""


async def start(url: str) -> None:
    async with EventBus(url):
        pass


@asynccontextmanager
async def anyone(listeners: Listeners) -> AsyncGenerator[EventBus]:
    async with EventBus(bus_url(listeners.plaintext)) as bus:
        yield bus


# Starting ------------------------------------------------------------------------------------------------------------


WRONG_PROTOCOLS = [
    ("login", "", r"speaks SASL_PLAINTEXT, and security\.protocol is PLAINTEXT: .*sasl\.mechanism=PLAIN"),
    ("tls", "", r"speaks SSL, and security\.protocol is PLAINTEXT"),
    ("plaintext", "?security.protocol=SSL", r"speaks PLAINTEXT, and security\.protocol is SSL"),
    ("tls", "?security.protocol=SSL", r"certificate"),
    (
        "login",
        "?security.protocol=SASL_PLAINTEXT&sasl.mechanism=SCRAM-SHA-256&sasl.username=alice&sasl.password=x",
        r"takes sasl\.mechanism=PLAIN, and it is SCRAM-SHA-256",
    ),
    (
        "login",
        "?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=alice&sasl.password=canary",
        r"Invalid username or password",
    ),
]


async def test_the_wrong_security_protocol(listeners: Listeners) -> None:
    async def check(listener: str, settings: str, message: str) -> None:
        address = getattr(listeners, listener)
        with pytest.raises(ConfigError, match=message) as caught:
            await start(f"kafka://{address}{settings}")
        assert address in str(caught.value)
        assert "canary" not in str(caught.value)

    with anyio.fail_after(AT_ONCE_SECONDS):
        async with anyio.create_task_group() as tasks:  # each is refused after a second
            for wrong in WRONG_PROTOCOLS:
                tasks.start_soon(check, *wrong)


async def test_a_broker_that_sends_its_clients_to_where_nobody_is(listeners: Listeners) -> None:
    """Its listener can be reached; what it advertises for it is a proxy that does not run."""
    begin = time.monotonic()
    asked = f"127.0.0.1:{listeners.proxied_port}"
    with pytest.raises(ConfigError, match=r"advertised\.listeners") as caught:
        await start(f"kafka://{asked}")
    assert asked in str(caught.value)
    assert f"127.0.0.1:{listeners.proxy_port}" in str(caught.value)
    assert time.monotonic() - begin < AT_ONCE_SECONDS


async def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.backends.kafka.backend._START_SECONDS", 0.5)
    (port,) = kept_ports(monkeypatch, 1)
    with pytest.raises(EventBusError, match=rf"127\.0\.0\.1:{port}.*refused") as caught:
        await start(f"kafka://127.0.0.1:{port}")
    assert caught.value.retriable


# Permissions ---------------------------------------------------------------------------------------------------------


async def allow(listeners: Listeners, kind: ResourceType, name: str, *operations: Operation) -> None:
    """Alice may do that."""
    backend = open_backend(listeners.url("admin"), {})
    assert isinstance(backend, KafkaBackend)
    await backend.start()
    acls = [Acl(kind, name, PatternType.LITERAL, "User:alice", "*", one, Permission.ALLOW) for one in operations]
    try:
        assert await security_of(backend).create_acls(acls) == [None] * len(acls)
    finally:
        await backend.aclose()


async def deny(listeners: Listeners, topic: str) -> None:
    """Alice may do nothing with the topic any more."""
    backend = open_backend(listeners.url("admin"), {})
    assert isinstance(backend, KafkaBackend)
    await backend.start()
    try:
        await security_of(backend).delete_acls([AclFilter(ResourceType.TOPIC, topic)])
    finally:
        await backend.aclose()


async def refused(call: Callable[[], Awaitable[object]], code: int, *named: str) -> None:
    """It is refused at once, by an error that names the resource and the ACL that is missing."""
    begin = time.monotonic()
    with pytest.raises(KafkaError) as caught:
        await call()
    assert caught.value.code == code
    assert not caught.value.retriable
    for word in named:
        assert word in str(caught.value)
    assert time.monotonic() - begin < AT_ONCE_SECONDS


async def test_a_topic_that_nobody_allowed(listeners: Listeners) -> None:
    async with anyone(listeners) as admin, EventBus(listeners.url("alice")) as bus:
        await admin.admin.create_topic("secret")
        await refused(lambda: bus.send("secret", b"x"), 29, "'secret'", "Write on the topic")
        await refused(lambda: values_of(bus, "secret"), 29, "'secret'", "Read to consume")
        assert await values_of(admin, "secret") == []


async def test_a_user_who_may_look_and_not_write(listeners: Listeners) -> None:
    """An idempotent producer is refused before its first record: librdkafka's is finished then."""
    async with anyone(listeners) as admin:
        await admin.admin.create_topic("looked-at")
        await allow(listeners, ResourceType.TOPIC, "looked-at", Operation.DESCRIBE)
        async with EventBus(listeners.url("alice")) as bus:
            await refused(lambda: bus.send("looked-at", b"x"), 31, "looked-at", "Write on the topic")
        assert await values_of(admin, "looked-at") == []


async def test_groups_and_transactional_ids_are_resources_too(listeners: Listeners) -> None:
    async with anyone(listeners) as admin:
        await admin.admin.create_topic("shared")
        await allow(listeners, ResourceType.TOPIC, "shared", Operation.READ, Operation.WRITE)
        async with EventBus(listeners.url("alice")) as bus:
            await bus.send("shared", b"1")
            assert await values_of(bus, "shared") == [b"1"]  # without a group none needs to be allowed

            async def join() -> None:
                async with bus.new_consumer("shared", group="theirs") as consumer:
                    await consumer.poll(timeout_ms=10_000)

            async def transact() -> None:
                async with bus.transaction("their-id") as transaction:
                    await transaction.send("shared", b"2")

            await refused(join, 30, "'theirs'", "Read on the group")
            await refused(transact, 53, "'their-id'", "Write on the transactional id")
            await allow(listeners, ResourceType.GROUP, "theirs", Operation.READ)
            await allow(listeners, ResourceType.TRANSACTIONAL_ID, "their-id", Operation.WRITE, Operation.DESCRIBE)
            await join()
            await transact()
        assert await values_of(admin, "shared") == [b"1", b"2"]


async def may_look_and_not_write(listeners: Listeners, name: str) -> None:
    """Alice may run transactions from ``name``-in to ``name``-out, but not write to the latter."""
    async with anyone(listeners) as admin:
        for topic, operation in ((f"{name}-in", Operation.READ), (f"{name}-out", Operation.DESCRIBE)):
            await admin.admin.create_topic(topic)
            await allow(listeners, ResourceType.TOPIC, topic, operation)
        await allow(listeners, ResourceType.GROUP, name, Operation.READ)
        for transactional_id in (name, f"{name}.copy.{name}-in-0"):
            await allow(listeners, ResourceType.TRANSACTIONAL_ID, transactional_id, Operation.WRITE, Operation.DESCRIBE)


@pytest.mark.parametrize("how", ["send", "send_many", "send_nowait", "send_nowait, awaited"])
async def test_a_denied_output_is_why_its_transaction_fails(listeners: Listeners, how: str) -> None:
    """The error was "Purged in queue", which counts as an outage: librdkafka gives up the transaction's records."""
    name = f"denied-{len(how)}"
    await may_look_and_not_write(listeners, name)
    async with EventBus(listeners.url("alice")) as bus:
        for _ in range(2):  # the next transaction is not harmed
            with pytest.raises(EventBusError, match=rf"'{name}'.*'{name}-out'.*Write on the topic") as caught:
                async with bus.transaction(name) as transaction:
                    match how:
                        case "send":
                            await transaction.send(f"{name}-out", b"x")
                        case "send_many":
                            await transaction.send_many(f"{name}-out", [b"x"] * 3)
                        case "send_nowait":
                            transaction.send_nowait(f"{name}-out", b"x")
                        case _:
                            await transaction.send_nowait(f"{name}-out", b"x")
            cause = caught.value.__cause__ if isinstance(caught.value, TransactionAborted) else caught.value
            assert isinstance(cause, KafkaError)
            assert cause.code == 29
            assert not cause.retriable


async def test_an_exactly_once_handler_whose_output_is_denied(listeners: Listeners) -> None:
    """It called its function again every half second, with health "ok"."""
    name = "denied"
    await may_look_and_not_write(listeners, name)
    calls: list[bytes] = []
    bus = EventBus(listeners.url("alice"))

    @bus.consumer(f"{name}-in", group=name, start="earliest", exactly_once=True)
    @bus.producer(f"{name}-out")
    async def copy(value: bytes) -> bytes:
        calls.append(value)
        return value

    async with anyone(listeners) as admin, bus:
        await admin.send(f"{name}-in", b"1")
        await until(lambda: bus.failure is not None)
        health = await bus.health()
        assert health.status == "failed"
        assert f"'{name}-out'" in health.reason
        assert "Write on the topic" in health.reason
        assert calls == [b"1"]


async def test_a_service_whose_group_is_not_allowed_says_so(listeners: Listeners) -> None:
    async with anyone(listeners) as admin:
        await admin.admin.create_topic("served")
        await allow(listeners, ResourceType.TOPIC, "served", Operation.READ)
    bus = EventBus(listeners.url("alice"))

    @bus.consumer("served", group="unheard-of")
    async def handle(value: bytes) -> None: ...

    with pytest.raises(HandlerError, match=r"'handle'.*group 'unheard-of'.*Read on the group"):
        async with bus:
            await bus.drain()


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "denied"])
async def test_a_topic_that_is_taken_away_stops_none_of_its_neighbours(listeners: Listeners, is_deleted: bool) -> None:
    """Each handler of it ended the bus: librdkafka reports a partition that the group has given up already."""
    away, kept = f"away-{is_deleted}", f"kept-{is_deleted}"
    handled: list[tuple[str, bytes]] = []
    bus = EventBus(bus_url(listeners.plaintext) if is_deleted else f"{listeners.url('alice')}&{SOON}")

    @bus.consumer(away, group=f"of-{away}", start="earliest")
    async def one(value: bytes) -> None:
        handled.append(("one", value))

    @bus.consumer([away, kept], group=f"of-{kept}", start="earliest")
    async def both(value: bytes) -> None:
        handled.append(("both", value))

    async with anyone(listeners) as admin:
        for topic in (away, kept):
            await admin.admin.create_topic(topic)
            await allow(listeners, ResourceType.TOPIC, topic, Operation.READ)
            await allow(listeners, ResourceType.GROUP, f"of-{topic}", Operation.READ)
            await admin.send(topic, b"1")
        async with bus:
            await until(lambda: len(handled) == 3)
            if is_deleted:
                await bus.admin.delete_topics([away])
            else:
                await deny(listeners, away)
                await until(lambda: bus.failure is not None)
            await admin.send(kept, b"2")
            await until(lambda: ("both", b"2") in handled)
            if is_deleted:
                health = await bus.health()
                assert health.status == "degraded"
                # "waits" before its group has given the partition up, "which it reads" afterwards
                assert away in health.reason and "does not exist" in health.reason
                await bus.drain()
            else:
                with pytest.raises(HandlerError, match=rf"{away}-0 cannot be read.*needs an ACL"):
                    await bus.drain()


# Topics and sizes ----------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_not_there(listeners: Listeners) -> None:
    async with anyone(listeners) as bus:
        await bus.admin.create_topic("invoices")
        for call in (bus.send("invoicse", b""), values_of(bus, "invoicse"), bus.admin.describe_topics(["invoicse"])):
            with pytest.raises(UnknownTopicOrPartition, match=r"'invoicse'.*did you mean 'invoices'"):
                await call


async def test_a_record_too_large_spoils_its_transaction_alone(listeners: Listeners) -> None:
    async with anyone(listeners) as bus:
        await bus.admin.create_topic("small-too", configs={"max.message.bytes": "2000"})
        with pytest.raises((RecordTooLarge, TransactionAborted), match="small-too"):
            async with bus.transaction("small-id") as transaction:
                await transaction.send("small-too", b"fits")
                await transaction.send("small-too", b"x" * 5_000)
        async with bus.transaction("small-id") as transaction:
            await transaction.send("small-too", b"fits again")
        assert await values_of(bus, "small-too") == [b"fits again"]


# Transactions --------------------------------------------------------------------------------------------------------


async def test_a_transaction_that_takes_too_long(listeners: Listeners) -> None:
    """The broker ends it; its producer hears so at its next step, and another takes its place."""
    async with anyone(listeners) as bus:
        await bus.admin.create_topic("slow")
        async with bus.new_producer(transactional_id="slow", transaction_timeout_ms=1_000) as producer:
            await producer.begin()
            await producer.send("slow", b"late")
            with anyio.fail_after(30):
                while (await bus.admin.describe_transactions(["slow"]))[0].state == "Ongoing":  # noqa: ASYNC110 - the broker's clock
                    await anyio.sleep(0.1)
            with pytest.raises((ProducerFenced, TransactionAborted), match=r"'slow'.*transaction_timeout_ms=1,000"):
                await producer.commit()
        async with bus.transaction("slow") as transaction:
            await transaction.send("slow", b"in time")
        assert await values_of(bus, "slow") == [b"in time"]


async def test_a_zombie_is_fenced(listeners: Listeners) -> None:
    """It pauses in its transaction, another goes on with its id; what it does when it wakes up has no effect."""
    async with anyone(listeners) as bus, anyone(listeners) as another:
        await bus.admin.create_topic("fenced")
        async with bus.new_producer(transactional_id="one") as zombie:
            await zombie.begin()
            await zombie.send("fenced", b"zombie 1")
            async with another.transaction("one") as transaction:
                await transaction.send("fenced", b"heir")
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                await zombie.send("fenced", b"zombie 2")
            with pytest.raises(ProducerFenced, match="another producer has taken over the transactional id 'one'"):
                await zombie.commit()
            with pytest.raises(ProducerFenced):
                await zombie.begin()
        assert await values_of(bus, "fenced") == [b"heir"]
        assert b"zombie 1" in await values_of(bus, "fenced", isolation_level="read_uncommitted")


@pytest.mark.slow  # a session takes six seconds; the kit has old generations and removed members
async def test_a_member_that_paused_commits_nothing_when_it_wakes_up(listeners: Listeners) -> None:
    """Its session ends while it stands still, its partition goes to another, and its late commit is refused."""
    quick = bus_url(listeners.plaintext, **{"max.poll.interval.ms": "6000"})
    async with EventBus(quick) as bus, anyone(listeners) as another:
        await bus.admin.create_topic("paused")
        await bus.send_many("paused", [b"%d" % number for number in range(10)])
        async with bus.new_consumer("paused", group="paused", max_poll_interval_ms=6_000) as sleeper:
            slept = [record.value for record in await sleeper.poll(max_records=5)]
            assert slept
            async with another.new_consumer("paused", group="paused") as heir:
                seen: list[bytes] = []
                with anyio.fail_after(60):
                    while len(seen) < 10:  # nobody polls the sleeper meanwhile
                        seen += [record.value for record in await heir.poll(timeout_ms=500)]
                await heir.commit()
                with pytest.raises((UnknownMemberId, IllegalGeneration, RebalanceInProgress)):
                    await sleeper.commit()
                assert (await another.admin.group_offsets("paused"))[TopicPartition("paused", 0)].offset == 10
        assert seen == [b"%d" % number for number in range(10)]
