"""The readers that Spark calls, without Spark: what a stream plans, batch by batch."""

from __future__ import annotations

import os
import pickle
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import OffsetOutOfRange, UnknownTopicOrPartition
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage
from eventbus.types import Record, TopicPartition
from spark_sinks.source.datasource import BatchReader, Range, StreamReader
from spark_sinks.source.options import parse_options
from tests.log.test_producers import SMALL, Writer
from tests.spark.conftest import NOW_MS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.conftest import TestLog

pytestmark = pytest.mark.system


def places(offsets: dict[str, Any]) -> dict[str, Any]:
    """Offsets of a stream without the ids of their topics."""
    return {topic: partitions for topic, partitions in offsets.items() if topic}


def plain(count: int, first: int = 0) -> list[Record]:
    return [Record(b"k%d" % (n % 7), b"v%d" % n, (), NOW_MS + n) for n in range(first, first + count)]


def stream(log: TestLog, **options: str) -> StreamReader:
    return StreamReader(parse_options({"path": log.path, "subscribe": "orders", **options}, stream=True))


def values(reader: Any, partitions: list[Any]) -> list[bytes]:
    """What tasks read, each with a copy of the reader as Spark sends it."""
    rows: list[bytes] = []
    for partition in partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            rows += batch.column("value").to_pylist()
    return rows


