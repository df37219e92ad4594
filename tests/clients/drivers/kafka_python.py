"""kafka-python."""

from __future__ import annotations

import threading
import time
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.drivers.driving import SHRINKS, Security, main, until

connection: dict[str, Any] = {}
"""Settings of every client: how it gets into a secured server."""


def secure(security: Security) -> None:
    connection.update(
        security_protocol="SASL_SSL",
        sasl_mechanism=security.mechanism,
        sasl_plain_username=security.username,
        sasl_plain_password=security.password,
        ssl_cafile=security.ca,
    )


def polled(client: KafkaConsumer, into: list[Any], timeout_ms: int = 100) -> None:
    for found in client.poll(timeout_ms=timeout_ms).values():
        into += found


def read(bootstrap: str, topic: str, count: int, isolation: str = "read_uncommitted") -> list[Any]:
    """``count`` records from the beginning, and what comes directly behind them."""
    client = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        **connection,
    )
    client.assign([TopicPartition(topic, number) for number in sorted(client.partitions_for_topic(topic))])
    seen: list[Any] = []
    until(lambda: len(seen) >= count, lambda: polled(client, seen))
    polled(client, seen, 300)
    client.close()
    return seen


def rows(records: list[Any]) -> list[list[Any]]:
    return sorted(
        [
            record.partition,
            record.offset,
            record.key.decode(),
            record.value.decode(),
            {name: value.decode() for name, value in record.headers},
        ]
        for record in records
    )


def _produce(bootstrap: str, topic: str, count: int, times: int = 1, **settings: Any) -> None:
    """``times``: what stands in a value so often."""
    client = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, **connection, **settings)
    sent = [
        client.send(topic, f"v{i}".encode() * times, f"k{i}".encode(), headers=[("n", str(i).encode())])
        for i in range(count)
    ]
    for future in sent:
        future.get(timeout=30)
    client.close()


