"""confluent-kafka (librdkafka)."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.drivers.driving import SHRINKS, Security, main, until

connection: dict[str, Any] = {}
"""Settings of every client: how it gets into a secured server."""


def secure(security: Security) -> None:
    connection.update(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
            "ssl.ca.location": security.ca,
        }
    )


def consumer(bootstrap: str, group: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **connection,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
    )


def partitions_of(client: Consumer, topic: str) -> list[At]:
    return [At(topic, number, 0) for number in client.list_topics(topic, 10).topics[topic].partitions]


def polled(client: Consumer, into: list[Message], timeout_s: float = 0.1) -> None:
    for message in client.consume(500, timeout_s):
        if message.error():
            raise KafkaException(message.error())
        into.append(message)


def read(bootstrap: str, topic: str, count: int, isolation: str = "read_uncommitted") -> list[Message]:
    """``count`` records from the beginning, and what comes directly behind them."""
    client = consumer(bootstrap, "unused", isolation_level=isolation)
    client.assign(partitions_of(client, topic))
    seen: list[Message] = []
    until(lambda: len(seen) >= count, lambda: polled(client, seen))
    polled(client, seen, 0.3)
    client.close()
    return seen


def text(data: bytes | str | None) -> str:
    assert isinstance(data, bytes)
    return data.decode()


def rows(messages: list[Message]) -> list[list[Any]]:
    found: list[list[Any]] = []
    for message in messages:
        headers = {name: text(value) for name, value in message.headers() or []}
        found.append([message.partition(), message.offset(), text(message.key()), text(message.value()), headers])
    return sorted(found)


def _produce(bootstrap: str, topic: str, count: int, times: int = 1, **settings: Any) -> list[Any]:
    """``times``: what stands in a value so often."""
    failed: list[KafkaError] = []
    client = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, **connection, **settings})
    for i in range(count):
        client.produce(
            topic,
            f"v{i}" * times,
            f"k{i}",
            headers={"n": str(i)},
            on_delivery=lambda error, _: error and failed.append(error),
        )
    left = client.flush(30)
    return [*failed, *["not delivered"] * left]


def produce(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    return {"failed": _produce(bootstrap, topic, count), "records": rows(read(bootstrap, topic, count))}


def idempotent(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    failed = _produce(bootstrap, topic, count, **{"enable.idempotence": True})
    return {"failed": failed, "records": rows(read(bootstrap, topic, count))}


def compression(bootstrap: str, topic: str, count: int, codecs: list[str]) -> dict[str, Any]:
    failed = [
        error
        for codec in codecs
        for error in _produce(bootstrap, f"{topic}-{codec}", count, SHRINKS, **{"compression.type": codec})
    ]
    return {
        "failed": failed,
        "counts": {codec: len(read(bootstrap, f"{topic}-{codec}", count)) for codec in codecs},
    }


def transactions(bootstrap: str, source: str, target: str, group: str) -> dict[str, Any]:
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-writer"})
    writer.init_transactions(30)
    writer.begin_transaction()
    for i in range(5):
        writer.produce(target, f"aborted{i}")
    writer.flush(30)
    writer.abort_transaction(30)

    reader = consumer(bootstrap, group, isolation_level="read_committed")
    reader.subscribe([source])
    seen: list[Message] = []
    until(lambda: len(seen) >= 10, lambda: polled(reader, seen))
    writer.begin_transaction()
    for message in seen:
        writer.produce(target, message.value(), message.key())
    writer.send_offsets_to_transaction(reader.position(reader.assignment()), reader.consumer_group_metadata(), 30)
    writer.commit_transaction(30)
    (committed,) = reader.committed([At(source, 0)], 10)
    reader.close()
    return {
        "committed": [text(message.value()) for message in read(bootstrap, target, 10, "read_committed")],
        "all": len(read(bootstrap, target, 15)),
        "offset": committed.offset,
    }


def read_committed(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    return {"values": [text(message.value()) for message in read(bootstrap, topic, count, "read_committed")]}


class Member:
    """A consumer of a group that notes what it was given and what was taken from it."""

    def __init__(self, bootstrap: str, topic: str, group: str, **more: Any) -> None:
        self.messages: list[Message] = []
        self.held: set[int] = set()
        self.gave_up = 0
        self.assignments = 0
        self._client = consumer(bootstrap, group, **more)
        self._client.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _: Consumer, partitions: list[At]) -> None:
        self.assignments += 1
        self.held |= {at.partition for at in partitions}

    def _revoked(self, _: Consumer, partitions: list[At]) -> None:
        self.gave_up += len(partitions)
        self.held -= {at.partition for at in partitions}

    def turn(self) -> None:
        polled(self._client, self.messages, 0.05)

    def commit(self) -> None:
        self._client.commit(asynchronous=False)

    def close(self) -> None:
        self._client.close()


def group(bootstrap: str, topic: str, group: str, strategy: str) -> dict[str, Any]:
    more = {"partition_assignment_strategy": strategy, "session_timeout_ms": 10000, "heartbeat_interval_ms": 300}
    if strategy == "consumer":  # with KIP-848 both are the group's own settings
        more = {"group_protocol": "consumer"}
    one = Member(bootstrap, topic, group, **more)
    until(lambda: len(one.held) == 4, one.turn)
    two = Member(bootstrap, topic, group, **more)
    until(lambda: len(one.held) == len(two.held) == 2, lambda: (one.turn(), two.turn()))
    moved, shares = one.gave_up, [sorted(one.held), sorted(two.held)]
    failed = _produce(bootstrap, topic, 40)
    until(lambda: len(one.messages) + len(two.messages) >= 40, lambda: (one.turn(), two.turn()))
    one.commit()
    two.commit()
    seen = sorted(text(message.value()) for message in one.messages + two.messages)
    two.close()
    until(lambda: len(one.held) == 4, one.turn)
    one.close()
    return {"failed": failed, "moved": moved, "shares": shares, "seen": seen}


def static(bootstrap: str, topic: str, group: str) -> dict[str, Any]:
    one = Member(bootstrap, topic, group, group_instance_id="one", heartbeat_interval_ms=300)
    two = Member(bootstrap, topic, group, group_instance_id="two")
    until(lambda: len(one.held) == len(two.held) == 2, lambda: (one.turn(), two.turn()))
    before, held = one.assignments, sorted(two.held)
    two.close()
    two = Member(bootstrap, topic, group, group_instance_id="two")
    until(lambda: two.held, lambda: (one.turn(), two.turn()))
    for _ in range(10):
        one.turn()
    result = {"same": sorted(two.held) == held, "rebalances": one.assignments - before}
    one.close()
    two.close()
    return result


def admin(bootstrap: str, topic: str) -> dict[str, Any]:
    client = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1000000"})])[topic].result(20)
    created = client.describe_configs([resource])[resource].result(20)["retention.ms"].value
    entry = ConfigEntry("retention.ms", "2000000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([altered])[altered].result(20)
    changed = client.describe_configs([resource])[resource].result(20)["retention.ms"].value
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    until(lambda: len(client.list_topics(topic, 10).topics[topic].partitions) == 4, lambda: None)
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(10):
        producer.produce(topic, f"v{i}", partition=0)
    producer.flush(30)
    client.delete_records([At(topic, 0, 4)])[At(topic, 0)].result(20)
    (offsets,) = client.list_offsets({At(topic, 0): OffsetSpec.earliest()}).values()
    group = f"{topic}-group"
    reader = consumer(bootstrap, group)
    reader.commit(offsets=[At(topic, 0, 7)], asynchronous=False)
    reader.close()
    listed = [found.group_id for found in client.list_consumer_groups().result(20).valid]
    (found,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    committed = {at.partition: at.offset for at in found.result(20).topic_partitions}
    client.delete_consumer_groups([group])[group].result(20)
    client.delete_topics([topic])[topic].result(20)
    until(lambda: topic not in client.list_topics(timeout=10).topics, lambda: None)
    return {
        "created": created,
        "changed": changed,
        "start": offsets.result(20).offset,
        "listed": group in listed,
        "committed": committed[0],
        "gone": True,
    }


if __name__ == "__main__":
    main(
        {
            "produce": produce,
            "idempotent": idempotent,
            "compression": compression,
            "transactions": transactions,
            "read_committed": read_committed,
            "group": group,
            "static": static,
            "admin": admin,
        },
        secure,
    )
