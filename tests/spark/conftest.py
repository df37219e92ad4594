"""One Spark session for all tests, and logs to read."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder
from eventbus.types import Compression, Record, TopicPartition
from tests.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_709_251_199_000  # 2024-02-29T23:59:59Z
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The shared session. Its JVM compiles little: these tests are all start and no throughput."""
    from spark_sinks import spark_session

    session = spark_session("tests", conf={"spark.driver.extraJavaOptions": QUICK_JVM})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture
def store(object_store: ObjectStore) -> ObjectStore:
    """A server of the S3 protocol with a new bucket."""
    object_store.make_bucket(f"lake-{uuid.uuid4().hex[:8]}")
    return object_store


class TestLog:
    """A log directory and a short-lived broker to fill it."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory)

    def write(
        self,
        topic: str,
        records: list[Record],
        *,
        partition: int = 0,
        partitions: int = 1,
        compression: Compression = Compression.NONE,
        per_batch: int = 100,
    ) -> None:
        """Append records in batches of ``per_batch``; the topic is created if need be."""
        config = BrokerConfig(fsync="os")
        broker = Broker.open(FileStorage(self.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
        try:
            if not broker.has_topic(topic):
                broker.create_topics([TopicSpec(topic, partitions)], NOW_MS)
            for start in range(0, len(records), per_batch):
                builder = BatchBuilder(compression)
                batch = records[start : start + per_batch]
                for record in batch:
                    builder.append(record.key, record.value, record.headers, record.timestamp_ms)
                now_ms = max(NOW_MS, *(record.timestamp_ms for record in batch))  # a broker refuses the far future
                broker.produce(TopicPartition(topic, partition), builder.build(), now_ms)
            broker.publish_checkpoints(NOW_MS)
        finally:
            broker.close(NOW_MS)

    def delete_before(self, topic: str, offset: int) -> None:
        """What retention does, to the first partition."""
        config = BrokerConfig(fsync="os")
        broker = Broker.open(FileStorage(self.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
        try:
            broker.delete_records(TopicPartition(topic, 0), offset, NOW_MS)
            broker.publish_checkpoints(NOW_MS)
        finally:
            broker.close(NOW_MS)


@pytest.fixture
def log(tmp_path: Path) -> TestLog:
    directory = tmp_path / "data"
    directory.mkdir()
    return TestLog(directory)