def test_a_stream_goes_on_where_the_batch_before_ended(log: TestLog) -> None:
    log.write("orders", plain(5), per_batch=2)
    reader = stream(log)
    start = reader.initialOffset()
    assert places(start) == {"orders": {"0": 0}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (places(end), values(reader, reader.partitions(start, end))) == (
        {"orders": {"0": 5}},
        [b"v%d" % n for n in range(5)],
    )
    assert reader.latestOffset(end, ReadAllAvailable()) == end == reader.reportLatestOffset()
    log.write("orders", plain(1, 5))
    more = reader.latestOffset(end, ReadAllAvailable())
    assert values(reader, reader.partitions(end, more)) == [b"v5"]


def test_available_now_stops_at_what_there_was(log: TestLog) -> None:
    log.write("orders", plain(5), partitions=2)
    reader = stream(log, maxOffsetsPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    log.write("orders", plain(5, 5))
    log.write("orders", plain(5), partition=1)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert places(first) == {"orders": {"0": 3, "1": 0}}
    last = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert places(last) == {"orders": {"0": 5, "1": 0}}
    assert reader.latestOffset(last, reader.getDefaultReadLimit()) == last
    assert places(reader.reportLatestOffset()) == {"orders": {"0": 10, "1": 5}}


def test_new_partitions_and_topics_begin_at_their_beginning(log: TestLog) -> None:
    log.write("orders", plain(5))
    options = {"path": log.path, "subscribePattern": "orders.*", "startingOffsets": "latest"}
    reader = StreamReader(parse_options(options, stream=True))
    start = reader.initialOffset()
    broker = Broker.open(FileStorage(log.path), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.add_partitions("orders", 2, NOW_MS)
    broker.close(NOW_MS)
    log.write("orders", [Record(None, b"new partition", (), NOW_MS)], partition=1)
    log.write("orders.eu", [Record(None, b"new topic", (), NOW_MS)])
    end = reader.latestOffset(start, ReadAllAvailable())
    assert places(end) == {"orders": {"0": 5, "1": 1}, "orders.eu": {"0": 1}}
    assert values(reader, reader.partitions(start, end)) == [b"new partition", b"new topic"]


def test_a_batch_waits_for_enough_records_but_not_for_ever(log: TestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    log.write("orders", plain(3))
    reader = stream(log, minOffsetsPerTrigger="10", maxTriggerDelay="30s", maxOffsetsPerTrigger="20")
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
    assert places(first) == {"orders": {"0": 3}}, "the first batch never waits"
    log.write("orders", plain(5, 3))
    assert reader.latestOffset(first, ReadMaxRows(20)) == first
    log.write("orders", plain(5, 8))
    second = reader.latestOffset(first, ReadMaxRows(20))
    assert places(second) == {"orders": {"0": 13}}, "ten are there"
    log.write("orders", plain(1, 13))
    clock += 29
    assert reader.latestOffset(second, ReadMaxRows(20)) == second
    clock += 1
    assert places(reader.latestOffset(second, ReadMaxRows(20))) == {"orders": {"0": 14}}


def test_available_now_does_not_wait_for_more(log: TestLog) -> None:
    log.write("orders", plain(3))
    reader = stream(log, minOffsetsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    assert places(reader.latestOffset(first, ReadMaxRows(1))) == {"orders": {"0": 2}}


def test_what_retention_took_stops_a_stream_or_is_passed_over(log: TestLog) -> None:
    log.write("orders", plain(10))
    old = stream(log).initialOffset()
    broker = Broker.open(FileStorage(log.path), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.delete_records(TopicPartition("orders", 0), 4, NOW_MS)
    broker.publish_checkpoints(NOW_MS)
    broker.close(NOW_MS)
    with pytest.raises(OffsetOutOfRange, match=r"the query reads orders-0 from offset 0 .* but the log has 4 to 10"):
        stream(log).latestOffset(old, ReadAllAvailable())
    lossy = stream(log, failOnDataLoss="false")
    end = lossy.latestOffset(old, ReadAllAvailable())
    assert values(lossy, lossy.partitions(old, end)) == [b"v%d" % n for n in range(4, 10)]


def test_a_topic_that_is_gone_is_named(log: TestLog) -> None:
    log.write("orders", plain(1))
    log.write("payments", plain(1))
    start = stream(log).initialOffset()
    broker = Broker.open(FileStorage(log.path), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.delete_topics(["orders"], NOW_MS)
    broker.close(NOW_MS)
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'orders'"):
        stream(log).latestOffset(start, ReadAllAvailable())


def test_a_topic_that_was_made_anew_is_not_read_on_from_the_old_offset(log: TestLog) -> None:
    """It has more records than the old one had: no offset says that its first ones would be missed."""
    log.write("orders", plain(5))
    reader, careless = stream(log), stream(log, failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    careless.initialOffset()
    broker = Broker.open(FileStorage(log.path), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.delete_topics(["orders"], NOW_MS)
    broker.close(NOW_MS)
    log.write("orders", plain(9))
    for again in (reader, stream(log)):  # the stream, or one that is started again with the checkpoint
        with pytest.raises(OffsetOutOfRange, match="the topic orders was deleted and made again"):
            again.latestOffset(start, ReadAllAvailable())
        with pytest.raises(OffsetOutOfRange, match="the topic orders was deleted and made again"):
            again.partitions(start, start)
    end = careless.latestOffset(start, ReadAllAvailable())
    assert values(careless, careless.partitions(start, end)) == [b"v%d" % n for n in range(5, 9)]


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 4))
def test_tasks_together_read_each_committed_record_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, per_task: int, tasks: int
) -> None:
    """Whatever producers committed and aborted, and however ranges are cut."""
    directory: Path = tmp_path_factory.mktemp("log")
    storage, where = FileStorage(str(directory)), TopicPartition("orders", 0)
    writer = Writer(PartitionLog.open(storage, where, LogConfig(**SMALL), now_ms=0))
    writer.work(Random(seed), 30)
    stable = writer.log.last_stable_offset
    checkpoints.write_offsets(storage, checkpoints.LAST_STABLE_OFFSETS, {where: stable}, sync=False)
    options = {"path": str(directory), "subscribe": "orders", "minPartitions": str(tasks)}
    reader = BatchReader(parse_options({**options, "maxRecordsPerPartition": str(per_task)}, stream=False))
    partitions = reader.partitions()
    assert len(partitions) >= stable / per_task
    expected = [value for offset, value in sorted(writer.committed) if offset < stable]
    assert values(reader, partitions) == expected


def test_what_compaction_left_is_read_once(log: TestLog) -> None:
    """Offsets that are gone lie at the edges of ranges, too: no task may fail there, nor read its neighbour's."""
    config = BrokerConfig(fsync="os")
    broker = Broker.open(FileStorage(log.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    compacted = {"cleanup.policy": "compact", "internal.segment.bytes": "2000"}
    broker.create_topics([TopicSpec("orders", 1, configs=compacted)], NOW_MS)
    broker.close(NOW_MS)
    log.write("orders", plain(400), per_batch=5)
    broker = Broker.open(FileStorage(log.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.clean_now(NOW_MS + 10**9)
    broker.publish_checkpoints(NOW_MS)
    broker.close(NOW_MS)
    options = {"path": log.path, "subscribe": "orders"}
    whole = BatchReader(parse_options(options, stream=False))
    left = values(whole, whole.partitions())
    assert 0 < len(left) < 100
    for per_task in (1, 3, 50):
        cut = BatchReader(parse_options({**options, "maxRecordsPerPartition": str(per_task)}, stream=False))
        pieces = cut.partitions()
        assert len(pieces) >= 400 // per_task
        assert values(cut, pieces) == left


def test_a_range_is_what_spark_shows_of_a_task(log: TestLog) -> None:
    log.write("orders", plain(3))
    (piece,) = BatchReader(parse_options({"path": log.path, "subscribe": "orders"}, stream=False)).partitions()
    assert isinstance(piece, Range)
    assert piece.offsets == (TopicPartition("orders", 0), 0, 3)
    assert LogReader(log.path).offsets("orders") == {0: (0, 3)}
