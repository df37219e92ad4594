"""Records to table columns: JSON values become typed columns, each beside the coordinates of its record."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from eventbus.errors import ConfigError
from spark_sinks.decoding.schema import Convert, arrow_schema, converters, pack_type, struct_type, unpack_type
from spark_sinks.shape import COORDINATES

if TYPE_CHECKING:
    import pyarrow as pa


class Undecodable(NamedTuple):
    """Rows of one batch that do not fit the schema: how many, and the first."""

    failed: int
    first: int
    reason: str


class RowSchema:
    """The columns of a table and the way to get them; picklable.

    ``schema`` is None (the columns ``key`` and ``value`` stay bytes), a `msgspec.Struct` type or a pyarrow schema for
    JSON values; the key is then kept as ``_key``.
    """

    def __init__(self, schema: type[msgspec.Struct] | pa.Schema | None) -> None:
        self._struct: bytes | None = None
        self._fields: pa.Schema | None = None
        if schema is not None:
            struct = schema if isinstance(schema, type) else struct_type(schema)
            self._fields = arrow_schema(schema) if isinstance(schema, type) else schema
            self._struct = pack_type(struct)
        names = self.arrow.names
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"schema: the column name {doubled[0]!r} is taken; rename the field")

    @property
    def arrow(self) -> pa.Schema:
        """All columns of a decoded batch, in order."""
        import pyarrow as pa

        if self._fields is None:
            payload = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]
        else:
            # Nullable all of them: a tombstone (null value) is a row of nulls.
            payload = [*(field.with_nullable(True) for field in self._fields), pa.field("_key", pa.binary())]
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"))
        return pa.schema([*payload, *(pa.field(name, kind) for name, kind in zip(COORDINATES, kinds, strict=True))])

    def decoder(self) -> RowDecoder:
        """The decoder; make one per task."""
        struct = unpack_type(self._struct) if self._struct is not None else None
        return RowDecoder(self.arrow, struct)


class RowDecoder:
    """Turns batches of the source into batches of the table."""

    def __init__(self, schema: pa.Schema, struct: type[msgspec.Struct] | None) -> None:
        self.schema = schema
        self._decode = msgspec.json.Decoder(struct).decode if struct is not None else None
        self._columns: list[tuple[str, Convert]] = converters(struct) if struct is not None else []

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Undecodable | None]:
        """The batch in table columns, or what is wrong with it. ``batch`` has the columns of the source."""
        import pyarrow as pa

        # A session may use large strings or another zone than ours: same values, another type.
        kinds = zip(("topic", "partition", "offset", "timestamp"), self.schema.types[-4:], strict=True)
        coordinates = [_as_type(batch.column(name), kind) for name, kind in kinds]
        if self._decode is None:
            arrays = [_as_type(batch.column(name), pa.binary()) for name in ("key", "value")] + coordinates
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema), None
        rows, bad = self._decoded(batch.column("value").to_pylist())
        if bad is not None:
            return None, bad
        key = _as_type(batch.column("key"), pa.binary())
        arrays: list[Any] = []
        for (attribute, convert), field in zip(self._columns, self.schema, strict=False):
            get = attrgetter(attribute)
            values = [None if row is None else get(row) for row in rows]
            if convert is not None:
                values = [convert(value) for value in values]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                return None, _unfit(values, field)
        return pa.RecordBatch.from_arrays([*arrays, key, *coordinates], schema=self.schema), None

    def _decoded(self, values: list[bytes | None]) -> tuple[list[Any], Undecodable | None]:
        decode = self._decode
        assert decode is not None
        try:
            return [None if value is None else decode(value) for value in values], None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [], _refused(decode, values)


def _as_type(array: Any, kind: pa.DataType) -> Any:
    return array if array.type == kind else array.cast(kind)


def _refused(decode: Any, values: list[bytes | None]) -> Undecodable:
    count, first, reason = 0, -1, ""
    for index, value in enumerate(values):
        try:
            if value is not None:
                decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            count += 1
            if first < 0:
                first, reason = index, str(error)
    return Undecodable(count, first, reason)


def _unfit(values: list[Any], field: pa.Field) -> Undecodable:
    """The rows whose value is of the right Python type but not of the column's (300 in an int8)."""
    import pyarrow as pa

    count, first, reason = 0, -1, ""
    for index, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            count += 1
            if first < 0:
                first, reason = index, f"{error} - at `$.{field.name}`"
    return Undecodable(count, first, reason)
