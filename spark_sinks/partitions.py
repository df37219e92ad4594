"""Partition columns: their directory names, the values in those names, and the values that a name cannot hold.

Data files of Parquet and Delta tables do not contain the partition columns, so the name of a directory (in Delta's log,
a text) is the only copy of a value. The text must therefore lead back to exactly that value. Iceberg's files contain
the columns, and its directories only group files.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import decimal
import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL = frozenset("\"#%'*/:=?\\{[]^") | {chr(code) for code in (*range(32), 127)}
"""Hive escapes these characters in the names of columns, and readers other than Spark do not reverse it."""
_ESCAPED = re.compile(r"[^A-Za-z0-9 ,+@~_.\u0080-\U0010ffff-]")
_NAME_BYTES = 255
_PATH_BYTES = 3_000
"""A name in a path has at most 255 bytes, and a path 4,096, of which this part is for partition directories."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day of year 1 and the last of year 9999, in days since 1970. Readers know no day outside of them."""
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def check_partition_columns(names: Sequence[str], columns: pa.Schema) -> None:
    """Raise `ConfigError` for a partition column whose name or type cannot be kept in the name of a directory."""
    for name in names:
        if odd := sorted(_SPECIAL & set(name)):
            raise ConfigError(
                f"partition_by={name!r} cannot be used. The name of a partition column becomes part of a path and must "
                f"not contain {odd[0]!r}. Rename the column, for instance partition_by={{'p': '`{name}`'}}."
            )
        if name in columns.names and not _has_text(columns.field(name).type):
            raise ConfigError(
                f"partition_by={name!r} cannot be used. The column has the type {columns.field(name).type}, and the "
                f"name of a directory holds only text, integers, decimals, booleans, dates and timestamps exactly. "
                f"Choose another column, or cast it: partition_by={{'p': 'CAST(`{name}` AS STRING)'}}; a record's key "
                f"is text with key='text'."
            )


def check_key_columns(names: Sequence[str], columns: pa.Schema) -> None:
    """Raise `ConfigError` for a column of ``upsert=`` whose values do not identify rows."""
    import pyarrow.types as pt

    for name in names:
        if name in columns.names and (pt.is_floating(kind := columns.field(name).type) or pt.is_nested(kind)):
            raise ConfigError(
                f"upsert={name!r} cannot be used. The column has the type {kind}, and databases disagree about which "
                f"of its values are equal (0.0 and -0.0, NaN, nested values). Choose another column, or cast it with "
                f"transform=, for instance to a decimal."
            )


def directory_name(column: str, value: Any, columns: int = 1) -> str:
    """Return the directory (``month=1``) of a value; different values have different directories.

    A name that a path cannot hold is shortened and gets a hash. `unfit_values` keeps such values out of tables that
    read them from the name.
    """
    if value is None:
        return f"{column}={NULL_DIRECTORY}"
    text = _escaped(_text(value))
    if text == NULL_DIRECTORY:
        text = f"%5F{text[1:]}"
    name = f"{column}={text}"
    if len(name.encode()) <= _longest(columns):
        return name
    return f"{column}={text[:100]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def partition_values(directory: str) -> dict[str, str | None]:
    """Return the texts in a directory like ``dt=2024-02-29/origin=JFK`` by column; None is null."""
    pairs = (part.partition("=") for part in directory.split("/") if part)
    return {name: None if text == NULL_DIRECTORY else unquote(text) for name, _, text in pairs}


def unfit_values(column: str, values: Any, *, in_files: bool, columns: int = 1) -> Iterator[tuple[Any, str]]:
    """Yield masks of rows that cannot be partitioned by their value, each with the reason.

    ``in_files``: the data files contain the column, so every text is fine. ``columns``: how many share the path.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type):
        units = 1 if pa.types.is_date32(values.type) else _DAY[values.type.unit]
        numbers = values.cast(pa.int32() if units == 1 else pa.int64())
        far = compute.or_(
            compute.less(numbers, FIRST_DAY * units), compute.greater_equal(numbers, (LAST_DAY + 1) * units)
        )
        yield compute.fill_null(far, False), f"its {column!r} is outside of the years 1 to 9999"
    elif not in_files and not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        for value in compute.unique(values).to_pylist():
            if reason := _unfit_text(column, value, columns):
                yield compute.fill_null(compute.equal(values, pa.scalar(value, values.type)), False), reason


def _unfit_text(column: str, value: Any, columns: int) -> str | None:
    if value == "" or value == NULL_DIRECTORY:
        return f"its {column!r} is {value!r}, which readers of partition directories take for null"
    if not isinstance(value, str):
        return None
    size = len(quote(f"{column}={value}", safe=" ,+@~-_.="))  # deltalake escapes letters that are not ASCII
    if size <= _longest(columns):
        return None
    return f"its {column!r} makes a directory name of {size:,} bytes, and at most {_longest(columns)} are possible"


def _escaped(text: str) -> str:
    """Escape a value as Hive does: ASCII only, because Spark takes the escaped bytes of other letters for letters."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _longest(columns: int) -> int:
    return min(_NAME_BYTES, _PATH_BYTES // columns)


def _has_text(kind: pa.DataType) -> bool:
    import pyarrow.types as pt

    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_timestamp(kind):
        return kind.unit in _DAY
    tests = (pt.is_string, pt.is_large_string, pt.is_integer, pt.is_decimal, pt.is_boolean, pt.is_date32)
    return any(test(kind) for test in tests)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"  # never 0E-10, which most readers of Delta's log refuse
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat("T" if value.tzinfo else " ", "microseconds") + ("Z" if value.tzinfo else "")
    return str(value)
