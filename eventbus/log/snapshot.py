"""A snapshot of a partition's producers: the state after every record below an offset.

``<offset>.snapshot`` is Kafka's file, big-endian::

    version int16 (1) | crc uint32: CRC-32C of all that follows | count int32, then per producer:
        producer_id int64 | producer_epoch int16 | last_sequence int32 | last_offset int64 | offset_delta int32
        timestamp int64 | coordinator_epoch int32 | current_txn_first_offset int64

Kafka stores one batch of each producer and ignores what follows. All five batches are stored there, inside the CRC, and
the content of the segments' ``.txnindex`` files, which have no checksum::

    "ebu2" | per producer, as above: idle_since int64 (-1: it is active) | next_sequence int32 | count int8, then per
    batch, oldest first:
        base_sequence int32 | last_sequence int32 | base_offset int64 | timestamp int64
    count int32, then per segment with aborted transactions:
        base_offset int64 | entries int32 | crc uint32: CRC-32C of so many entries
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from eventbus.log.producer_state import CachedBatch, ProducerState, ProducerStates
from eventbus.records.crc import crc32c
from eventbus.records.sequence import decrement_sequence

SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhiqiqiq")
_MARK = b"ebu2"
_BATCHES = struct.Struct(">qib")
_BATCH = struct.Struct(">iiqq")
_SEGMENT = struct.Struct(">qiI")


class IndexedSegment(NamedTuple):
    """The aborted transactions that a segment's ``.txnindex`` held when the snapshot was taken."""

    base_offset: int
    entries: int
    crc: int


class Snapshot(NamedTuple):
    """The content of a snapshot file."""

    producers: dict[int, ProducerState]
    segments: list[IndexedSegment]


def encode_snapshot(states: ProducerStates, segments: Iterable[IndexedSegment] = ()) -> bytes:
    """Return the bytes of the file. Producers with open transactions are in the order of their transactions."""
    # `ProducerStates.restore` relies on the order: open transactions by their first offset.
    producers = sorted(states.producers.items(), key=lambda item: (item[1].transaction_start_offset, item[0]))
    kafkas = [_COUNT.pack(len(producers))]
    ours = [_MARK]
    for producer_id, producer in producers:
        batches = producer.batches
        last_sequence = last_offset = -1
        delta = 0
        if batches:
            base_sequence, last_sequence, base_offset, _ = batches[-1]
            delta = decrement_sequence(last_sequence, base_sequence)
            last_offset = base_offset + delta
        kafkas.append(
            _PRODUCER.pack(
                producer_id, producer.producer_epoch, last_sequence, last_offset, delta, producer.last_timestamp_ms,
                producer.coordinator_epoch, producer.transaction_start_offset,
            )
        )  # fmt: skip
        idle_since_ms = -1 if producer.is_active else producer.idle_since_ms
        ours.append(_BATCHES.pack(idle_since_ms, producer.next_sequence, len(batches)))
        ours += [_BATCH.pack(*batch) for batch in batches]
    listed = list(segments)
    ours.append(_COUNT.pack(len(listed)))
    ours += [_SEGMENT.pack(*segment) for segment in listed]
    body = b"".join(kafkas + ours)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> Snapshot | None:
    """Decode a file; return None if it is damaged, has another version, or lacks our part."""
    if len(data) < _HEAD.size:
        return None
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION or crc32c(memoryview(data)[_HEAD.size :]) != crc:
        return None
    try:
        return _decode(data)
    except (struct.error, ValueError):
        return None  # the CRC is right: written by Kafka, or by a later version


def _decode(data: bytes) -> Snapshot:
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    position = _HEAD.size + _COUNT.size
    producers: dict[int, ProducerState] = {}
    for _ in range(count):
        producer_id, epoch, _, _, _, timestamp_ms, coordinator_epoch, start = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size
        producer = producers[producer_id] = ProducerState(epoch)
        producer.last_timestamp_ms = timestamp_ms
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_start_offset = start
        producer.in_transaction = start >= 0
    # Kafka's part has no duplicates but the last batch, so retries of earlier batches would be stored twice. The log is
    # read instead.
    if data[position : position + len(_MARK)] != _MARK:
        raise ValueError("only Kafka's part")
    position += len(_MARK)
    for producer in producers.values():
        producer.idle_since_ms, producer.next_sequence, batches_count = _BATCHES.unpack_from(data, position)
        producer.is_active = producer.idle_since_ms < 0
        position += _BATCHES.size
        end = position + batches_count * _BATCH.size
        batches: list[CachedBatch] = list(_BATCH.iter_unpack(data[position:end]))
        producer.batches = batches
        position = end
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    if len(data) != position + count * _SEGMENT.size:
        raise ValueError("of another length than it says")
    return Snapshot(producers, [IndexedSegment(*each) for each in _SEGMENT.iter_unpack(data[position:])])