def produce(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    _produce(bootstrap, topic, count, enable_idempotence=False)
    return {"failed": [], "records": rows(read(bootstrap, topic, count))}


def idempotent(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    _produce(bootstrap, topic, count, enable_idempotence=True)
    return {"failed": [], "records": rows(read(bootstrap, topic, count))}


def compression(bootstrap: str, topic: str, count: int, codecs: list[str]) -> dict[str, Any]:
    for codec in codecs:
        _produce(bootstrap, f"{topic}-{codec}", count, SHRINKS, compression_type=codec)
    return {"failed": [], "counts": {codec: len(read(bootstrap, f"{topic}-{codec}", count)) for codec in codecs}}


def transactions(bootstrap: str, source: str, target: str, group: str) -> dict[str, Any]:
    writer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{group}-writer")
    writer.init_transactions()
    writer.begin_transaction()
    for i in range(5):
        writer.send(target, f"aborted{i}".encode())
    writer.flush()
    writer.abort_transaction()

    reader = KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    seen: list[Any] = []
    # A long poll: where its time ends while the group is being joined, 3.0 never applies the assignment that it gets.
    until(lambda: len(seen) >= 10, lambda: polled(reader, seen, 10_000))
    writer.begin_transaction()
    for record in seen:
        writer.send(target, record.value, record.key)
    at = TopicPartition(source, 0)
    writer.send_offsets_to_transaction({at: OffsetAndMetadata(seen[-1].offset + 1, "", -1)}, group)
    writer.commit_transaction()
    offsets: list[int] = []  # they count when the markers are written, a moment after the commit's answer
    until(lambda: offsets, lambda: offsets.extend(found for found in [reader.committed(at)] if found is not None))
    reader.close()
    writer.close()
    return {
        "committed": [record.value.decode() for record in read(bootstrap, target, 10, "read_committed")],
        "all": len(read(bootstrap, target, 15)),
        "offset": offsets[0],
    }


def read_committed(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    return {"values": [record.value.decode() for record in read(bootstrap, topic, count, "read_committed")]}


class Member(ConsumerRebalanceListener):
    """A consumer of a group that notes what it was given and what was taken from it.

    Each has a thread of its own: two that poll in turns wait out each other's rebalances, with a real Kafka too. It
    knows the topic before it joins, and polls for long: this library may drop an assignment that arrives between two
    polls, after an empty one that it made itself because it did not know the topic.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, **more: Any) -> None:
        self.records: list[Any] = []
        self.held: set[int] = set()
        self.gave_up = 0
        self.assignments = 0
        self.client = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10000,
            heartbeat_interval_ms=300,
            **more,
        )
        self.client.partitions_for_topic(topic)
        self.client.subscribe([topic], listener=self)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._leaving.is_set():
            polled(self.client, self.records, 1000)
        self.client.commit()
        self.client.close()

    def close(self) -> None:
        """Commit what was read, and leave."""
        self._leaving.set()
        self._thread.join()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assignments += 1
        self.held |= {at.partition for at in assigned}

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.gave_up += len(revoked)
        self.held -= {at.partition for at in revoked}


def settle(member: Member) -> None:
    """Wait for a second without a rebalance: this library's leader may join again by itself soon after the first."""
    seen = -1
    while seen != member.assignments:
        seen = member.assignments
        time.sleep(1)  # nothing tells that no rebalance is to come; too short, and the caller's check fails


def pause() -> None:
    time.sleep(0.02)  # between two looks at what the members' threads have seen


def group(bootstrap: str, topic: str, group: str, strategy: str) -> dict[str, Any]:
    assignor = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}[strategy]
    one = Member(bootstrap, topic, group, partition_assignment_strategy=[assignor])
    until(lambda: len(one.held) == 4, pause)
    two = Member(bootstrap, topic, group, partition_assignment_strategy=[assignor])
    until(lambda: len(one.held) == len(two.held) == 2, pause)
    moved, shares = one.gave_up, [sorted(one.held), sorted(two.held)]
    _produce(bootstrap, topic, 40)
    until(lambda: len(one.records) + len(two.records) >= 40, pause)
    seen = sorted(record.value.decode() for record in one.records + two.records)
    two.close()
    until(lambda: len(one.held) == 4, pause)
    one.close()
    return {"failed": [], "moved": moved, "shares": shares, "seen": seen}


def static(bootstrap: str, topic: str, group: str) -> dict[str, Any]:
    one = Member(bootstrap, topic, group, group_instance_id="one")
    two = Member(bootstrap, topic, group, group_instance_id="two")
    until(lambda: len(one.held) == len(two.held) == 2, pause)
    settle(one)
    before, held = one.assignments, sorted(two.held)
    two.close()
    two = Member(bootstrap, topic, group, group_instance_id="two")
    until(lambda: two.held, pause)
    time.sleep(0.5)  # for a rebalance that must not come: too short, and one may be missed
    result = {"same": sorted(two.held) == held, "rebalances": one.assignments - before}
    one.close()
    two.close()
    return result


def admin(bootstrap: str, topic: str) -> dict[str, Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)

    def retention() -> str:
        found = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return found["topic"][topic]["retention.ms"]["value"]

    client.create_topics(
        {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000000"}}},
        wait_for_metadata=True,
    )
    created = retention()
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "2000000"})])
    changed = retention()
    client.create_partitions({topic: 4})
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for i in range(10):
        producer.send(topic, f"v{i}".encode(), partition=0)
    producer.flush()
    producer.close()
    at = TopicPartition(topic, 0)
    client.delete_records({at: 4})
    group = f"{topic}-group"
    reader = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    reader.assign([at])
    start = reader.beginning_offsets([at])[at]
    reader.commit({at: OffsetAndMetadata(7, "", -1)})
    reader.close()
    listed = [found["group_id"] for found in client.list_groups()]
    committed = client.list_group_offsets({group: None})[group][at].offset
    client.delete_groups([group])
    client.delete_topics([topic])
    until(lambda: topic not in client.list_topics(), lambda: None)
    client.close()
    return {
        "created": created,
        "changed": changed,
        "start": start,
        "listed": group in listed,
        "committed": committed,
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
