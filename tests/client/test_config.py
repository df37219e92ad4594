"""URLs and settings: an error names the wrong one, and the right one next to it."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.urls import open_backend
from eventbus.client.config import consumer_settings, producer_settings
from eventbus.coordinator.assignors import RangeAssignor
from eventbus.errors import ConfigError, InvalidRequiredAcks
from eventbus.testing.faulty import FaultyBackend
from eventbus.types import Compression, IsolationLevel


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("fiel://./data", r"unknown scheme 'fiel'.*did you mean 'file'.*file://, kafka://, memory://"),
        ("./data", r"is no URL: write file://\./data"),
        ("file:./data", r"write file://\./data$"),
        ("file:/srv/data", r"write file:///srv/data$"),
        ("memory:", r"write memory://$"),
        ("localhost:9092", r"write kafka://localhost:9092 for a broker"),
        ("", r"write file://\./data for a directory"),
        (None, r"None is not a URL.*environment variable.*log_url\(\)"),
        (Path("data"), r"is a path.*f'file://\{path\}'"),
        (b"memory://", "is not a URL: write text"),
        (" memory://", "white space around it"),
        ("file://./data\n", r"'file://\./data\\n' is a URL with white space around it"),
        ("file://$HOME/data", r"nobody puts in what \$HOME stands for.*file://~/data"),
        ("file://", "needs a directory"),
        ("file://./x?fsyncs=os", r"unknown log setting 'fsyncs'.*did you mean 'fsync'"),
        ("file://./x?fsync=never", r"fsync='never': commit, interval or os$"),
    ],
)
def test_wrong_urls(url: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventBus(url)


def test_a_file_is_no_directory(tmp_path: Any) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        EventBus(f"file://{tmp_path}/x")


async def test_a_relative_path_is_resolved_where_the_bus_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    bus = EventBus("file://./data")
    for name in ("there", "here"):
        monkeypatch.chdir(tmp_path / name)
        async with bus:
            pass
    assert (tmp_path / "here" / "data").is_dir() and not [*(tmp_path / "there").iterdir()]


def test_kafka_without_its_extra_prints_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "eventbus-log\[kafka\]"'):
        EventBus("kafka://localhost:9092")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"linger": 5}, "unknown bus setting 'linger'.*did you mean 'linger_ms'"),
        ({"max.in.flight.request.per.connection": 1}, "the key is max_in_flight_requests_per_connection"),
        ({"max.in.flight.requests": 1}, "the key is max_in_flight_requests_per_connection"),
        ({"max.in.flight.requests.per.session": 1}, "the key is max_in_flight_requests_per_connection"),
        ({"metadata.broker.list": "h:9092"}, "the key is bootstrap_servers: the brokers stand in the URL"),
        ({"key.serializer": "x"}, "a type has a serde"),
        ({"value.deserializer": "x"}, "give the type: "),
        ({"interceptor.classes": "x"}, "give objects"),
        ({"partitioner.class": "x"}, "the key is partitioner"),
        ({"auto.commit.offset": False}, "the key is enable_auto_commit"),
        ({"auto.commit.interval": 1}, "the key is auto_commit_interval_ms"),
        ({"max.poll.records": 1}, r"poll\(max_records=...\)"),
        ({"zookeeper.connect": "localhost:2181"}, "clients do not connect to ZooKeeper"),
        ({"linger_ms": 5, "linger.ms": 6}, "linger_ms is given twice, as 5 and as 'linger.ms': 6"),
        ({"bootstrap.servers": "localhost:9092"}, "the brokers stand in the URL"),
        ({"group_id": "g"}, r"the key is group: each consumer has its own: @bus.consumer\(group="),
        ({"start": "latest"}, r"each consumer has its own: .*bus.new_consumer\(start=...\)"),
        ({"security.protocl": "SSL"}, "did you mean 'security.protocol'"),
        ({"security_protocl": "SSL"}, "did you mean 'security_protocol'"),
        ({"sasl.jaas.config": "..."}, "librdkafka does not read JAAS"),
        ({"session_timeout_ms": 2_000}, "must be below session_timeout_ms"),
        ({"value_serializer": str}, "a type has a serde"),
        ({"compression_type": "brotli"}, "none, gzip, snappy, lz4 or zstd"),
        ({"linger_ms": -1}, "linger_ms=-1: a whole number of milliseconds, at least 0"),
        ({"partitioner": "murmur"}, "unknown partitioner 'murmur'.*murmur"),
        ({"batch_size": "many"}, "producer setting.*batch_size"),
    ],
)
def test_wrong_settings(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventBus("memory://", **config)


def test_settings_of_a_network_are_passed_over_where_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program's keywords stay when its URL changes."""
    caplog.set_level("DEBUG", "eventbus")
    keywords: dict[str, Any] = {"client_rack": "a", "delivery_timeout_ms": 5_000, "sasl_password": "canary"}
    for url in ("memory://", f"file://{tmp_path}/log"):
        EventBus(url, **keywords, oauth_cb=lambda config: ("token", 0.0))
        scheme = url.partition(":")[0]
        assert f"{scheme}:// has no use for client.rack, delivery.timeout.ms, sasl.password, oauth_cb" in caplog.text
    assert "canary" not in caplog.text


