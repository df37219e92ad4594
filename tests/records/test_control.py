"""Transaction markers."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord

from eventbus.errors import CorruptRecord
from eventbus.records import (
    ControlType,
    EndTransactionMarker,
    RecordBatch,
    build_marker,
    check_crc,
    fetched_records,
    read_control_type,
    read_header,
    read_marker,
)

pytestmark = pytest.mark.system


@pytest.mark.parametrize("control_type", list(ControlType))
def test_round_trip(control_type: ControlType) -> None:
    marker = EndTransactionMarker(control_type, 12)
    batch = build_marker(marker, producer_id=5, producer_epoch=3, timestamp_ms=1000)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert (header.records_count, header.max_timestamp_ms) == (1, 1000)
    (record,) = RecordBatch(batch).records()
    assert read_marker(record.key, record.value) == marker
    theirs = ControlRecord.parse(record.key)
    assert theirs == (COMMIT_MARKER if control_type is ControlType.COMMIT else ABORT_MARKER)
    fetched = fetched_records(batch, "topic", 0, 0)
    assert (len(fetched), fetched.next_offset) == (0, 1), "readers step over it"


def test_types_to_come_are_none() -> None:
    assert read_control_type(b"\0\0\0\x05") is None
    assert read_marker(b"\0\0\0\x05", None) is None


def test_later_versions_may_be_longer() -> None:
    assert read_marker(b"\0\x01\0\x01more", b"\0\x01\0\0\0\x07more") == (ControlType.COMMIT, 7)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, b"\0\0\0\0\0\0", "key None is shorter"),
        (b"\0\0\0", b"\0\0\0\0\0\0", "key .* is shorter than 4"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0", "key has version -1"),
        (b"\0\0\0\0", None, "value None is shorter"),
        (b"\0\0\0\0", b"\0\0\0\0\0", "value .* is shorter than 6"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0", "value has version -1"),
    ],
)
def test_damaged_markers(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(CorruptRecord, match=said):
        read_marker(key, value)
