"""Decode JSON values to typed columns with msgspec: a table accepts what a consumer with the same type accepts."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from eventbus.errors import ConfigError, SerializationError
from serdes.framing import ID_SIZE, prefix_size
from spark_sinks.decoding.framing import RESERVED, Frame, Refusals, put_together
from spark_sinks.decoding.schema import Convert, arrow_schema, converters, pack_type, struct_type, unpack_type
from spark_sinks.decoding.unite import Columns, Conflict, conform
from spark_sinks.decoding.values import Decoded, RowDecoder, ValueSettings
from spark_sinks.errors import in_short

if TYPE_CHECKING:
    import pyarrow as pa


_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TOO_DEEP = "values nest too deep"


class JsonPlan(NamedTuple):
    """How to decode JSON.

    ``payload`` is the number of columns from the value, ``struct`` the type as `pack_type` gives it, and ``fields`` are
    the fields of the type, by the names of their columns.
    """

    columns: pa.Schema
    payload: int
    struct: bytes
    fields: pa.Schema
    frame: Frame

    def decoder(self) -> RowDecoder:
        return _JsonDecoder(self)


class _JsonDecoder:
    def __init__(self, plan: JsonPlan) -> None:
        struct = unpack_type(plan.struct)
        self._plan = plan
        self._decode = msgspec.json.Decoder(struct).decode
        self._fields: list[tuple[str, Convert]] = converters(struct)

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        refused = Refusals()
        keys = self._plan.frame.keys(batch, refused)
        rows = self._decoded(batch.column("value").to_pylist(), refused)
        while True:
            good = [row for row in range(len(rows)) if row not in refused.reasons] if refused.reasons else None
            arrays = self._arrays(rows if good is None else [rows[row] for row in good], good, refused)
            if arrays is not None:
                return put_together(batch, self._plan.columns, self._payload(arrays), keys, refused)

    def _decoded(self, values: list[bytes | None], refused: Refusals) -> list[Any]:
        decode = self._decode
        try:
            return [None if value is None else decode(value) for value in values]
        except _UNDECODABLE:
            return [self._decoded_one(row, value, refused) for row, value in enumerate(values)]

    def _decoded_one(self, row: int, value: bytes | None, refused: Refusals) -> Any:
        """Decode one value. It may have the prefix of JSON Schema serializers (an id or GUID), which JSON never has."""
        if value is None:
            return None
        if value[:1] == b"\0" and len(value) >= ID_SIZE:
            refused.schema_ids[row] = int.from_bytes(value[1:ID_SIZE], "big")
        try:
            return self._decode(value[prefix_size(value) :] if value[:1] in (b"\0", b"\1") else value)
        except _UNDECODABLE as error:
            refused.add(row, _TOO_DEEP if isinstance(error, RecursionError) else str(error))
            return None

    def _arrays(self, rows: list[Any], numbers: list[int] | None, refused: Refusals) -> list[Any] | None:
        """Return an array for each field. If a value does not fit its type, refuse it and return None."""
        import pyarrow as pa

        arrays: list[Any] = []
        for (attribute, convert), field in zip(self._fields, self._plan.fields, strict=True):
            get = attrgetter(attribute)
            values = [None if row is None else get(row) for row in rows]
            if convert is not None:
                values = [convert(value) for value in values]
            try:
                arrays.append(_array(values, field.type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                _refuse_unfit(values, field, numbers, refused)
                return None
        return arrays

    def _payload(self, arrays: list[Any]) -> list[Any]:
        """Return the value's columns. The table may have more columns than the type, and wider ones."""
        import pyarrow as pa

        own = dict(zip(self._plan.fields.names, arrays, strict=True))
        count = len(arrays[0])
        columns = list(self._plan.columns)[: self._plan.payload]
        return [
            conform(own[field.name], field.type) if field.name in own else pa.nulls(count, field.type)
            for field in columns
        ]


