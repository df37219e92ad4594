"""What every table has besides the fields of its topic: where a row comes from, and how a refused record looks."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

COORDINATES = ("_topic", "_partition", "_offset", "_timestamp")
"""Columns of every table: where a row comes from. With them a table can be checked against its topic."""
DATE = "dt"
"""The default partition column: the day of ``_timestamp`` in UTC."""
KEY = "_key"
"""The record's key, where the fields of the value are columns."""
TOMBSTONE = "_tombstone"
"""Only in staged files of a table that is upserted: the record had no value, so rows of its key go."""
SOURCE_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
"""What a landing reads of the columns of a source, in this order."""


@cache
def coordinate_fields() -> tuple[pa.Field, ...]:
    """The fields of `COORDINATES`."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"))
    return tuple(pa.field(name, kind) for name, kind in zip(COORDINATES, kinds, strict=True))


@cache
def quarantine_schema() -> pa.Schema:
    """A refused record: where it comes from, its bytes, the schema it named (null: none) and why it was refused."""
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
