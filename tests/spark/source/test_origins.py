"""Origins by URL, and what a landing asks of them before Spark is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import ConfigError
from eventbus.log.storage import FileStorage
from eventbus.types import Record
from spark_sinks.source.origins import open_origin, topics_of
from spark_sinks.source.places import batch_options

if TYPE_CHECKING:
    from tests.spark.conftest import TestLog

RECORDS = [Record(None, b"v", (), 0)] * 3


@pytest.fixture
def shop(log: TestLog) -> TestLog:
    for topic in ("orders", "orders-old", "payments", "_schemas"):
        log.write(topic, RECORDS)
    return log


def test_a_directory_is_an_origin_by_path_and_by_url(shop: TestLog) -> None:
    for url in (shop.path, f"file://{shop.path}"):
        origin = open_origin(url, "orders")
        assert (origin.topic, origin.directory, origin.session_conf()) == ("orders", shop.path, {})
        assert origin.bounds() == {0: (0, 3)}


def test_what_is_not_there_is_told_with_the_nearest_name(shop: TestLog) -> None:
    with pytest.raises(ConfigError, match="there is no directory /nowhere"):
        open_origin("/nowhere", "orders")
    with pytest.raises(ConfigError, match="use file://"):
        open_origin("memory://", "orders")


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ("orders", ["orders"]),
        ("payments, orders,payments", ["payments", "orders"]),
        (["payments", "/orders.*/"], ["payments", "orders", "orders-old"]),
        ("/.*/", ["orders", "orders-old", "payments"]),
        ("_schemas", ["_schemas"]),
    ],
)
def test_topics_are_names_or_patterns(shop: TestLog, topics: str | list[str], expected: list[str]) -> None:
    assert topics_of(shop.path, topics) == expected


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ("", "names no topic: write 'orders'"),
        (" , ", "names no topic"),
        ("/invoices.*/", "matches no topic of .*; there are orders, orders-old, payments"),
        ("/(/", "is not a regular expression"),
    ],
)
def test_topics_that_are_none(shop: TestLog, topics: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        topics_of(shop.path, topics)


def test_a_batch_names_its_partitions_and_begins_where_nothing_is_said_at_the_beginning() -> None:
    assert batch_options("orders", {0: 5, 9: 1}, {0: 9, 1: 4}) == {
        "assign": '{"orders":[0,1]}',
        "startingOffsets": '{"orders":{"0":5,"1":-2}}',
        "endingOffsets": '{"orders":{"0":9,"1":4}}',
    }


def test_a_cluster_is_asked_nothing_before_it_must() -> None:
    origin = open_origin("kafka://127.0.0.1:1", "orders")
    assert (origin.topic, origin.directory) == ("orders", None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingoffsets": "latest"}, "startingOffsets is set by the landing"),
        ({"kafka.isolation.level": "read_uncommitted"}, "what is landed must be committed"),
    ],
)
def test_options_a_landing_cannot_leave_to_others(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_origin("kafka://127.0.0.1:1", "orders", options=options)


def test_a_topic_and_partitions_without_records_are_known(tmp_path: Path) -> None:
    """A partition has no directory before its first record; until then only the log's metadata names it."""
    config = BrokerConfig(fsync="os")
    broker = Broker.open(FileStorage(str(tmp_path)), config, now_ms=0, new_id=lambda: os.urandom(16))
    try:
        broker.create_topics([TopicSpec("orders", 2), TopicSpec("gone", 1)], 0)
        broker.delete_topics(["gone"], 0)
        broker.publish_checkpoints(0)
    finally:
        broker.close(0)
    origin = open_origin(str(tmp_path), "orders")
    assert origin.bounds() == {0: (0, 0), 1: (0, 0)}
    assert len(origin.topic_id()) == 22
    assert topics_of(str(tmp_path), "/.*/") == ["orders"]
    assert open_origin(str(tmp_path), "gone").bounds() == {}
