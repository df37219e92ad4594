"""Batch bytes: Kafka's RecordBatch v2, built, viewed, checked and decoded. Pure functions over buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.records.murmur2 import murmur2, to_positive  # imported eagerly: the function has the name of its module
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.records.batch import (
        HEADER_BYTES,
        BatchHeader,
        Buffer,
        RecordBatch,
        check_crc,
        iter_batches,
        patch_offsets,
        read_header,
        stamp_log_append_time,
    )
    from eventbus.records.builder import BatchBuilder
    from eventbus.records.compression import compress, decompress
    from eventbus.records.control import (
        ControlType,
        EndTransactionMarker,
        build_marker,
        marker_of,
        read_control_type,
        read_marker,
    )
    from eventbus.records.decode import fetched_records
    from eventbus.records.sequence import MAX_SEQUENCE, decrement_sequence, increment_sequence

__all__ = [
    "HEADER_BYTES",
    "MAX_SEQUENCE",
    "BatchBuilder",
    "BatchHeader",
    "Buffer",
    "ControlType",
    "EndTransactionMarker",
    "RecordBatch",
    "build_marker",
    "check_crc",
    "compress",
    "decompress",
    "decrement_sequence",
    "fetched_records",
    "increment_sequence",
    "iter_batches",
    "marker_of",
    "murmur2",
    "patch_offsets",
    "read_control_type",
    "read_header",
    "read_marker",
    "stamp_log_append_time",
    "to_positive",
]

# Names are imported on first use: a reader of batches needs no builder.
_HOMES = {
    "batch": (
        "HEADER_BYTES",
        "BatchHeader",
        "Buffer",
        "RecordBatch",
        "check_crc",
        "iter_batches",
        "patch_offsets",
        "read_header",
        "stamp_log_append_time",
    ),
    "builder": ("BatchBuilder",),
    "compression": ("compress", "decompress"),
    "control": ("ControlType", "EndTransactionMarker", "build_marker", "marker_of", "read_control_type", "read_marker"),
    "decode": ("fetched_records",),
    "sequence": ("MAX_SEQUENCE", "decrement_sequence", "increment_sequence"),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
