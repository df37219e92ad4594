"""The parts of decoding that all kinds of values share: columns besides the payload, keys, and refused records."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.decoding.values import Decoded, KeyKind
from spark_sinks.shape import COORDINATES, KEY, TOMBSTONE, coordinate_fields, quarantine_schema

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_US, _END_US = -719_162 * 86_400_000_000, 2_932_897 * 86_400_000_000
"""The years 1 to 9999, in microseconds since 1970."""
RESERVED = frozenset({*COORDINATES, KEY, TOMBSTONE})
"""Column names that are reserved, so that fields of values get other names."""
_RAW = ("key", "value")


class Frame(NamedTuple):
    """The columns besides the payload. With ``raw`` the payload is the key and the value themselves."""

    key: KeyKind
    tombstones: bool
    raw: bool = False

    def columns(self, payload: Sequence[pa.Field]) -> pa.Schema:
        """Return all columns in order. All are nullable, because a tombstone is a row of nulls."""
        import pyarrow as pa

        fields = [field.with_nullable(True) for field in payload]
        if not self.raw:
            fields.append(pa.field(KEY, self.key_type()))
        fields += coordinate_fields()
        if self.tombstones:
            fields.append(pa.field(TOMBSTONE, pa.bool_()))
        names = [field.name for field in fields]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"schema: the column name {doubled[0]!r} is taken; rename the field")
        return pa.schema(fields)

    def payload(self, table: pa.Schema | None, own: Sequence[str]) -> list[pa.Field]:
        """Return the columns of a table that hold fields of values. ``own`` are the names that fields have now.

        Raises `ConfigError` if the table was created from another kind of values.
        """
        fields = [] if table is None else [field for field in table if field.name not in RESERVED]
        names = {field.name for field in fields}
        if fields and self.raw and not names >= {*_RAW}:
            raise ConfigError(
                "the table has no columns key and value: it was made of decoded values. Go on with that "
                "(value=, schema=, registry=), or land into another table"
            )
        if not self.raw and names == {*_RAW} and not names & {*own}:
            raise ConfigError(
                "the table has key and value as they are: it was made with value='bytes' or 'text'. Go on with that, "
                "or land into another table"
            )
        return fields

    def key_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.string() if self.key == "text" else pa.binary()

    def keys(self, batch: pa.RecordBatch, refused: Refusals) -> Any:
        """Return the keys of a batch as a column. As text, a key that is not UTF-8 is refused."""
        if self.key == "text":
            return as_text(batch.column("key"), refused, "the key")
        return as_type(batch.column("key"), self.key_type())


class Refusals:
    """The rows of a batch that do not become rows of the table, by row number."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        """Why a row goes to the quarantine. The first reason counts."""
        self.schema_ids: dict[int, int] = {}
        self.left_out: set[int] = set()
        """Rows that cannot be judged yet."""

    def add(self, row: int, reason: str) -> None:
        self.reasons.setdefault(row, reason)

    def kept(self, count: int) -> Any:
        """Return the numbers of all other rows as an array, or None if no row was refused."""
        import numpy as np

        if not self.reasons and not self.left_out:
            return None
        keep = np.ones(count, bool)
        keep[[*self.reasons, *self.left_out]] = False
        return np.flatnonzero(keep)


def put_together(
    batch: pa.RecordBatch, columns: pa.Schema, payload: list[Any], keys: Any | None, refused: Refusals
) -> Decoded:
    """Combine columns into the accepted rows and the refused ones.

    ``payload`` has only the accepted rows. ``keys`` has all rows of ``batch``, or is None if the key is not a separate
    column.
    """
    import pyarrow as pa

    kept = refused.kept(batch.num_rows)
    beside = [] if keys is None else [keys]
    beside += _coordinates(batch)
    if TOMBSTONE in columns.names:
        beside.append(batch.column("value").is_null())
    if kept is not None:
        wanted = pa.array(kept)
        beside = [array.take(wanted) for array in beside]
    rows = pa.RecordBatch.from_arrays([*payload, *beside], schema=columns)
    return Decoded(rows, _rejected(batch, refused) if refused.reasons else None)


def _rejected(batch: pa.RecordBatch, refused: Refusals) -> pa.RecordBatch:
    import pyarrow as pa

    order = sorted(refused.reasons)
    taken = batch.take(pa.array(order, pa.int64()))
    schema = quarantine_schema()
    arrays = _coordinates(taken)
    arrays += [as_type(taken.column(name), pa.binary()) for name in _RAW]
    arrays.append(pa.array([_signed(refused.schema_ids.get(row)) for row in order], pa.int32()))
    arrays.append(pa.array([refused.reasons[row] for row in order], pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _signed(schema_id: int | None) -> int | None:
    """Convert an id to Java's int, because an id in a damaged message may be larger."""
    return schema_id if schema_id is None or schema_id < 1 << 31 else schema_id - (1 << 32)


def _coordinates(batch: pa.RecordBatch) -> list[Any]:
    topic, partition, offset, moment = (as_type(batch.column(each.name[1:]), each.type) for each in coordinate_fields())
    return [topic, partition, offset, _known_to_all(moment)]


def _known_to_all(moments: Any) -> Any:
    """Replace times outside the years 1 to 9999 by null.

    They come from microseconds taken for milliseconds. Most tables cannot hold them, and such a record would stop the
    landing permanently.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    numbers = moments.cast(pa.int64())
    known = compute.and_(compute.greater_equal(numbers, _FIRST_US), compute.less(numbers, _END_US))
    return moments if known.false_count == 0 else compute.if_else(known, moments, pa.scalar(None, moments.type))


def as_type(array: Any, kind: pa.DataType) -> Any:
    """Cast a column. A session may use large strings, or another time zone, for the same values."""
    return array if array.type == kind else array.cast(kind)


def as_text(array: Any, refused: Refusals, what: str) -> Any:
    """Decode bytes to a text column. Rows that are not UTF-8 are refused, and null here."""
    import pyarrow as pa

    array = as_type(array, pa.binary())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    for row, value in enumerate(array.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            refused.add(row, f"{what} is no UTF-8: {error.reason} at its byte {error.start}")
            texts.append(None)
    return pa.array(texts, pa.string())
