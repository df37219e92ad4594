"""Writes kafka_consumer_group_records.json: what Apache Kafka 4.3 stores of a group of the consumer protocol.

.venv/bin/python tests/vectors/make_consumer_group_records.py

A static member that is away, one with a pattern, one of the classic protocol: every kind of record, and what
ConsumerGroupDescribe told of the group they make up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import confluent_kafka.admin  # noqa: E402 - the path is set above

from eventbus.coordinator.assignors import Subscription  # noqa: E402
from eventbus.coordinator.consumer_protocol import encode_subscription  # noqa: E402
from eventbus.server import Listener  # noqa: E402
from eventbus.testing import RealKafka  # noqa: E402
from tests.server.consumer_group_answers import Consumer, create, describe, ready  # noqa: E402
from tests.server.groups import Member  # noqa: E402
from tests.server.wire import WireClient  # noqa: E402
from tests.vectors.make_consumer_group_answers import AT_ONCE  # noqa: E402

OFFSETS = "__consumer_offsets"


async def make_group(node: Any) -> dict[str, Any]:
    async with WireClient(node) as client, WireClient(node) as another:
        await create(client, "orders", 4)
        await create(client, "flights", 1)
        static, pattern = Consumer(client, "a"), Consumer(client, "c")
        await ready(client, "g")
        told = await static.join("orders", instance_id="i1", rack_id="r1", server_assignor="range")
        assert told.error_code == 0, told
        await pattern.join("none", subscribed_topic_regex="f.*|orders")
        async with asyncio.timeout(20):
            while not pattern.told:  # another thread of Kafka's looks for the topics
                assert (told := await pattern.done()).error_code == 0, told
        await static.done()
        old = Member(another, version=3, metadata=encode_subscription(Subscription(topics=("orders",))))
        old.protocol_type, old.protocols = "consumer", ("range", "x")
        await old.join()
        await pattern.done()
        await static.beat(member_epoch=-2, instance_id="i1")
        found = await describe(client)
    members = [
        [
            one.member_id, one.instance_id, one.rack_id, one.member_epoch, one.subscribed_topic_names,
            one.subscribed_topic_regex, one.member_type,
            *([[topic.topic_name, topic.partitions] for topic in share.topic_partitions]
              for share in (one.assignment, one.target_assignment)),
        ]
        for one in found.members
    ]  # fmt: skip
    return {
        "state": found.group_state, "epoch": found.group_epoch, "target": found.assignment_epoch,
        "assignor": found.assignor_name, "members": sorted(members),
    }  # fmt: skip


def read_records(bootstrap: str) -> list[tuple[str, str | None]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "-", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(OFFSETS, 0, 0)])
    records: list[tuple[str, str | None]] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "no end of the partition"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return records
        records.append((message.key().hex(), None if message.value() is None else message.value().hex()))


def main() -> None:
    properties = {**AT_ONCE, "offsets.topic.num.partitions": "1"}
    with tempfile.TemporaryDirectory() as folder, RealKafka(Path(folder), properties=properties) as kafka:
        host, port = kafka.bootstrap.split(":")
        described = asyncio.run(make_group(SimpleNamespace(listeners=(Listener(host=host, port=int(port)),))))
        records = read_records(kafka.bootstrap)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        found = admin.describe_topics(confluent_kafka.TopicCollection(["orders", "flights"]))
        ids = {name: str(topic.result(20).topic_id) for name, topic in found.items()}
    told = {
        "made_by": "Apache Kafka 4.3.1",
        "topics": ids,
        "described": described,
        "records": records,
    }
    text = json.dumps(told, indent=1) + "\n"
    (HERE / "kafka_consumer_group_records.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
