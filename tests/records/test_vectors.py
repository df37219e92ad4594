"""What other implementations wrote is read; what they wrote uncompressed is written byte for byte the same."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.errors import CorruptRecord
from eventbus.records import (
    BatchBuilder,
    ControlType,
    EndTransactionMarker,
    RecordBatch,
    build_marker,
    check_crc,
    fetched_records,
    iter_batches,
    patch_offsets,
    read_header,
    read_marker,
    stamp_log_append_time,
)
from eventbus.types import Compression, TimestampType


def test_there_are_vectors_of_every_kind(vectors: Any) -> None:
    libraries = {vector.name.split("_")[0] for vector in vectors}
    assert libraries == {"librdkafka", "aiokafka", "kafka"}
    for library in ("librdkafka", "aiokafka"):
        codecs = {vector.header["attributes"] & 7 for vector in vectors if vector.name.startswith(library)}
        assert codecs == set(Compression)
    assert {vector.header.get("marker") for vector in vectors} == {None, "abort", "commit"}


def test_header(vector: Any) -> None:
    header = read_header(vector.data)
    check_crc(vector.data, header)
    assert header.size_bytes == len(vector.data)
    expected = {name: value for name, value in vector.header.items() if name != "marker"}
    assert {name: getattr(header, name) for name in expected} == expected
    assert (header.base_offset, header.last_offset) == (0, vector.offsets[-1])
    assert header.is_control == ("marker" in vector.header)
    assert header.is_transactional == ("transactional" in vector.name or header.is_control)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in vector.records)


def test_records(vector: Any) -> None:
    batch = RecordBatch(vector.data)
    assert batch.records() == vector.records
    assert list(batch) == vector.records
    assert batch.columns().offsets == vector.offsets


def test_fetched(vector: Any) -> None:
    fetched = fetched_records(vector.data, "topic", 0, 0)
    assert fetched.next_offset == vector.offsets[-1] + 1
    if "marker" in vector.header:
        assert len(fetched) == 0
        return
    assert fetched.offsets == vector.offsets
    found = [(record.key, record.value, record.headers, record.timestamp_ms) for record in fetched]
    assert found == [(record.key, record.value, record.headers, record.timestamp_ms) for record in vector.records]
    is_stamped = vector.name.endswith("log_append_time")
    assert fetched.timestamp_type == (TimestampType.LOG_APPEND_TIME if is_stamped else TimestampType.CREATE_TIME)


@pytest.mark.system
def test_byte_by_byte(vectors: Any) -> None:
    """A growing prefix of a log yields the batches that are whole, and nothing is raised."""
    data, ends = bytearray(), []
    for vector in vectors:
        if len(vector.data) < 2000:
            batch = bytearray(vector.data)
            patch_offsets(batch, 10_000 * len(ends), 0)
            data += batch
            ends.append(len(data))
    assert len(ends) > 20
    whole = 0
    for size in range(len(data) + 1):
        whole += size in ends
        prefix = bytes(data[:size])
        assert sum(1 for _ in iter_batches(prefix, verify=size in ends)) == whole
    for size in range(0, len(data) + 1, 97):
        whole = sum(end <= size for end in ends)
        fetched = fetched_records(data[:size], "topic", 0, 0)
        last = [batch.header.next_offset for batch in iter_batches(bytes(data[:size]))]
        assert len(last) == whole
        assert fetched.next_offset == (last[-1] if last else 0)


@pytest.mark.parametrize("tail", [b"\0", b"\xff" * 60, b"\0" * 60])
def test_trailing_bytes(vector: Any, tail: bytes) -> None:
    """Less than a header after the last batch is the beginning of one that is still being written."""
    assert [batch.records() for batch in iter_batches(vector.data + tail)] == [vector.records]
    assert fetched_records(vector.data + tail, "topic", 0, 0) == fetched_records(vector.data, "topic", 0, 0)


def test_a_trailing_header_that_cannot_be(vector: Any) -> None:
    with pytest.raises(CorruptRecord, match=f"byte {len(vector.data)}: magic is 0"):
        list(iter_batches(vector.data + bytes(61)))


def _rebuild(vector: Any) -> bytes:
    """What this writer makes of the vector's records and producer state."""
    header = read_header(vector.data)
    state = {
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
    }
    builder = BatchBuilder(header.compression)
    if header.is_control:
        marker = EndTransactionMarker(ControlType[vector.header["marker"].upper()], 77)
        timestamp_ms = vector.records[0].timestamp_ms
        return bytes(
            build_marker(
                marker,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                timestamp_ms=timestamp_ms,
            )
        )
    for record in vector.records:
        builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    return bytes(builder.build(**state))


def test_writer_reproduces(vector: Any, vectors: Any) -> None:
    if vector.name == "aiokafka_compacted":
        return  # a producer leaves no gaps
    if vector.name.endswith("log_append_time"):  # only the log stamps: made of the same records with their own times
        library = vector.name.removesuffix("_log_append_time")
        (unstamped,) = [each for each in vectors if each.name == f"{library}_mixed"]
        batch = bytearray(_rebuild(unstamped))
        stamp_log_append_time(batch, vector.records[0].timestamp_ms)
    else:
        batch = bytearray(_rebuild(vector))
    header = read_header(vector.data)
    patch_offsets(batch, 0, header.partition_leader_epoch)  # librdkafka writes 0, Java and this writer -1
    if header.compression == Compression.NONE:
        assert batch == vector.data
    else:  # compressors differ in their output
        assert RecordBatch(bytes(batch)).records() == vector.records
        ours = read_header(batch)._replace(batch_length=0, crc=0)
        assert ours == header._replace(batch_length=0, crc=0)


def test_markers(vector: Any) -> None:
    if "marker" in vector.header:
        (record,) = RecordBatch(vector.data).records()
        marker = read_marker(record.key, record.value)
        assert marker == (ControlType[vector.header["marker"].upper()], 77)


def test_sequence_wraps(vectors: Any) -> None:
    wrapping = [read_header(vector.data) for vector in vectors if vector.name.endswith("sequence_wrap")]
    assert [(header.base_sequence, header.last_sequence) for header in wrapping] == [(2_147_483_646, 2)] * 2
