"""Clients people have, against a server that asks who they are, what they may do, and how fast."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.clients.sockets import Socket
from tests.server.again import Again
from tests.tiers import quick

pytestmark = pytest.mark.system

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by an old door of importlib
    import kafka

PATIENCE_SECONDS = 30
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY = SecurityConfig(
    users={"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"},
    acls=True,
    super_users=("User:admin",),
    connection_failed_authentication_delay_ms=0,
)

LISTENER = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)


def serve(security: SecurityConfig = SECURITY) -> KafkaServer:
    return KafkaServer(config=ServerConfig(listeners=(LISTENER,), security=security), auto_create_topics=False)


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    with serve() as running:
        admin = administrator(running)
        admin.create_topics([NewTopic("mine", 1), NewTopic("theirs", 1)])["mine"].result(PATIENCE_SECONDS)
        grant(admin, "mine", AclOperation.READ, AclOperation.WRITE)
        grant(admin, "g-", AclOperation.READ, kind=ResourceType.GROUP, pattern=ResourcePatternType.PREFIXED)
        yield running


def administrator(running: KafkaServer) -> AdminClient:
    return AdminClient(settings(running, "admin"))


def settings(running: KafkaServer, user: str, mechanism: str = "PLAIN", password: str = "") -> dict[str, object]:
    return {
        "bootstrap.servers": running.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password or f"{user}-secret",
    }


def acl(
    name: str,
    operation: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)


def grant(
    admin: AdminClient,
    name: str,
    *operations: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    for created in admin.create_acls([acl(name, operation, kind, pattern) for operation in operations]).values():
        created.result(PATIENCE_SECONDS)


def create_topic(options: dict[str, object], name: str) -> None:
    admin = AdminClient(options)  # must not go before its answer
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_SECONDS)


def produce(options: dict[str, object], topic: str, value: bytes) -> KafkaError | None:
    """What became of one record."""
    outcome: list[KafkaError | None] = []
    producer = Producer({**options, "message.timeout.ms": PATIENCE_SECONDS * 1_000})
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(PATIENCE_SECONDS)
    return outcome[0]


def consume(options: dict[str, object], topic: str, group: str, count: int) -> list[bytes | None] | KafkaError:
    consumer = Consumer({**options, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{len(values)} of {count} records came"
            error = message.error()
            if error is not None:
                return error
            values.append(message.value())
    finally:
        consumer.close()
    return values


# librdkafka ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", quick(MECHANISMS, ["PLAIN", "SCRAM-SHA-512"]))
def test_librdkafka_produces_and_consumes(server: KafkaServer, mechanism: str) -> None:
    options = settings(server, "alice", mechanism)
    assert produce({**options, "enable.idempotence": True}, "mine", mechanism.encode()) is None
    values = consume(options, "mine", f"g-{mechanism}", 1)
    assert isinstance(values, list)
    assert values


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password(server: KafkaServer, mechanism: str) -> None:
    refused = threading.Event()
    codes: list[int] = []

    def note(error: KafkaError) -> None:
        codes.append(error.code())
        refused.set()

    options = settings(server, "alice", mechanism, "wrong")
    producer = Producer({**options, "error_cb": note, "log_level": 0})
    producer.poll(PATIENCE_SECONDS)
    assert refused.is_set()
    assert codes[0] == KafkaError._AUTHENTICATION


def test_librdkafka_may_not_what_no_acl_allows(server: KafkaServer) -> None:
    alice, bob = settings(server, "alice"), settings(server, "bob")
    denied = produce(alice, "theirs", b"x")
    assert denied is not None
    assert denied.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC)
    error = consume(alice, "mine", "other", 1)
    assert isinstance(error, KafkaError)
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    error = consume(bob, "mine", "g-bob", 1)
    assert isinstance(error, KafkaError)
    with pytest.raises(KafkaException) as refused:
        create_topic(alice, "new")
    assert refused.value.args[0].code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
    administrator_of_nothing = AdminClient(alice)
    with pytest.raises(KafkaException) as refused:
        administrator_of_nothing.delete_topics(["mine"])["mine"].result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_librdkafka_administrates_acls(server: KafkaServer) -> None:
    admin = administrator(server)
    binding = acl("elsewhere", AclOperation.DELETE)
    admin.create_acls([binding])[binding].result(PATIENCE_SECONDS)
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        "elsewhere",
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(PATIENCE_SECONDS) == [binding]
    assert admin.delete_acls([wanted])[wanted].result(PATIENCE_SECONDS) == [binding]
    assert admin.describe_acls(wanted).result(PATIENCE_SECONDS) == []


def test_librdkafka_administrates_scram_users(server: KafkaServer) -> None:
    admin = administrator(server)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8_192)
    change = UserScramCredentialUpsertion("carol", info, b"carol-secret")
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(PATIENCE_SECONDS)
    described = admin.describe_user_scram_credentials(["carol"])["carol"].result(PATIENCE_SECONDS)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8_192)
    ]
    carol = AdminClient(settings(server, "carol", "SCRAM-SHA-256"))
    assert carol.list_topics(timeout=PATIENCE_SECONDS).topics == {}, "in, and shown nothing"
    removal = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    for done in admin.alter_user_scram_credentials([removal]).values():
        done.result(PATIENCE_SECONDS)
    with pytest.raises(KafkaException):
        admin.describe_user_scram_credentials(["carol"])["carol"].result(PATIENCE_SECONDS)


@pytest.mark.parametrize("mechanism", quick(["SCRAM-SHA-512", "PLAIN"], 1))
def test_librdkafka_authenticates_again_and_again_on_its_connections(mechanism: str) -> None:
    """Sessions of half a second: records go on over several of them, on the same connections (KIP-368)."""
    security = SecurityConfig(users={"alice": "alice-secret"}, connections_max_reauth_ms=500)
    with serve(security) as running:
        options = settings(running, "alice", mechanism)
        create_topic(options, "t")
        again = Again(running, 4)
        producer = Producer({**options, "enable.idempotence": True})
        sent = 0
        while not again.enough.is_set():
            producer.produce("t", str(sent).encode())
            sent += 1
            assert producer.flush(PATIENCE_SECONDS) == 0
        assert consume(options, "t", "g", sent) == [str(number).encode() for number in range(sent)]


@pytest.mark.parametrize("direction", ["producer", "consumer"])
def test_librdkafka_is_throttled_by_its_quota(direction: str) -> None:
    """A little more than the windows hold: the client is told to wait, and all of it arrives."""
    rate, value = 100_000.0, bytes(10_000)
    count = int(10 * rate * 1.05 / len(value))
    security = SecurityConfig(users={"alice": "alice-secret"})
    with KafkaServer(config=ServerConfig(listeners=(LISTENER, Listener(port=0)), security=security)) as running:
        options = {**settings(running, "alice"), "bootstrap.servers": f"127.0.0.1:{running.listeners[0].port}"}
        create_topic(options, "t")
        with Socket(f"127.0.0.1:{running.listeners[1].port}") as admin:
            entity = [m.AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="alice")]
            ops = [m.AlterClientQuotasRequest.OpData(key=f"{direction}_byte_rate", value=rate)]
            entry = m.AlterClientQuotasRequest.EntryData(entity=entity, ops=ops)
            assert admin.call(m.AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0
        told: list[float] = []
        observed = {**options, "throttle_cb": lambda event: told.append(event.throttle_time)}
        producer = Producer(observed)
        for _ in range(count):
            producer.produce("t", value)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        producer.poll(0)
        assert consume({**observed, "fetch.message.max.bytes": 100_000}, "t", "g", count) == [value] * count
        assert max(told, default=0.0) > 0


# aiokafka ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_produces_and_consumes(server: KafkaServer, mechanism: str) -> None:
    options = {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice-secret",
    }
    async with AIOKafkaProducer(**options) as producer:
        sent = await producer.send_and_wait("mine", mechanism.encode())
    async with AIOKafkaConsumer(
        "mine", group_id=f"g-aio-{mechanism}", auto_offset_reset="earliest", **options
    ) as consumer:
        while (record := await consumer.getone()).offset < sent.offset:
            pass
    assert record.value == mechanism.encode()


# kafka-python --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", quick(MECHANISMS, ["SCRAM-SHA-256"]))
def test_kafka_python_produces_and_consumes(server: KafkaServer, mechanism: str) -> None:
    options = {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice-secret",
    }
    producer = kafka.KafkaProducer(**options)
    sent = producer.send("mine", mechanism.encode()).get(PATIENCE_SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer("mine", group_id=f"g-python-{mechanism}", auto_offset_reset="earliest", **options)
    for record in consumer:
        if record.offset >= sent.offset:
            break
    consumer.close()
    assert record.value == mechanism.encode()
