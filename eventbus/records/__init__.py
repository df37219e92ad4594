"""Batch bytes: Kafka's RecordBatch v2, built, viewed, checked and decoded. Pure functions over buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Imported eagerly: the function has the name of its module.
from eventbus.records.murmur2 import murmur2 as murmur2
from eventbus.records.murmur2 import to_positive as to_positive
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.records.batch import HEADER_BYTES as HEADER_BYTES
    from eventbus.records.batch import BatchHeader as BatchHeader
    from eventbus.records.batch import Buffer as Buffer
    from eventbus.records.batch import RecordBatch as RecordBatch
    from eventbus.records.batch import check_crc as check_crc
    from eventbus.records.batch import iter_batches as iter_batches
    from eventbus.records.batch import patch_offsets as patch_offsets
    from eventbus.records.batch import read_header as read_header
    from eventbus.records.batch import stamp_log_append_time as stamp_log_append_time
    from eventbus.records.builder import BatchBuilder as BatchBuilder
    from eventbus.records.compression import compress as compress
    from eventbus.records.compression import decompress as decompress
    from eventbus.records.control import ControlType as ControlType
    from eventbus.records.control import EndTransactionMarker as EndTransactionMarker
    from eventbus.records.control import build_marker as build_marker
    from eventbus.records.control import marker_of as marker_of
    from eventbus.records.control import read_control_type as read_control_type
    from eventbus.records.control import read_marker as read_marker
    from eventbus.records.decode import fetched_records as fetched_records
    from eventbus.records.sequence import MAX_SEQUENCE as MAX_SEQUENCE
    from eventbus.records.sequence import decrement_sequence as decrement_sequence
    from eventbus.records.sequence import increment_sequence as increment_sequence

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
__getattr__, __dir__ = lazy_names(
    globals(),
    _HOMES,
    also=(
        "murmur2",
        "to_positive",
    ),
)
