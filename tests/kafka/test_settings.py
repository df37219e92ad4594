"""What a kafka:// URL may say, what it may not, and what librdkafka is told in the end."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from eventbus import EventBus
from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.assignors import librdkafka_assignors
from eventbus.backends.kafka.group_metadata import pack_group_metadata, read_group_metadata
from eventbus.backends.kafka.settings import ClientSettings, read_settings
from eventbus.client.config import consumer_settings, producer_settings
from eventbus.errors import ConfigError, EventBusError
from eventbus.settings.setting import as_keyword
from eventbus.settings.table import PASSED, known, rows
from eventbus.types import Compression, GroupMetadata, IsolationLevel

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("rest", "bootstrap"),
    [
        ("one:9093", "one:9093"),
        ("one", "one:9092"),
        ("one,two:19092", "one:9092,two:19092"),
        ("one:9093, two/", "one:9093,two:9092"),
        ("[::1]:9093", "[::1]:9093"),
        ("[::1]", "[::1]:9092"),
    ],
)
def test_brokers(rest: str, bootstrap: str) -> None:
    assert read_settings(rest, {}).bootstrap == bootstrap


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka://", "needs a broker"),
        ("kafka://h:port", "'h:port' is no broker: kafka://host:9092"),
        ("kafka://one:9092;two:9092", "is no broker: kafka://host:9092, kafka://one:9092,two:9092"),
        ("kafka://h:9092/orders", "'h:9092/orders' is no broker"),
        ("kafka://h?securty.protocol=SSL", "did you mean 'security.protocol'"),
        ("kafka://h?securty_protocol=SSL", "did you mean 'security_protocol'"),
        ("kafka://h?lingerms=5", "did you mean 'linger_ms'"),
        ("kafka://h?linger.ms=soon", "linger.ms='soon': a whole number of milliseconds"),
        ("kafka://h?check.crcs=maybe", "check.crcs='maybe': true or false"),
        ("kafka://h?compression.type=brotli", "none, gzip, snappy, lz4 or zstd"),
        ("kafka://h?acks=1", "give it in the program"),
        ("kafka://h?oauth_cb=f", "a function that returns"),
        ("kafka://h?max.poll.records=5", "it is given per call"),
        ("kafka://h?enable.auto.commit=true", "offsets are committed as records finish"),
        ("kafka://h?group.id=g", "the key is group: each consumer has its own"),
        ("kafka://h?bootstrap.servers=h", "stand in the URL"),
        ("kafka://h?auto.create.topics=perhaps", "true or false"),
        ("kafka://h?fsync=os", "one of the embedded log"),
    ],
)
def test_what_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventBus(url)


def test_keywords_are_as_good_as_the_url() -> None:
    by_url = read_settings("h", {"sasl.username": "u", "auto.create.topics": "true"})
    by_keyword = read_settings("h", {"sasl_username": "u", "auto_create_topics": True})
    assert by_url == by_keyword
    assert by_url.auto_create_topics
    assert EventBus("kafka://h?security.protocol=SSL").url.startswith("kafka://h")


def test_secrets_are_not_shown() -> None:
    secrets = {
        "sasl.password": "canary-1",
        "ssl.key.password": "canary-2",
        "ssl.key.pem": "canary-3",
        "ssl.keystore.password": "canary-4",
        "sasl.oauthbearer.client.secret": "canary-5",
        "sasl.oauthbearer.config": "canary-6",
    }
    settings = read_settings("h", {**secrets, "sasl.username": "user"})
    assert "canary" not in repr(settings)
    assert "user" in repr(settings)
    assert settings.admin()["sasl.password"] == "canary-1"


def test_every_setting_is_one_of_librdkafkas() -> None:
    """Nonsense for a value, which it refuses in other words than a name it does not know."""
    names = {row.passed_as for row in rows(*PASSED, own=True).values()}
    for name in sorted(names):
        try:
            Producer({"bootstrap.servers": "", name: "\0"})
        except Exception as error:  # confluent-kafka raises what it likes for a value
            assert "No such configuration property" not in str(error), name
    assert {*read_settings("h", dict.fromkeys(known(*PASSED), "1")).given} <= names


def test_the_defaults_are_the_safe_ones() -> None:
    settings = ClientSettings("h:9092", {})
    producer = settings.producer(ProducerConfig())
    assert producer["enable.idempotence"] is True
    assert producer["acks"] == -1
    assert producer["queue.buffering.max.kbytes"] == 32_768
    plain = settings.producer(ProducerConfig(acks=1, enable_idempotence=False, compression=Compression.LZ4))
    assert plain["max.in.flight.requests.per.connection"] == 1
    assert plain["compression.type"] == "lz4"
    consumer = settings.consumer(ConsumerConfig(group="g"), "range")
    assert consumer["enable.auto.commit"] is False
    assert consumer["enable.auto.offset.store"] is False
    assert consumer["check.crcs"] is True
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["queued.max.messages.kbytes"] <= 65_536
    assert consumer["fetch.queue.backoff.ms"] <= 50, (
        "a full queue would be filled once a second: 133 k records of 100 B"
    )
    open_consumer = settings.consumer(ConsumerConfig(isolation=IsolationLevel.READ_UNCOMMITTED), "range")
    assert open_consumer["isolation.level"] == "read_uncommitted"


def test_the_url_speaks_for_clients_that_say_nothing() -> None:
    settings = read_settings(
        "h",
        {
            "heartbeat.interval.ms": "100",
            "session_timeout_ms": 7_000,
            "fetch.wait.max.ms": "20",
            "partition.assignment.strategy": "cooperative-sticky, range",
            "linger.ms": "5",
            "compression.type": "zstd",
            "client.rack": "a",
        },
    )
    quiet = settings.consumer(ConsumerConfig(group="g"), "range")
    assert (quiet["heartbeat.interval.ms"], quiet["session.timeout.ms"], quiet["fetch.wait.max.ms"]) == (100, 7_000, 20)
    assert settings.of_consumer(ConsumerConfig()).assignors == ("cooperative-sticky", "range")
    loud = settings.consumer(ConsumerConfig(group="g", session_timeout_ms=9_000), "range")
    assert (loud["heartbeat.interval.ms"], loud["session.timeout.ms"]) == (100, 9_000)
    assert settings.producer(ProducerConfig())["linger.ms"] == 5
    assert settings.producer(ProducerConfig())["compression.type"] == "zstd"
    assert settings.producer(ProducerConfig(linger_ms=7))["linger.ms"] == 7
    assert {one["client.rack"] for one in (quiet, settings.producer(ProducerConfig()), settings.admin())} == {"a"}


_OTHER = {
    "compression": "zstd", "assignors": "cooperative-sticky,range", "check_crcs": "false",
    "session_timeout_ms": "44000", "heartbeat_interval_ms": "2000",
}  # fmt: skip
"""Values for the URL, by the field; for the other fields 7."""


_OF_A_URL = [
    name.replace("_", ".")
    for name in ("client_id", *known("producer", "consumer", librdkafka_too=True))
    if name not in ("acks", "enable_idempotence", "partitioner")
]


@pytest.mark.parametrize("name", _OF_A_URL)
def test_a_keyword_takes_precedence_over_the_url_also_with_the_default_value(name: str) -> None:
    """The URL may give these settings to the clients of a bus."""
    row = known("producer", "consumer", "bus", librdkafka_too=True)[as_keyword(name)]
    fields = {"compression_type": "compression", "partition_assignment_strategy": "assignors"}
    field = fields.get(row.name, row.name)
    kind: Any = ConsumerConfig if row.scope == "consumer" else ProducerConfig
    read: Any = consumer_settings if kind is ConsumerConfig else producer_settings
    usual = getattr(kind(), field)
    settings = read_settings("h", {name: _OTHER.get(field, "7")})

    def effective(given: dict[str, Any]) -> Any:
        config = read(given)
        config = config if kind is ConsumerConfig else config.config
        chosen = settings.of_consumer(config) if kind is ConsumerConfig else settings.of_producer(config)
        if field == "client_id":
            assert settings.consumer(consumer_settings(given), "range")["client.id"] == chosen.client_id
            assert settings.producer(config)["client.id"] == chosen.client_id
        return getattr(chosen, field)

    keyword = {"compression": "compression_type", "assignors": "partition_assignment_strategy"}.get(field, field)
    value = "none" if field == "compression" else usual
    assert effective({}) != usual
    assert effective({keyword: value}) == usual


def test_a_client_may_have_settings_of_its_own() -> None:
    settings = read_settings("h", {"client.rack": "a", "delivery.timeout.ms": "90000"})
    own = settings.producer(ProducerConfig(client_id="shop", kafka={"client.rack": "b", "retry.backoff.ms": "7"}))
    assert (own["client.rack"], own["retry.backoff.ms"], own["client.id"]) == ("b", "7", "shop")
    assert settings.consumer(ConsumerConfig(kafka={"client.rack": "c"}), "range")["client.rack"] == "c"
    assert "delivery.timeout.ms" not in settings.consumer(ConsumerConfig(), "range")
    assert read_settings("h", {"client.id": "x"}).producer(ProducerConfig())["client.id"] == "x"


def test_a_group_may_be_of_the_new_protocol_by_itself() -> None:
    settings = ClientSettings("h:9092", {})
    config = ConsumerConfig(group="g", kafka={"group.protocol": "CONSUMER"})
    assert settings.has_new_protocol(config)
    assert not settings.has_new_protocol(ConsumerConfig(group="g"))
    Consumer(settings.consumer(config, "range")).close()


def test_records_of_a_transaction_are_given_up_before_it_is() -> None:
    """librdkafka refuses a producer whose records may take longer than its transactions."""
    settings = read_settings("h", {"delivery.timeout.ms": "120000"})
    assert settings.producer(ProducerConfig())["delivery.timeout.ms"] == "120000"
    told = settings.producer(ProducerConfig(transactional_id="t", transaction_timeout_ms=10_000))
    assert told["delivery.timeout.ms"] == 10_000
    assert Producer(told) is not None


def test_javas_names_are_understood() -> None:
    settings = read_settings("h", {"ssl.truststore.location": "ca.pem", "send.buffer.bytes": 65_536})
    assert settings.given == {"ssl.ca.location": "ca.pem", "socket.send.buffer.bytes": "65536"}


def test_keywords_of_a_log_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "eventbus")
    EventBus("kafka://h", fsync="interval", num_partitions=3, auto_create_topics=True)
    assert "kafka:// has no use for fsync, num_partitions: skipped" in caplog.text


def test_groups_of_the_new_protocol_leave_sessions_to_the_broker() -> None:
    settings = read_settings("h", {"group.protocol": "consumer", "session.timeout.ms": "7000"})
    told = settings.consumer(ConsumerConfig(group="g"), "range")
    assert not told.keys() & {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
    Consumer(told).close()


def test_librdkafka_takes_what_it_is_told() -> None:
    settings = ClientSettings("127.0.0.1:1", {})
    del_later = [
        Producer(settings.producer(ProducerConfig())),
        Producer(settings.producer(ProducerConfig(transactional_id="t", buffer_memory=1, batch_size=0))),
        AdminClient(settings.admin()),
    ]
    for config in (
        ConsumerConfig(),
        ConsumerConfig(group="g", session_timeout_ms=400_000, max_partition_fetch_bytes=100_000_000),
        ConsumerConfig(group="g", group_instance_id="i", fetch_min_bytes=0),
    ):
        Consumer(settings.consumer(config, "range,roundrobin")).close()
    assert del_later


@pytest.mark.parametrize(
    ("chosen", "names", "is_cooperative"),
    [
        (("range", "cooperative-sticky"), "range", False),
        (("cooperative-sticky", "range"), "cooperative-sticky", True),
        (("range", "roundrobin"), "range,roundrobin", False),
        (("sticky", "range"), "range", False),
    ],
)
def test_assignors(chosen: tuple[str, ...], names: str, is_cooperative: bool) -> None:
    assert librdkafka_assignors(chosen) == (names, is_cooperative)


@pytest.mark.parametrize(
    "group",
    [
        GroupMetadata("g"),
        GroupMetadata("gruppe ✓", 7, "member-1"),
        GroupMetadata("g", 2_147_483_647, "m", "instance"),
        GroupMetadata("g", 0, "", ""),
    ],
)
def test_group_metadata_there_and_back(group: GroupMetadata) -> None:
    assert read_group_metadata(pack_group_metadata(group)) == group


def test_group_metadata_of_others_is_refused() -> None:
    with pytest.raises(ValueError, match="not group metadata"):
        read_group_metadata(b"CGMDv3:....")
    with pytest.raises(ConfigError, match="zero byte"):
        pack_group_metadata(GroupMetadata("a\0b"))


async def test_nobody_at_the_address() -> None:
    """The error names the address, and why nobody answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventbus.backends.kafka.backend._START_SECONDS", 0.3)
        with pytest.raises(EventBusError, match=r"no broker of kafka://127\.0\.0\.1:1 has answered.*refused") as caught:
            async with EventBus("kafka://127.0.0.1:1"):
                pass
    assert caught.value.retriable
