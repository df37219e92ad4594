"""Control records: the markers that end a transaction on a partition (KIP-98).

A control batch holds one record. Key: ``version int16, type int16`` (0 abort, 1 commit). Value: ``version int16,
coordinator_epoch int32``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from eventbus.errors import CorruptRecord
from eventbus.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, RecordBatch, pack_batch
from eventbus.records.record import encode_record

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type of a marker."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """The end of one producer's transaction."""

    control_type: ControlType
    coordinator_epoch: int


def read_control_type(key: bytes | None) -> ControlType | None:
    """Return the type of a control record, from its key; None for a type this version does not know (readers skip
    it)."""
    if key is None or len(key) < _KEY.size:
        raise CorruptRecord(f"control record key {key!r} is shorter than {_KEY.size} bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"control record key has version {version}")
    return ControlType(number) if number in (0, 1) else None


def read_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """Return the marker in a control record, or None. Later versions may append fields, which are ignored."""
    control_type = read_control_type(key)
    if control_type is None:
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecord(f"control record value {value!r} is shorter than {_VALUE.size} bytes")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecord(f"control record value has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)


def marker_of(batch: RecordBatch) -> EndTransactionMarker | None:
    """Return the marker in a control batch; None for another type, or if compaction emptied it.

    Raises `CorruptRecord`.
    """
    columns = batch.columns()
    return read_marker(columns.keys[0], columns.values[0]) if columns.keys else None


def build_marker(
    marker: EndTransactionMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Build the control batch with ``marker`` for this producer; it takes one offset."""
    key = _KEY.pack(0, marker.control_type)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return pack_batch(
        encode_record(key, value),
        count=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
