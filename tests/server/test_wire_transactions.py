"""Transactions of unmodified clients: what they read, process and write counts once, and a fenced one is told so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from eventbus.server import Listener, ServerConfig
from eventbus.testing.server import KafkaServer
from tests.tiers import quick

pytestmark = pytest.mark.system

PATIENCE_S = 30
RECONNECT = {"reconnect.backoff.max.ms": 200}
QUICK = {"fetch.wait.max.ms": 50, "heartbeat.interval.ms": 100, **RECONNECT}
COUNT = 8


@pytest.fixture(params=quick(["file", "memory"], 1))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaServer]:
    """In memory, and on a disk that every commit waits for."""
    with KafkaServer(None if request.param == "memory" else f"file://{tmp_path}") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for result in admin.create_topics([NewTopic(topic, 2, 1) for topic in ("in", "out")]).values():
            result.result(PATIENCE_S)
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap})
        for number in range(COUNT):
            producer.produce("in", str(number), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        yield running


def producer_of(server: KafkaServer, transactional_id: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **RECONNECT,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def consumer_of(server: KafkaServer, group: str, topic: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUICK,
        }
    )
    consumer.subscribe([topic])
    return consumer


def read_out(server: KafkaServer) -> list[str]:
    """Everything a reader of committed records finds in ``out``."""
    consumer = consumer_of(server, "audit", "out")
    values: list[str] = []
    ended: set[int] = set()
    while len(ended) < 2:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error() is None:
            values.append(message.value().decode())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return values


def test_librdkafka_reads_processes_and_writes_each_record_once(server: KafkaServer) -> None:
    """Every third transaction is aborted and its records read again."""
    consumer, producer = consumer_of(server, "g", "in"), producer_of(server, "tx")
    done = attempts = 0
    while done < COUNT:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error() is not None:
            continue
        attempts += 1
        producer.begin_transaction()
        producer.produce("out", message.value(), partition=message.partition())
        position = [confluent_kafka.TopicPartition("in", message.partition(), message.offset() + 1)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), PATIENCE_S)
        if attempts % 3:
            producer.commit_transaction(PATIENCE_S)
            done += 1
        else:
            producer.abort_transaction(PATIENCE_S)
            consumer.seek(confluent_kafka.TopicPartition("in", message.partition(), message.offset()))
    committed = consumer.committed([confluent_kafka.TopicPartition("in", number) for number in (0, 1)], PATIENCE_S)
    assert [one.offset for one in committed] == [COUNT // 2, COUNT // 2]
    consumer.close()
    assert Counter(read_out(server)) == Counter(str(number) for number in range(COUNT))


def test_a_librdkafka_producer_that_is_replaced_is_fenced(server: KafkaServer) -> None:
    old = producer_of(server, "tx")
    old.begin_transaction()
    old.produce("out", "of the old one")
    assert old.flush(PATIENCE_S) == 0
    new = producer_of(server, "tx")
    new.begin_transaction()
    new.produce("out", "of the new one")
    new.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED and refused.value.args[0].fatal()
    assert read_out(server) == ["of the new one"]


def test_a_librdkafka_transaction_and_group_go_on_after_a_restart(tmp_path: Path) -> None:
    """The server comes back on its port: an open transaction is committed with what was written before and after."""
    url = f"file://{tmp_path}"
    with KafkaServer(url, num_partitions=2) as server:
        port = server.listeners[0].port
        plain = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
        plain.produce("in", "0", partition=0)
        assert plain.flush(PATIENCE_S) == 0
        consumer = consumer_of(server, "g", "in")
        assert next_value(consumer) == "0"
        producer = producer_of(server, "tx")
        producer.begin_transaction()
        producer.produce("out", "before", partition=0)
        position = [confluent_kafka.TopicPartition("in", 0, 1)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0
        generation_id = server.node.broker.groups.describe(["g"])[0].generation_id
    with KafkaServer(url, ServerConfig(listeners=(Listener(port=port),)), num_partitions=2) as server:
        producer.produce("out", "after", partition=0)
        producer.commit_transaction(PATIENCE_S)
        plain.produce("in", "1", partition=0)
        assert plain.flush(PATIENCE_S) == 0
        assert next_value(consumer) == "1"
        consumer.commit(asynchronous=False)
        assert server.node.broker.groups.describe(["g"])[0].generation_id == generation_id
        assert sorted(read_out(server)) == ["after", "before"]
        consumer.close()


def next_value(consumer: confluent_kafka.Consumer) -> str:
    """The next record; what librdkafka says of lost connections and ends of partitions is passed over."""
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error() is None:
            return message.value().decode()
        assert message.error().retriable() or message.error().code() == KafkaError._PARTITION_EOF, message.error()


async def test_aiokafka_reads_processes_and_writes_each_record_once() -> None:
    """It speaks version 0 of every request of transactions."""
    async with KafkaServer(num_partitions=2) as server, asyncio.timeout(PATIENCE_S):
        options = {"bootstrap_servers": server.bootstrap}
        async with aiokafka.AIOKafkaProducer(**options) as plain:
            for number in range(20):
                await plain.send_and_wait("in", str(number).encode(), partition=number % 2)
        consumer = aiokafka.AIOKafkaConsumer(
            "in", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, **options
        )
        producer = aiokafka.AIOKafkaProducer(transactional_id="tx", **options)
        async with consumer, producer:
            for attempt in range(20):
                record = await consumer.getone()
                offsets = {aiokafka.TopicPartition("in", record.partition): record.offset + 1}
                if attempt % 4 == 0:
                    await producer.begin_transaction()
                    await producer.send("out", b"given up", partition=record.partition)
                    await producer.abort_transaction()
                async with producer.transaction():
                    await producer.send("out", record.value, partition=record.partition)
                    await producer.send_offsets_to_transaction(offsets, "g")
            assert [await consumer.committed(aiokafka.TopicPartition("in", number)) for number in (0, 1)] == [10, 10]
        reader = aiokafka.AIOKafkaConsumer(
            "out", auto_offset_reset="earliest", isolation_level="read_committed", **options
        )
        async with reader:
            read = [(await reader.getone()).value for _ in range(20)]
        assert Counter(read) == Counter(str(number).encode() for number in range(20))


async def test_an_aiokafka_producer_that_is_replaced_is_fenced() -> None:
    async with KafkaServer() as server, asyncio.timeout(PATIENCE_S):
        options = {"bootstrap_servers": server.bootstrap, "transactional_id": "tx"}
        old, new = aiokafka.AIOKafkaProducer(**options), aiokafka.AIOKafkaProducer(**options)
        async with old:
            await old.begin_transaction()
            await old.send_and_wait("out", b"old")
            async with new:
                async with new.transaction():
                    await new.send_and_wait("out", b"new")
                with pytest.raises(ProducerFenced):
                    await old.commit_transaction()
