"""JSON values as typed columns: msgspec decodes, so a table accepts what a consumer with the same type accepts."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from eventbus.errors import ConfigError
from serdes.framing import ID_SIZE, prefix_size
from spark_sinks.decoding.framing import Frame, Refusals, put_together
from spark_sinks.decoding.schema import Convert, arrow_schema, converters, pack_type, struct_type, unpack_type
from spark_sinks.decoding.values import Decoded, RowDecoder, ValueSettings

if TYPE_CHECKING:
    import pyarrow as pa


class JsonPlan:
    """The columns of a type of JSON values; picklable."""

    def __init__(self, schema: type[msgspec.Struct] | pa.Schema, frame: Frame) -> None:
        struct = cast("type[msgspec.Struct]", schema) if isinstance(schema, type) else struct_type(schema)
        fields = arrow_schema(struct) if isinstance(schema, type) else schema
        self.columns: pa.Schema = frame.columns(list(fields))
        self._struct = pack_type(struct)
        self._frame = frame

    def decoder(self) -> RowDecoder:
        return _JsonDecoder(self.columns, unpack_type(self._struct), self._frame)


class _JsonDecoder:
    def __init__(self, columns: pa.Schema, struct: type[msgspec.Struct], frame: Frame) -> None:
        self._schema = columns
        self._decode = msgspec.json.Decoder(struct).decode
        self._fields: list[tuple[str, Convert]] = converters(struct)
        self._frame = frame

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        refused = Refusals()
        keys = self._frame.keys(batch, refused)
        rows = self._decoded(batch.column("value").to_pylist(), refused)
        while True:
            good = [row for row in range(len(rows)) if row not in refused.reasons] if refused.reasons else None
            arrays = self._arrays(rows if good is None else [rows[row] for row in good], good, refused)
            if arrays is not None:
                return put_together(batch, self._schema, arrays, keys, refused)

    def _decoded(self, values: list[bytes | None], refused: Refusals) -> list[Any]:
        decode = self._decode
        try:
            return [None if value is None else decode(value) for value in values]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [self._decoded_one(row, value, refused) for row, value in enumerate(values)]

    def _decoded_one(self, row: int, value: bytes | None, refused: Refusals) -> Any:
        """What a JSON Schema serializer puts before a value, an id or a GUID, is taken off: no JSON begins with it."""
        if value is None:
            return None
        if value[:1] == b"\0" and len(value) >= ID_SIZE:
            refused.schema_ids[row] = int.from_bytes(value[1:ID_SIZE], "big")
        try:
            return self._decode(value[prefix_size(value) :] if value[:1] in (b"\0", b"\1") else value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            refused.add(row, str(error))
            return None

    def _arrays(self, rows: list[Any], numbers: list[int] | None, refused: Refusals) -> list[Any] | None:
        """A column for each field; None when some value did not fit its column, which is then refused."""
        import pyarrow as pa

        arrays: list[Any] = []
        for (attribute, convert), field in zip(self._fields, self._schema, strict=False):
            get = attrgetter(attribute)
            values = [None if row is None else get(row) for row in rows]
            if convert is not None:
                values = [convert(value) for value in values]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                _refuse_unfit(values, field, numbers, refused)
                return None
        return arrays


def _refuse_unfit(values: list[Any], field: pa.Field, numbers: list[int] | None, refused: Refusals) -> None:
    """Refuse values that are of the right Python type but not of the column's (300 in an int8)."""
    import pyarrow as pa

    before = len(refused.reasons)
    for index, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            refused.add(index if numbers is None else numbers[index], f"{error} - at `$.{field.name}`")
    if len(refused.reasons) == before:
        raise ConfigError(f"schema: the column {field.name!r} of type {field.type} cannot be built from its values")


class JsonValues:
    """JSON of one type for the length of a landing."""

    def __init__(self, settings: ValueSettings) -> None:
        self._frame = Frame(settings.key, settings.tombstones)
        self._ddl = settings.schema if isinstance(settings.schema, str) else None
        self._plan = None if self._ddl is not None else JsonPlan(cast("Any", settings.schema), self._frame)

    def plan(self, table: pa.Schema | None) -> JsonPlan:
        """A schema in Spark's language is read by Spark: the first call needs a session."""
        if self._plan is None:
            assert self._ddl is not None
            self._plan = JsonPlan(_from_ddl(self._ddl), self._frame)
        self._frame.payload(table, self._plan.columns.names)
        return self._plan

    def learn(self, ids: AbstractSet[int]) -> None:
        """The type was given, whatever schema a value names."""

    def close(self) -> None: ...


def _from_ddl(ddl: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        struct = cast("StructType", StructType.fromDDL(ddl))
    except Exception as error:
        raise ConfigError(f"schema={ddl!r} is not Spark DDL ('name type, ...'): {error}") from error
    return to_arrow_schema(struct, timezone="UTC")