def test_a_url_of_a_log_takes_that_logs_settings_alone(tmp_path: Path) -> None:
    for query in ("linger.ms=5", "client.rack=a", "session_timeout_ms=6000"):
        with pytest.raises(ConfigError, match=r"it is one of clients, and a keyword"):
            EventBus(f"file://{tmp_path}/log?{query}")


async def test_a_bus_speaks_for_its_clients(tmp_path: Path) -> None:
    """One that says otherwise has its own."""
    keywords: dict[str, Any] = {"session_timeout_ms": 9_000, "linger_ms": 3, "retry_backoff_ms": 50}
    backend = FaultyBackend(open_backend("memory://", {"auto_create_topics": True}))
    bus = EventBus("memory://", client_id="shop", backend=backend, **keywords)

    @bus.consumer("t", group="g", heartbeat_interval_ms=1_000, client_rack="b")
    async def handle(value: bytes) -> None: ...

    async with bus:
        producer = bus.new_producer(client_rack="a", request_timeout_ms=7_000)
        async with bus.new_consumer("t", session_timeout_ms=8_000, request_timeout_ms=7_000, client_rack=None):
            of_handler, of_reader = (one.config for one in backend.consumers)
        (of_producer,) = (one.config for one in backend.producers)
        await producer.aclose()
    assert (of_handler.session_timeout_ms, of_handler.heartbeat_interval_ms) == (9_000, 1_000)
    assert (of_handler.client_id, of_handler.kafka) == ("shop", {"client.rack": "b"})
    assert (of_reader.session_timeout_ms, of_reader.kafka) == (8_000, {"socket.timeout.ms": "7000"})
    assert (of_producer.linger_ms, of_producer.client_id) == (3, "shop")
    assert of_producer.kafka == {"client.rack": "a", "request.timeout.ms": "7000"}


async def test_a_producer_function_may_have_settings_of_its_own() -> None:
    backend = FaultyBackend(open_backend("memory://", {"auto_create_topics": True}))
    bus = EventBus("memory://", backend=backend, linger_ms=3)

    @bus.producer("own", compression_type="zstd", client_rack="a")
    async def own(value: bytes) -> bytes:
        return value

    @bus.producer("shared")
    async def shared(value: bytes) -> bytes:
        return value

    async with bus:
        for function in (own, shared, own, shared):
            await function(b"x")
        await bus.send("shared", b"x")
        of_own, of_all = (one.config for one in backend.producers)
    assert (of_own.compression, of_own.kafka, of_own.linger_ms) == (Compression.ZSTD, {"client.rack": "a"}, 3)
    assert (of_all.compression, of_all.kafka, of_all.linger_ms) == (Compression.NONE, {}, 3)
    with pytest.raises(ConfigError, match="did you mean 'compression_type'"):
        bus.producer("own", compresion_type="zstd")
    with pytest.raises(ConfigError, match="does not begin or commit"):
        bus.producer("own", transactional_id="t")


def test_acks_two_is_explained() -> None:
    with pytest.raises(InvalidRequiredAcks, match="no quorum"):
        EventBus("memory://", acks=2)


