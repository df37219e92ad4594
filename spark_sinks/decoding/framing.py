"""What is the same for all kinds of values: the columns beside the payload, keys, and records that are refused."""

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
"""The years 1 to 9999, in microseconds from 1970."""
RESERVED = frozenset({*COORDINATES, KEY, TOMBSTONE})
"""Names that no field of a value has as a column."""
_RAW = ("key", "value")


class Frame(NamedTuple):
    """What stands beside the payload. ``raw``: the payload is the key and the value themselves."""

    key: KeyKind
    tombstones: bool
    raw: bool = False

    def columns(self, payload: Sequence[pa.Field]) -> pa.Schema:
        """All columns, in order. Nullable all of them: a tombstone is a row of nulls."""
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
        """The columns of a table that hold fields of values; ``own`` are the names that fields have now.

        Raises `ConfigError` when it was made of values of another kind.
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
        """The keys of a batch as a column; one that is no text is refused where text was asked for."""
        if self.key == "text":
            return as_text(batch.column("key"), refused, "the key")
        return as_type(batch.column("key"), self.key_type())


class Refusals:
    """The rows of a batch that do not become rows of the table, by their number in it."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        """Why it goes into the quarantine; the first reason counts."""
        self.schema_ids: dict[int, int] = {}
        self.left_out: set[int] = set()
        """Those that nobody can judge yet."""

    def add(self, row: int, reason: str) -> None:
        self.reasons.setdefault(row, reason)

    def kept(self, count: int) -> Any:
        """The numbers of the other rows, as numpy's; None when these are all."""
        import numpy as np

        if not self.reasons and not self.left_out:
            return None
        keep = np.ones(count, bool)
        keep[[*self.reasons, *self.left_out]] = False
        return np.flatnonzero(keep)


def put_together(
    batch: pa.RecordBatch, columns: pa.Schema, payload: list[Any], keys: Any | None, refused: Refusals
) -> Decoded:
    """The rows that were not refused, and those that were.

    ``payload`` has the kept rows only; ``keys`` (None: not a column of its own) has all of ``batch``.
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
    """Ids are Java's int; damaged ones may not be."""
    return schema_id if schema_id is None or schema_id < 1 << 31 else schema_id - (1 << 32)


def _coordinates(batch: pa.RecordBatch) -> list[Any]:
    topic, partition, offset, moment = (as_type(batch.column(each.name[1:]), each.type) for each in coordinate_fields())
    return [topic, partition, offset, _known_to_all(moment)]


def _known_to_all(moments: Any) -> Any:
    """Times beyond the years 1 to 9999 (microseconds, taken for milliseconds) as null: most tables cannot hold them,
    and such a record would stop the landing for good.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    numbers = moments.cast(pa.int64())
    known = compute.and_(compute.greater_equal(numbers, _FIRST_US), compute.less(numbers, _END_US))
    return moments if known.false_count == 0 else compute.if_else(known, moments, pa.scalar(None, moments.type))


def as_type(array: Any, kind: pa.DataType) -> Any:
    """A session may use large strings or another zone than ours: same values, another type."""
    return array if array.type == kind else array.cast(kind)


def as_text(array: Any, refused: Refusals, what: str) -> Any:
    """Bytes as a text column; rows that are no UTF-8 are refused, and null here."""
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
