"""What a consumer of kafka:// has in hand: ready, or put by because its partition is paused."""

from __future__ import annotations

import msgspec
import pytest

from eventbus.backends.kafka import prefetch_buffer
from eventbus.backends.kafka.prefetch_buffer import PrefetchBuffer
from eventbus.types import FetchedRecords, TimestampType, TopicPartition

pytestmark = pytest.mark.system

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def records(where: TopicPartition, first: int, count: int = 10) -> FetchedRecords:
    offsets = range(first, first + count)
    return FetchedRecords(
        where.topic, where.partition, offsets, [0] * count, [None] * count, [b"x" * 100] * count, None,
        TimestampType.CREATE_TIME, first + count,
    )  # fmt: skip


def taken(box: PrefetchBuffer) -> list[tuple[int, int]]:
    return [(one.partition, one.offsets[0]) for one in box.take()]


def test_what_is_paused_is_put_by_and_comes_back_in_order() -> None:
    box = PrefetchBuffer(room_bytes=100_000, fetch_bytes=1)
    box.add(records(A, 0))
    box.add(records(B, 0))
    box.pause(A)
    box.add(records(A, 10))
    assert (box.first_offset(A), box.first_offset(B)) == (0, 0)
    assert taken(box) == [(1, 0)] and not box
    assert not box.resume(A), "librdkafka was never told"
    box.add(records(A, 20))
    assert box.first_offset(A) == 0
    assert taken(box) == [(0, 0), (0, 10), (0, 20)]
    assert box.first_offset(A) is None


def test_pausing_and_resuming_twice_is_once() -> None:
    box = PrefetchBuffer(room_bytes=100_000, fetch_bytes=1)
    box.add(records(A, 0))
    box.pause(A)
    box.pause(A)
    assert not box.resume(A) and not box.resume(A)
    assert taken(box) == [(0, 0)]


def test_beyond_its_room_librdkafka_keeps_back_what_comes_next() -> None:
    box = PrefetchBuffer(room_bytes=3_000, fetch_bytes=1)
    box.pause(A)
    box.add(records(A, 0))
    assert box.overfull([A]) == {}
    box.add(records(A, 10))
    box.add(records(B, 0))
    assert box.overfull([A, B]) == {A: None}, "what is wanted is never kept back"
    assert box.paused_in_client == {A}
    assert box.resume(A), "librdkafka has to be told"
    assert taken(box) == [(1, 0), (0, 0), (0, 10)] and box.paused_in_client == set()


def test_what_was_put_by_for_long_makes_room_for_what_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_buffer, "_LONG_SECONDS", 0.0)
    box = PrefetchBuffer(room_bytes=1_500, fetch_bytes=1)
    box.pause(A)
    box.add(records(A, 100))
    monkeypatch.setattr(prefetch_buffer, "_LONG_SECONDS", 1_000.0)
    box.pause(B)
    box.add(records(B, 0))
    monkeypatch.setattr(prefetch_buffer, "_LONG_SECONDS", 0.0)
    assert box.overfull([B])[A] == 100, "it is fetched again from there"
    assert box.first_offset(A) is None
    assert box.resume(A) and not box


def test_a_partition_that_is_given_up_leaves_nothing() -> None:
    box = PrefetchBuffer(room_bytes=500, fetch_bytes=1)
    box.pause(A)
    box.add(records(A, 0))
    box.overfull([A])
    box.add(records(B, 0))
    box.drop(A)
    box.drop(B)
    assert not box and box.paused_in_client == set() and box.first_offset(A) is None
    box.add(records(A, 0))
    assert taken(box) == [(0, 0)], "its next owner may be this one again, and has not paused it"


def test_all_are_paused_only_where_there_is_something_to_pause() -> None:
    box = PrefetchBuffer(room_bytes=500, fetch_bytes=1)
    assert not box.are_paused([])
    box.pause(A)
    assert box.are_paused([A]) and not box.are_paused([A, B])


def test_parts_of_a_partition_are_joined_up_to_the_size_of_a_fetch() -> None:
    """A busy handler had one transaction for each poll, of about three records, and never caught up."""
    box = PrefetchBuffer(room_bytes=100_000, fetch_bytes=5_000)  # of two parts
    box.pause(A)
    for first in (0, 10, 20, 40):
        box.add(records(A, first))
        box.add(records(B, first))
    box.resume(A)
    found = box.take()
    assert [(one.partition, list(one.offsets)) for one in found] == [
        (1, list(range(20))), (1, [*range(20, 30), *range(40, 50)]),
        (0, list(range(20))), (0, [*range(20, 30), *range(40, 50)]),
    ]  # fmt: skip
    assert [one.next_offset for one in found] == [20, 50, 20, 50]
    assert all(len(one) == len(one.keys) == len(one.values) == len(one.timestamps_ms) for one in found)


def test_headers_stay_with_their_records_when_parts_are_joined() -> None:
    box = PrefetchBuffer(room_bytes=100_000, fetch_bytes=50_000)
    box.add(records(A, 0, 1))
    box.add(msgspec.structs.replace(records(A, 1, 1), headers=[(("a", b"1"),)]))
    [found] = box.take()
    assert found.headers == [(), (("a", b"1"),)]