def test_kafkas_dotted_names_are_accepted() -> None:
    settings = producer_settings({"linger.ms": 7, "compression.type": "zstd", "acks": "all", "batch.size": "1000"})
    assert (settings.config.linger_ms, settings.config.compression) == (7, Compression.ZSTD)
    assert (settings.config.acks, settings.config.batch_size) == (-1, 1000)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"metadata.fetch.timeout.ms": 7}, {"max_block_ms": 7}),
        ({"block.on.buffer.full": "true"}, {"max_block_ms": 2**63 - 1}),
        ({"block_on_buffer_full": False}, {"max_block_ms": 60_000}),
        ({"block.on.buffer.full": True, "metadata_fetch_timeout_ms": 5}, {"max_block_ms": 2**63 - 1}),
        ({"metadata.fetch.timeout.ms": 7, "max.block.ms": 9}, {"max_block_ms": 9}),
        ({"timeout.ms": 3_000}, {"kafka": {"request.timeout.ms": "3000"}}),
    ],
)
def test_keys_that_kafka_removed_are_taken_as_their_successors_with_a_warning(
    config: dict[str, Any], expected: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The producer of Kafka 0.9 had them."""
    settings = producer_settings(config).config
    assert {name: getattr(settings, name) for name in expected} == expected
    assert "is gone since Kafka 0.9; it is read as " in caplog.text
    keywords: dict[str, Any] = {name.replace(".", "_"): value for name, value in config.items()}
    EventBus("memory://", **keywords)


def test_defaults_are_those_of_today_and_not_of_older_books() -> None:
    producer, consumer = producer_settings({}).config, ConsumerConfig()
    assert (producer.acks, producer.enable_idempotence) == (-1, True)  # since Kafka 3.0 (KIP-679)
    assert consumer.session_timeout_ms == 45_000  # since 3.0 (KIP-735), neither 3 nor 10 nor 30 seconds
    assert consumer.heartbeat_interval_ms < consumer.session_timeout_ms / 3  # in the background, not by `poll` (KIP-62)
    assert consumer.assignors == ("range", "cooperative-sticky") and consumer.enable_auto_commit is False


def test_a_key_said_twice_alike_is_no_contradiction() -> None:
    assert producer_settings({"linger_ms": 5, "linger.ms": 5}).config.linger_ms == 5


async def test_memory_logs_are_private_unless_named() -> None:
    async with EventBus("memory://") as one, EventBus("memory://") as two:
        await one.admin.create_topic("t")
        assert await two.admin.list_topics() == []
    async with EventBus("memory://shared") as one, EventBus("memory://shared") as two:
        await one.admin.create_topic("t")
        assert await two.admin.list_topics() == ["t"]


async def test_buses_of_one_process_share_a_directory(tmp_path: Any) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url) as one:
        await one.admin.create_topic("t")
        async with EventBus(f"file://{tmp_path}/./log") as two:
            await two.send("t", b"from two")
        await one.send("t", b"from one")
        async with one.new_consumer("t") as reader:
            assert [r.value for r in await reader.poll(max_records=5)] == [b"from two", b"from one"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("auto.commit.offset", "the key is enable_auto_commit"),
        ("auto_commit.enable", "the key is enable_auto_commit"),
        ("max.in.flight", "stored in order in any case"),
        ("auto.commit.interval", "the key is auto_commit_interval_ms"),
        ("max.poll.records", r"poll\(max_records=...\)"),
        ("rebalance.timeout.ms", "the key is max_poll_interval_ms"),
        ("session.timeout", "did you mean 'session.timeout.ms'"),
        ("group_instanceid", "did you mean 'group_instance_id'"),
        ("partition.assignment.stratgy", "did you mean 'partition.assignment.strategy'"),
        ("start_duration_ms", "unknown consumer setting"),
    ],
)
def test_misspelt_and_foreign_consumer_keys_name_the_real_one(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer_settings({key: 1})


def test_kafkas_consumer_keys() -> None:
    settings = consumer_settings(
        {
            "group.id": "g",
            "group.instance.id": "a",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": "2000",
            "max.poll.interval.ms": 60_000,
            "auto.offset.reset": "latest",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": "true",
            "auto.commit.interval.ms": 100,
            "partition.assignment.strategy": "roundrobin, sticky",
        }
    )
    assert msgspec.structs.replace(settings, given=None) == ConsumerConfig(
        group="g",
        group_instance_id="a",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=2_000,
        max_poll_interval_ms=60_000,
        start="latest",
        isolation=IsolationLevel.READ_UNCOMMITTED,
        enable_auto_commit=True,
        auto_commit_interval_ms=100,
        assignors=("roundrobin", "sticky"),
    )
    assert consumer_settings({"partition_assignment_strategy": RangeAssignor}).assignors == (RangeAssignor,)
    assert ConsumerConfig().assignors == ("range", "cooperative-sticky")  # Java's


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"start": "erliest"}, 'start=\'erliest\': "earliest", "latest", "none"'),
        ({"start": "by_duration"}, "by_duration:PT1H"),
        ({"start": "by_duration:1 hour"}, "write the duration as ISO 8601 has it"),
        ({"start": timedelta(hours=-1)}, "cannot be negative"),
        ({"start": "by_duration:-PT1H"}, "write the duration as ISO 8601 has it"),
        ({"partition_assignment_strategy": "stiky"}, "unknown assignor 'stiky'.*did you mean 'sticky'"),
        ({"partition_assignment_strategy": []}, "a group needs one"),
        ({"session_timeout_ms": 3_000}, "heartbeat_interval_ms=3000 must be below session_timeout_ms=3000"),
        ({"isolation_level": "serializable"}, "isolation_level='serializable': read_committed or read_uncommitted"),
        ({"isolation": "read_committed"}, "unknown consumer setting 'isolation': the key is isolation_level"),
        ({"assignors": "range"}, "'assignors': the key is partition_assignment_strategy"),
        ({"auto_offset_reset": "latest"}, "'auto_offset_reset': the key is start"),
        ({"group_id": "g"}, "'group_id': the key is group"),
    ],
)
def test_wrong_consumer_settings(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer_settings(config)


@pytest.mark.parametrize(
    ("start", "expected_ms"),
    [("by_duration:PT1H30M", 5_400_000), ("by_duration:P1D", 86_400_000), (timedelta(seconds=1.5), 1_500)],
)
def test_durations(start: Any, expected_ms: int) -> None:
    settings = consumer_settings({"start": start})
    assert (settings.start, settings.start_duration_ms) == ("by_duration", expected_ms)