def _refuse_unfit(values: list[Any], field: pa.Field, numbers: list[int] | None, refused: Refusals) -> None:
    """Refuse values with the right Python type that do not fit in the column, such as 300 in an int8."""
    import pyarrow as pa

    before = len(refused.reasons)
    for index, value in enumerate(values):
        try:
            _array([value], field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            refused.add(index if numbers is None else numbers[index], f"{error} - at `$.{field.name}`")
    if len(refused.reasons) == before:
        raise ConfigError(f"schema: the column {field.name!r} of type {field.type} cannot be built from its values")


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Build a column. Raises pyarrow's errors, and ValueError for values that pyarrow would silently change."""
    import pyarrow as pa

    array = pa.array(values, kind)
    if _is_bent(array):
        raise ValueError(f"out of the range of {kind}")
    return array


def _is_bent(array: Any) -> bool:
    """True if a number too large for a float became infinite, or a time in another zone left the calendar.

    JSON has neither of them.
    """
    import pyarrow.compute as pc
    import pyarrow.types as pt

    compute: Any = pc
    kind = array.type
    if pt.is_struct(kind):
        return any(map(_is_bent, array.flatten()))
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_bent(array.values)
    if pt.is_map(kind):
        return _is_bent(array.keys) or _is_bent(array.items)
    if pt.is_float32(kind) or pt.is_float16(kind):
        return bool(compute.any(compute.is_inf(array)).as_py())
    if pt.is_timestamp(kind) and kind.unit != "ns":
        ends = compute.min_max(array)
        least, most = ends["min"].value, ends["max"].value
        per_second = _PER_SECOND[kind.unit]
        return least is not None and (least < _FIRST_SECOND * per_second or most >= _END_SECOND * per_second)
    return False


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_FIRST_SECOND, _END_SECOND = -62_135_596_800, 253_402_300_800
"""The years 1 to 9999."""


class JsonValues:
    """JSON values of one type, during a landing."""

    def __init__(self, settings: ValueSettings) -> None:
        self._frame = Frame(settings.key, settings.tombstones)
        self._lacks = settings.lacks
        self._names = settings.names
        self._new_column = settings.on_incompatible == "new_column"
        self._type: tuple[bytes, pa.Schema] | None = None
        self._ddl = settings.schema if isinstance(settings.schema, str) else None
        if self._ddl is None:
            self._type = self._packed(cast("Any", settings.schema))

    def _packed(self, schema: type[msgspec.Struct] | pa.Schema) -> tuple[bytes, pa.Schema]:
        import pyarrow as pa

        if not (issubclass(schema, msgspec.Struct) if isinstance(schema, type) else isinstance(schema, pa.Schema)):
            raise ConfigError(
                f"schema={schema!r} names no columns: give a msgspec.Struct type, a pyarrow schema, or Spark's DDL "
                "('name string, delay double')"
            )
        struct = cast("type[msgspec.Struct]", schema) if isinstance(schema, type) else struct_type(schema)
        fields = arrow_schema(struct) if isinstance(schema, type) else schema
        self._frame.columns(list(fields))
        return pack_type(struct), fields

    def plan(self, table: pa.Schema | None) -> JsonPlan:
        """Return the plan. Spark parses a schema in its own language, so the first call may need a session."""
        import pyarrow as pa

        if self._type is None:
            assert self._ddl is not None
            self._type = self._packed(_from_ddl(self._ddl))
        struct, fields = self._type
        columns = Columns(self._frame.payload(table, fields.names), self._lacks, RESERVED, self._names)
        names = columns.add([(field.name, field.type) for field in fields], new_column=self._new_column)
        if isinstance(names, Conflict):
            raise SerializationError(
                f"schema= does not fit the table: {names}. Nothing was landed. Give the field the type of its "
                "column; or land with on_incompatible='new_column', which adds a new column for it"
            )
        payload = columns.fields()
        own = pa.schema([pa.field(name, field.type) for name, field in zip(names, fields, strict=True)])
        return JsonPlan(self._frame.columns(payload), len(payload), struct, own, self._frame)

    def learn(self, ids: AbstractSet[int]) -> None:
        """Do nothing: the type was given, whatever schema a value names."""

    def close(self) -> None: ...


def _from_ddl(ddl: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        struct = cast("StructType", StructType.fromDDL(ddl))
    except Exception as error:
        raise ConfigError(f"schema={ddl!r} is not Spark DDL ('name type, ...'): {in_short(str(error))}") from error
    return to_arrow_schema(struct, timezone="UTC")
