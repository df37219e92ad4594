"""One real Apache Kafka broker for all cases of ``bench.py --kafka``, and what they share on it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from harness import Skip
from work import pairs

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
PATIENCE_S = 30.0
_BOOTSTRAP, _MISSING = "BENCH_KAFKA", "BENCH_KAFKA_MISSING"


@contextmanager
def one_broker() -> Iterator[None]:
    """A broker that the cases, each in a process of its own, find by `bootstrap`."""
    sys.path.insert(0, str(ROOT))
    from eventbus.testing import RealKafka

    with tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=os.environ.get("BENCH_DIR") or None) as folder:
        try:
            broker = RealKafka(Path(folder))
            broker.start()
        except (OSError, RuntimeError) as error:  # no Java, no Maven, no jars: the rows say so
            os.environ[_MISSING] = str(error).splitlines()[0]
            yield
            return
        os.environ[_BOOTSTRAP] = broker.bootstrap
        try:
            yield
        finally:
            broker.stop()


def bootstrap() -> str:
    """The broker's address. Raises Skip where there is none."""
    found = os.environ.get(_BOOTSTRAP)
    if found is None:
        raise Skip(f"no Apache Kafka here: {os.environ.get(_MISSING, 'bench.py --kafka starts one')}")
    return found


def new_topic(partitions: int = PARTITIONS) -> str:
    """An empty topic of a case's own."""
    name = f"bench-{uuid4().hex[:12]}"
    _create(name, partitions)
    return name


def filled_topic(n: int, size_bytes: int = 100) -> str:
    """A topic with ``n`` keyed records in batches of a busy producer; made once, read by many cases."""
    from confluent_kafka import Producer

    name = f"bench-{n}-of-{size_bytes}"
    if not _create(name, PARTITIONS):
        return name
    producer = Producer({"bootstrap.servers": bootstrap(), "linger.ms": 5, "batch.size": 65_536, "acks": "all"})
    for number, (key, value) in enumerate(pairs(n, size_bytes)):
        while True:
            try:
                producer.produce(name, value, key)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    if left := producer.flush(PATIENCE_S):
        raise RuntimeError(f"{left} records of {name} were not taken within {PATIENCE_S:.0f} s")
    return name


def _create(name: str, partitions: int) -> bool:
    """False: it exists."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap()})
    try:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True
