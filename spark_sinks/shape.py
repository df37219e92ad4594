"""The columns that every table has besides the fields of its topic, and the columns of a refused record."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Lack = Literal["time", "nanos", "narrow"]
"""Types that some tables lack: time of day, nanosecond timestamps, and numbers narrower than long and double."""
COORDINATES = ("_topic", "_partition", "_offset", "_timestamp")
"""Columns of every table with the position of the record, by which the table can be checked against its topic."""
DATE = "dt"
"""The default partition column: the day of ``_timestamp`` in UTC."""
KEY = "_key"
"""The record's key, if the fields of the value are columns."""
TOMBSTONE = "_tombstone"
"""Only in staged files of a table that is upserted: True if the record had no value, so that rows of its key are
deleted.
"""
LEFT_IN_LOG = "; its bytes are in the log alone"
"""The end of the reason against a record whose bytes the quarantine cannot hold either."""
SOURCE_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
"""The columns that a landing reads from a source, in this order."""


@cache
def coordinate_fields() -> tuple[pa.Field, ...]:
    """Return the fields of `COORDINATES`."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"))
    return tuple(pa.field(name, kind) for name, kind in zip(COORDINATES, kinds, strict=True))


@cache
def quarantine_schema() -> pa.Schema:
    """Return the columns of a refused record: position, bytes, the schema it named (or null), and the reason."""
    import pyarrow as pa

    return pa.schema(
        [
            *coordinate_fields(),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("schema_id", pa.int32()),
            ("error", pa.string()),
        ]
    )
