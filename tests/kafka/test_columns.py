"""librdkafka's messages become columns: by partition, in order, without what is no record."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka import KafkaError as ClientError
from hypothesis import given
from hypothesis import strategies as st

from eventbus.backends.kafka.columns import Collected
from eventbus.types import TopicPartition

pytestmark = pytest.mark.system


def message(topic: str, partition: int, offset: int, *, headers: Any = None, time_ms: int = 5) -> Message:
    kind = TIMESTAMP_CREATE_TIME if time_ms >= 0 else TIMESTAMP_NOT_AVAILABLE
    return Message(
        topic=topic, partition=partition, offset=offset, key=b"k%d" % offset, value=b"v%d" % offset, headers=headers,
        timestamp=(kind, time_ms),
    )  # fmt: skip


def end_of(topic: str, partition: int, offset: int) -> Message:
    return Message(
        topic=topic, partition=partition, offset=offset, value=b"the end", timestamp=(TIMESTAMP_NOT_AVAILABLE, -1),
        error=ClientError(ClientError._PARTITION_EOF),
    )  # fmt: skip


def collect(*lots: list[Message], topics: set[str] | None = None) -> tuple[Collected, list[Message]]:
    collected, notices = Collected(), list[Message]()
    for lot in lots:
        notices += collected.add(lot, topics or {"t"})
    return collected, notices


@given(st.lists(st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 2), st.booleans()), min_size=1), min_size=1))
def test_every_record_lands_in_its_column(lots: list[list[tuple[str, int, bool]]]) -> None:
    """Of one topic or two, in runs or mixed, with gaps or without, over several lots."""
    ends: dict[TopicPartition, int] = {}
    made: list[list[Message]] = []
    for lot in lots:
        made.append([])
        for topic, partition, gap in lot:
            where = TopicPartition(topic, partition)
            ends[where] = ends.get(where, 0) + (2 if gap else 1)
            headers = [("h", b"%d" % ends[where])] if gap else None
            made[-1].append(message(topic, partition, ends[where], headers=headers, time_ms=ends[where]))
    collected, notices = collect(*made, topics={topic for topic, _ in ends})
    assert notices == []
    found = collected.records()
    assert found.keys() == ends.keys()
    for where, records in found.items():
        expected = [one for lot in made for one in lot if (one.topic(), one.partition()) == where]
        assert list(records.offsets) == [one.offset() for one in expected]
        assert records.keys == [one.key() for one in expected]
        assert records.values == [one.value() for one in expected]
        assert records.timestamps_ms == [one.offset() for one in expected]
        assert [records.record(n).headers for n in range(len(records))] == [
            tuple(one.headers() or ()) for one in expected
        ]
        assert records.next_offset == ends[where] + 1


def test_what_is_no_record_is_told_apart_wherever_it_stands() -> None:
    """Also where it fills a gap: 1, 2, the end at 4, 4 looks like four offsets in a row."""
    end = end_of("t", 0, 4)
    collected, notices = collect([message("t", 0, 1), message("t", 0, 2), end, message("t", 0, 4)])
    (records,) = collected.records().values()
    assert notices == [end] and list(records.offsets) == [1, 2, 4]


def test_a_header_name_that_the_client_cannot_read_costs_no_record() -> None:
    """A SystemError lost the whole poll, of all partitions, without a word."""
    asked: list[int | None] = []

    class Odd(Message):
        def headers(self) -> Any:
            asked.append(self.offset())
            if self.offset() in (2, 3):
                raise SystemError("returned a result with an exception set")
            return [("h", b"%d" % (self.offset() or 0))]

    lot: list[Message] = [Odd(topic="t", partition=0, offset=number, timestamp=(1, 5)) for number in range(1, 5)]
    (records,) = collect(lot)[0].records().values()
    assert [records.record(n).headers for n in range(4)] == [(("h", b"1"),), (), (), (("h", b"4"),)]
    assert asked.count(2) == asked.count(3) == 1, "a second answer holds a null pointer"


def test_only_notices() -> None:
    end = end_of("t", 0, 4)
    collected, notices = collect([end])
    assert notices == [end] and collected.records() == {}


def test_a_record_without_a_time_is_a_record() -> None:
    collected, notices = collect([message("t", 0, 1, time_ms=-1)])
    assert notices == [] and len(collected.records()[TopicPartition("t", 0)]) == 1


def test_a_topic_given_up_in_the_middle_of_a_poll_is_not_taken_for_another() -> None:
    collected, _ = collect([message("old", 0, 7), message("t", 0, 1)])
    assert {where: list(one.offsets) for where, one in collected.records().items()} == {("old", 0): [7], ("t", 0): [1]}
