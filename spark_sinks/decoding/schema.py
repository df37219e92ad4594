"""Convert between msgspec.Struct types and the Arrow columns of a table.

The caller gives the type or the columns (``schema=``), and this module derives the rest. All decoding is done by
msgspec, so a table accepts exactly what a consumer with that type accepts, and its errors have the same text.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import datetime
import decimal
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect as mi

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any] | None
"""Converts a decoded value to what pyarrow accepts; None if pyarrow accepts the value unchanged."""

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


def arrow_schema(struct: type[msgspec.Struct]) -> pa.Schema:
    """Return the columns of a Struct type: its fields by their JSON names, nullable if ``None`` is allowed."""
    import pyarrow as pa

    info = _struct_info(struct)
    if not info.fields:
        raise ConfigError(f"schema={struct.__name__} has no fields")
    return pa.schema([_arrow_field(field, struct.__name__) for field in info.fields])


def struct_type(schema: pa.Schema) -> type[msgspec.Struct]:
    """Return a Struct type that decodes rows of an Arrow schema. A nullable column may be null or missing."""
    return _defstruct([(field.name, field) for field in schema], "Row")


def converters(struct: type[msgspec.Struct]) -> list[tuple[str, Convert]]:
    """Return the attribute of each field in order, with the conversion of its values for pyarrow."""
    return [(field.name, _converter(field.type)) for field in _struct_info(struct).fields]


def pack_type(struct: type[msgspec.Struct]) -> bytes:
    """Serialize a Struct type for other processes.

    It is described by its fields, not its name: a type of ``__main__`` cannot be imported elsewhere, and pickling the
    class itself (cloudpickle 3, msgspec 0.22) silently loses the fields.
    """
    from pyspark.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and issubclass(obj, msgspec.Struct):
                return _rebuild, _parts(obj)
            if isinstance(obj, msgspec.Meta):  # cannot be pickled either
                return _meta, ({name: getattr(obj, name) for name in _CONSTRAINTS},)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump(struct)
    return buffer.getvalue()


def unpack_type(data: bytes) -> type[msgspec.Struct]:
    """Restore the Struct type from `pack_type`."""
    import pickle

    return pickle.loads(data)


def _parts(cls: type[msgspec.Struct]) -> tuple[Any, ...]:
    fields = [
        (each.name, each.type, each.encode_name, each.default, each.default_factory)
        for each in msgspec.structs.fields(cls)
    ]
    config: Any = cls.__struct_config__
    options = {name: getattr(config, name) for name in ("forbid_unknown_fields", "array_like", "tag", "tag_field")}
    methods = {name: each for name, each in vars(cls).items() if callable(each) and name == "__post_init__"}
    return cls.__name__, fields, options, methods


def _rebuild(name: str, fields: list[tuple[Any, ...]], options: dict[str, Any], methods: dict[str, Any]) -> Any:
    none: Any = msgspec.NODEFAULT
    declared: list[Any] = []
    for attribute, kind, encoded, default, factory in fields:
        given = {} if default is none else {"default": default}
        given |= {} if factory is none else {"default_factory": factory}
        declared.append((attribute, kind, msgspec.field(name=encoded, **given)))
    return msgspec.defstruct(name, declared, kw_only=True, namespace=methods, **options)


def _meta(constraints: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**constraints)


def _struct_info(struct: type[msgspec.Struct]) -> mi.StructType:
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    return info


def _arrow_field(field: mi.Field, where: str) -> pa.Field:
    import pyarrow as pa

    kind, nullable = _without_none(field.type)
    nullable = nullable or not field.required
    return pa.field(field.encode_name, _arrow_type(kind, f"{where}.{field.name}"), nullable)


def _without_none(kind: mi.Type) -> tuple[mi.Type, bool]:
    """Strip ``| None`` and annotations from a type. Return it, and whether None is allowed."""
    if isinstance(kind, mi.Metadata):
        return _without_none(kind.type)
    if isinstance(kind, mi.UnionType):
        others = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        if len(others) == 1:
            return _without_none(others[0])[0], len(others) < len(kind.types)
    return kind, False


def _arrow_type(kind: mi.Type, where: str) -> pa.DataType:
    import pyarrow as pa

    kind, _ = _without_none(kind)
    if isinstance(kind, mi.StructType):
        return pa.struct([_arrow_field(field, where) for field in kind.fields])
    if isinstance(kind, (mi.CollectionType, mi.VarTupleType)):
        return pa.list_(_arrow_type(kind.item_type, f"{where}[...]"))
    if isinstance(kind, mi.DictType):
        return pa.map_(_arrow_type(kind.key_type, where), _arrow_type(kind.value_type, f"{where}[...]"))
    if isinstance(kind, mi.EnumType):
        return _arrow_of_values([each.value for each in kind.cls], where)
    if isinstance(kind, mi.LiteralType):
        return _arrow_of_values(list(kind.values), where)
    simple: dict[type[mi.Type], pa.DataType] = {
        mi.BoolType: pa.bool_(),
        mi.IntType: pa.int64(),
        mi.FloatType: pa.float64(),
        mi.StrType: pa.string(),
        mi.UUIDType: pa.string(),
        mi.BytesType: pa.binary(),
        mi.DateTimeType: pa.timestamp("us", "UTC"),
        mi.DateType: pa.date32(),
        mi.DecimalType: pa.decimal128(38, 18),
    }
    found = simple.get(type(kind))
    if found is None:
        raise ConfigError(f"schema: {where} has no column type ({type(kind).__name__}); pass a pyarrow schema instead")
    return found


def _arrow_of_values(values: list[Any], where: str) -> pa.DataType:
    import pyarrow as pa

    if all(isinstance(value, str) for value in values):
        return pa.string()
    if all(isinstance(value, int) for value in values):
        return pa.int64()
    raise ConfigError(f"schema: the values of {where} are neither all text nor all whole numbers")


def _converter(kind: mi.Type) -> Convert:
    kind, _ = _without_none(kind)
    if isinstance(kind, mi.EnumType):
        return _nullable(lambda value: value.value)
    if isinstance(kind, mi.UUIDType):
        return _nullable(str)
    if isinstance(kind, (mi.CollectionType, mi.VarTupleType)):
        item = _converter(kind.item_type)
        return _nullable(list if item is None else lambda value: [item(each) for each in value])
    if isinstance(kind, mi.DictType):
        key, value = _converter(kind.key_type) or _same, _converter(kind.value_type) or _same
        return _nullable(lambda mapping: [(key(k), value(v)) for k, v in mapping.items()])
    if isinstance(kind, mi.StructType):
        parts = [(field.encode_name, field.name, _converter(field.type) or _same) for field in kind.fields]
        return _nullable(lambda row: {name: convert(getattr(row, attribute)) for name, attribute, convert in parts})
    return None


def _nullable(convert: Callable[[Any], Any]) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _defstruct(fields: list[tuple[str, pa.Field]], name: str) -> type[msgspec.Struct]:
    declared: list[Any] = []
    for number, (column, field) in enumerate(fields):
        kind = _python_type(field.type, column)
        if field.nullable:
            declared.append((f"f{number}", kind | None, msgspec.field(name=column, default=None)))
        else:
            declared.append((f"f{number}", kind, msgspec.field(name=column)))
    try:
        return msgspec.defstruct(name, declared, kw_only=True, gc=False)
    except ValueError as error:
        raise ConfigError(
            f"A field of schema= cannot be read from JSON. {error}. Leave it out of schema=, or read the values as "
            f"text."
        ) from error


def _python_type(kind: pa.DataType, where: str) -> Any:
    import pyarrow.types as pt

    if pt.is_dictionary(kind):
        return _python_type(kind.value_type, where)
    if pt.is_struct(kind):
        return _defstruct([(field.name, field) for field in kind], "Nested")
    if pt.is_list(kind) or pt.is_large_list(kind):
        return list[_python_type(kind.value_type, where) | None]
    if pt.is_map(kind):
        return dict[_python_type(kind.key_type, where), _python_type(kind.item_type, where) | None]
    for accepts, python in (
        (pt.is_boolean, bool),
        (pt.is_integer, int),
        (pt.is_floating, float),
        (pt.is_string, str),
        (pt.is_large_string, str),
        (pt.is_binary, bytes),
        (pt.is_large_binary, bytes),
        (pt.is_timestamp, datetime.datetime),
        (pt.is_date, datetime.date),
        (pt.is_decimal, decimal.Decimal),
    ):
        if accepts(kind):
            return python
    raise ConfigError(f"schema: column {where!r} of type {kind} cannot be read from JSON")
