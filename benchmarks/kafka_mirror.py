"""``eventbus mirror`` to Kafka and from it, beside a bare loop that copies a topic in transactions: one broker.

The mirror does more: it notes which offset became which, and commits that with the records.
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

from harness import Meter, Numbers, case, scratch
from kafka_broker import PARTITIONS, PATIENCE_S, bootstrap, filled_topic, new_topic
from work import pairs

TRANSACTION = 20_000
"""Records of one transaction of the bare loop; the mirror commits after 100,000, 32 MB or a second."""


def numbers_of(meter: Meter, n: int) -> Numbers:
    return {**meter.rates("copy", n), "CPU s/M": meter.cpu_s / n * 1e6}


@case("confluent-kafka copy", n=300_000, quick=20_000)
def bare(n: int) -> Numbers:
    """``consume`` and ``produce``, from a topic of the broker to another one, read committed and in transactions."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    source, destination = filled_topic(n), new_topic()
    common = {"bootstrap.servers": bootstrap()}
    consumer = Consumer({**common, "group.id": uuid4().hex, "isolation.level": "read_committed"})
    producer = Producer(
        {**common, "transactional.id": uuid4().hex, "linger.ms": 5, "batch.size": 262_144,
         "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    consumer.assign([TopicPartition(source, number, 0) for number in range(PARTITIONS)])
    copied, in_transaction = 0, 0
    producer.begin_transaction()
    with Meter() as meter:
        while copied < n:
            for message in consumer.consume(1_000, 1.0):
                if message.error() is not None:
                    raise RuntimeError(message.error().str())
                place = message.partition(), message.timestamp()[1]
                producer.produce(destination, message.value(), message.key(), place[0], timestamp=place[1])
                copied, in_transaction = copied + 1, in_transaction + 1
            producer.poll(0)
            if in_transaction >= TRANSACTION:
                producer.commit_transaction(PATIENCE_S)
                producer.begin_transaction()
                in_transaction = 0
        producer.commit_transaction(PATIENCE_S)
    consumer.close()
    return numbers_of(meter, n)


def mirrored(source: str, destination: str, topic: str, n: int) -> Numbers:
    from eventbus.mirror import Mirror

    async def run() -> Numbers:
        async with Mirror(source, destination, topics=[topic], groups=None, name=uuid4().hex) as mirror:
            with Meter() as meter:
                progress = await mirror.copy()
        if progress.copied != n:
            raise RuntimeError(f"{progress.copied:,} records were copied")
        return numbers_of(meter, n)

    return asyncio.run(run())


@case("mirror to kafka", n=300_000, quick=20_000)
def to_kafka(n: int) -> Numbers:
    """From a directory."""
    from eventbus import EventBus

    topic = f"bench-{uuid4().hex[:12]}"

    async def fill(url: str) -> None:
        bus = EventBus(url)
        bus.topic(topic, partitions=PARTITIONS)
        async with bus, bus.new_producer() as producer:
            await producer.send_many(topic, [value for _, value in pairs(n)])

    with scratch() as folder:
        url = f"file://{folder}/log"
        asyncio.run(fill(url))
        return mirrored(url, f"kafka://{bootstrap()}", topic, n)


@case("mirror of kafka", n=300_000, quick=20_000)
def of_kafka(n: int) -> Numbers:
    """Into a directory."""
    with scratch() as folder:
        return mirrored(f"kafka://{bootstrap()}", f"file://{folder}/log", filled_topic(n), n)
