"""Code first: the Avro schema of a Python type.

``schema_of(Order)`` reads msgspec Structs, dataclasses, TypedDicts, NamedTuples, pydantic models, enums and plain
types. `marks` says what Python's types cannot: widths, precisions, namespaces, aliases.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import json
import types
import typing
import uuid
from typing import Any, cast

import msgspec

from serdes.avro.codec.conversions import Duration
from serdes.avro.codec.shapes import Attribute, Constants, Entries, Items, Members, Nothing, Object, Scalar, shape_of
from serdes.avro.literals import NoDefault, to_json
from serdes.avro.logical import ON_TYPE, valid_logical_type
from serdes.avro.marks import AvroField, AvroType
from serdes.avro.parse import Parser
from serdes.avro.python_types import (
    Marked,
    class_mark,
    defaults_of,
    descriptions_of,
    doc_of,
    enum_symbols,
    is_symbol,
    marked,
)
from serdes.avro.schema import MISSING, AvroSchemaError, Fixed, Primitive, Schema

Json = dict[str, Any]
Description = str | Json | list[Any]
"""A schema as JSON; a named type is written out where it is first met, and named after that."""

_TIMES: dict[type, tuple[str, str]] = {
    datetime.datetime: ("long", "timestamp-micros"),
    datetime.date: ("int", "date"),
    datetime.time: ("long", "time-micros"),
}
_LOGICAL_OF: dict[type, tuple[str, ...]] = {
    datetime.datetime: ("timestamp-", "local-timestamp-"),
    datetime.date: ("date",),
    datetime.time: ("time-",),
}
"""How the logical types begin that values of a class may have."""


_BYTES: tuple[type[Any], ...] = (bytes, bytearray, memoryview)


def schema_of(annotation: Any, *, namespace: str | None = None) -> Schema:
    """The Avro schema of a Python type.

    ``namespace`` is for the types that have none of their own; without it they take that of the outermost class.
    Raises AvroSchemaError naming the class and the field for what Avro cannot say.
    """
    description = _Builder(namespace).describe(annotation, _name_of(annotation), "Root")
    try:
        return Parser().parse(json.dumps(description))
    except AvroSchemaError as error:
        raise AvroSchemaError(_name_of(annotation), f"{error.path}: {error.reason}") from None


class _Builder:
    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        """None until the outermost named type is met."""
        self._named: dict[str, Any] = {}
        """The type that has each full name."""
        self._definitions: dict[str, Json] = {}
        self._objects: dict[str, Object] = {}

    def describe(self, annotation: Any, where: str, hint: str) -> Description:
        """Return the schema of a type. ``hint`` is the name for a type that has none."""
        found = marked(annotation)
        if found.types and found.types[-1].type == "union":
            inner = Marked(found.bare, found.types[:-1])
            return [] if found.bare is typing.Never else [self._of(inner, where, hint)]
        return self._of(found, where, hint)

    def _of(self, found: Marked, where: str, hint: str) -> Description:
        bare, mark = found.bare, functools.reduce(_merged, found.types, AvroType())
        if typing.get_origin(bare) in (typing.Union, types.UnionType):
            return self._union(typing.get_args(bare), where, hint)
        if bare is Duration:  # not a record, though it has fields
            return self._scalar(Duration, mark, where, hint)
        try:
            shape = shape_of(bare)
        except TypeError as error:
            raise AvroSchemaError(where, str(error)) from None
        match shape:
            case Nothing():
                return _with_props("null", mark, where)
            case Scalar():
                return self._scalar(shape.kind, mark, where, hint)
            case Members():
                return self._enum(shape.kind, mark, where)
            case Constants():
                return self._literal(shape.values, mark, where, hint)
            case Items():
                return {"type": "array", "items": self.describe(shape.item, f"{where}[]", hint)} | mark.props
            case Entries():
                return {"type": "map", "values": self.describe(shape.value, f"{where}{{}}", hint)} | mark.props
            case Object():
                return self._record(bare, shape, mark, where)
            case _:
                raise AvroSchemaError(where, f"{_name_of(bare)} says nothing of its values; Avro needs a type")

    def _union(self, annotations: tuple[Any, ...], where: str, hint: str) -> list[Any]:
        branches: list[Any] = []
        for annotation in annotations:
            branch = self.describe(annotation, where, hint)
            branches.extend(branch if isinstance(branch, list) else [branch])
        names = [self._branch(branch) for branch in branches]
        for name in names:
            if names.count(name) > 1:
                raise AvroSchemaError(where, f"two branches of the union are {name} in Avro; wrap one in a class")
        return branches

    def _branch(self, description: Description) -> str:
        """Return the name that a union knows the type by."""
        if isinstance(description, dict):
            name = f"{description['namespace']}." if description.get("namespace") else ""
            return name + description["name"] if "name" in description else description["type"]
        return cast("str", description)

    # Named types

    def _full_name(self, kind: Any, name: str, mark: AvroType, where: str) -> tuple[str, Json | None]:
        """Return the full name, and how its definition begins; None when there is one already."""
        if self._namespace is None:
            self._namespace = mark.namespace or ""
        namespace = self._namespace if mark.namespace is None else mark.namespace
        name = mark.name or name
        full = f"{namespace}.{name}" if namespace else name
        if full in self._named:
            if self._named[full] != kind:
                one, other = _name_of(self._named[full]), _name_of(kind)
                raise AvroSchemaError(where, f"{one} and {other} are both {full}; give one `AvroType(name=...)`")
            return full, None
        self._named[full] = kind
        start: Json = {"type": "", "name": name, "namespace": namespace or ""}
        if mark.aliases:
            start["aliases"] = list(mark.aliases)
        self._definitions[full] = start
        return full, start

    def _record(self, annotation: Any, shape: Object, mark: AvroType, where: str) -> Description:
        kind = shape.kind
        mark = _merged(class_mark(kind), mark)
        full, record = self._full_name(annotation, _class_name(annotation), mark, where)
        if record is None:
            return full
        self._objects[full] = shape
        record["type"] = "error" if mark.type == "error" else "record"
        if (doc := mark.doc if mark.doc is not None else doc_of(kind)) is not None:
            record["doc"] = doc
        defaults, docs = defaults_of(kind), descriptions_of(kind)
        inside = kind.__name__
        record["fields"] = [
            self._field(
                one,
                defaults.get(one.name, MISSING),
                docs.get(one.name),
                record["name"],
                f"{inside}.{one.name}",
                may_lack=shape.how == "dict" and not one.required,
            )
            for one in shape.attributes
        ]
        record.update(mark.props)
        return record

    def _field(
        self, attribute: Attribute, default: Any, doc: str | None, record: str, where: str, *, may_lack: bool
    ) -> Json:
        found = marked(attribute.annotation)
        mark = found.field or AvroField()
        kind = self.describe(attribute.annotation, where, record + _camel(attribute.data_name))
        if mark.branches:
            kind = self._ordered(kind, mark.branches, where)
        elif may_lack:
            branches = kind if isinstance(kind, list) else [kind]
            kind, default = ["null", *(one for one in branches if one != "null")], None
        value = mark.default
        if value is MISSING:
            kind, value = self._default(kind, default, bool(mark.branches), where)
        field: Json = {"name": attribute.data_name, "type": kind}
        description = mark.doc if mark.doc is not None else found.description or doc
        if description is not None:
            field["doc"] = description
        if value is not MISSING:
            field["default"] = value
        if mark.order != "ascending":
            field["order"] = mark.order
        if mark.aliases:
            field["aliases"] = list(mark.aliases)
        return field | mark.props

    def _ordered(self, kind: Description, names: tuple[str, ...], where: str) -> Description:
        branches = {self._branch(branch): branch for branch in kind} if isinstance(kind, list) else {}
        if sorted(branches) != sorted(names):
            raise AvroSchemaError(where, f"the branches are {', '.join(branches) or 'none'}, not {', '.join(names)}")
        return [branches[name] for name in names]

    def _default(self, kind: Description, value: Any, exact: bool, where: str) -> tuple[Description, Any]:
        """Return the type with the default's branch in front, and the default as JSON."""
        if not isinstance(kind, list):
            return kind, MISSING if value is MISSING else self._json(value, kind, where)
        if value is MISSING:
            if exact or "null" not in kind:
                return kind, MISSING
            value = None
        for position, branch in enumerate(kind):
            try:
                default = to_json(value, branch, self._definitions, self._objects)
            except NoDefault:
                continue
            return kind if exact else [branch, *kind[:position], *kind[position + 1 :]], default
        raise AvroSchemaError(where, f"the default {value!r} fits no branch of the union; change one of them")

    def _json(self, value: Any, kind: Description, where: str) -> Any:
        try:
            return to_json(value, kind, self._definitions, self._objects)
        except NoDefault:
            said = f"the default {value!r} has no form in Avro as {self._branch(kind)}"
            raise AvroSchemaError(
                where, f"{said}; change it, or give `AvroField(default=...)` in JSON's form"
            ) from None

    def _enum(self, kind: type[enum.Enum], mark: AvroType, where: str) -> Description:
        if issubclass(kind, enum.Flag):
            raise AvroSchemaError(where, f"{kind.__name__} may be several flags at once; use int")
        mark = _merged(class_mark(kind), mark)
        symbols = enum_symbols(kind)
        for symbol in symbols:
            if not is_symbol(symbol):
                raise AvroSchemaError(where, f"{symbol!r} of {kind.__name__} is not an Avro name; rename the member")
        doc = mark.doc if mark.doc is not None else doc_of(kind)
        return self._symbols(kind, kind.__name__, list(symbols), doc, mark, where)

    def _literal(self, values: tuple[Any, ...], mark: AvroType, where: str, hint: str) -> Description:
        rest = [value for value in values if value is not None]
        kinds = {cast("type[Any]", type(value)) for value in rest}
        kind: Description
        if kinds == {str}:
            if wrong := [value for value in rest if not is_symbol(value)]:
                raise AvroSchemaError(where, f"{wrong[0]!r} is not an Avro name; change the Literal, or use str")
            kind = self._symbols(tuple(rest), hint, rest, mark.doc, mark, where)
        elif kinds in ({int}, {bool}, {bytes}):
            kind = self._scalar(kinds.pop(), mark, where, hint)
        elif kinds:
            raise AvroSchemaError(where, "a Literal of several types; use a union of types")
        else:
            return "null"
        return ["null", kind] if len(rest) < len(values) else kind

    def _symbols(
        self, kind: Any, name: str, symbols: list[str], doc: str | None, mark: AvroType, where: str
    ) -> Description:
        full, description = self._full_name(kind, name, mark, where)
        if description is None:
            return full
        description |= {"type": "enum", "symbols": symbols}
        if doc is not None:
            description["doc"] = doc
        if mark.default is not None:
            description["default"] = mark.default
        description.update(mark.props)
        return description

    # Single values

    def _scalar(self, kind: type[Any], mark: AvroType, where: str, hint: str) -> Description:
        if issubclass(kind, bool):
            return _with_props("boolean", mark, where)
        if issubclass(kind, int):
            return self._number(("long", "int"), mark, where)
        if issubclass(kind, float):
            return self._number(("double", "float"), mark, where)
        if issubclass(kind, str):
            return _with_props("string", mark, where)
        if issubclass(kind, _BYTES):
            return self._bytes(kind, mark, where, hint)
        if issubclass(kind, decimal.Decimal):
            if mark.precision is None and "logicalType" not in mark.props and mark.logical != "big-decimal":
                say = "write Annotated[Decimal, AvroType(precision=10, scale=2)]"
                raise AvroSchemaError(where, f"a Decimal needs a precision in Avro; {say}")
            return self._bytes(kind, mark, where, hint, logical=mark.logical or "decimal")
        if issubclass(kind, uuid.UUID):
            if mark.size is None:
                return _with_props("string", mark, where, "uuid")
            return self._bytes(kind, mark, where, hint, logical="uuid")
        if issubclass(kind, Duration):
            mark = _merged(AvroType(size=12, name="Duration"), mark)
            return self._bytes(Duration, mark, where, hint, logical="duration")
        for time, (base, logical) in _TIMES.items():
            if issubclass(kind, time):
                return self._time(time, base, mark, logical, where)
        if issubclass(kind, datetime.timedelta):
            raise AvroSchemaError(where, "a timedelta has no Avro type; use int with the unit in its name, or Duration")
        raise AvroSchemaError(where, f"{_name_of(kind)} has no Avro type")

    def _number(self, widths: tuple[str, str], mark: AvroType, where: str) -> Description:
        base = mark.type or widths[0]
        logical = mark.logical or mark.props.get("logicalType")
        if mark.type is None and logical is not None:
            base = ON_TYPE.get(logical, base)
        if base not in widths:
            raise AvroSchemaError(where, f"{base} does not fit here; {widths[0]} or {widths[1]} do")
        return _with_props(base, mark, where)

    def _time(self, kind: type[Any], base: str, mark: AvroType, logical: str, where: str) -> Description:
        logical = mark.logical or mark.props.get("logicalType") or logical
        if logical not in ON_TYPE or not logical.startswith(_LOGICAL_OF[kind]):
            raise AvroSchemaError(where, f"{logical} is not a logical type for a {kind.__name__}")
        return _with_props(ON_TYPE[logical], mark, where, logical)

    def _bytes(
        self, kind: type[Any], mark: AvroType, where: str, hint: str, *, logical: str | None = None
    ) -> Description:
        if mark.size is None:
            return _with_props("bytes", mark, where, logical)
        full, description = self._full_name((kind, mark.size, mark.precision, mark.scale), hint, mark, where)
        if description is None:
            return full
        description |= {"type": "fixed", "size": mark.size}
        if mark.doc is not None:
            description["doc"] = mark.doc
        props = _props(mark, logical)
        _check_logical(Fixed(full, mark.size, props=props), mark, where)
        description.update(props)
        return description


def _props(mark: AvroType, logical: str | None = None) -> Json:
    """Return a type's own members: those of its logical type, then the user's."""
    if "logicalType" in mark.props:
        return dict(mark.props)
    found: Json = {}
    if (logical := mark.logical or logical) is not None:
        found["logicalType"] = logical
        if mark.precision is not None:
            found["precision"] = mark.precision
        if mark.scale is not None:
            found["scale"] = mark.scale
    return found | mark.props


def _with_props(base: str, mark: AvroType, where: str, logical: str | None = None) -> Description:
    props = _props(mark, logical)
    _check_logical(Primitive(base, props), mark, where)
    return {"type": base} | props if props else base


def _check_logical(schema: Schema, mark: AvroType, where: str) -> None:
    """One that does not fit would be ignored by every reader."""
    name = schema.props.get("logicalType")
    if name is None or "logicalType" in mark.props or valid_logical_type(schema) is not None:
        return
    said = ", ".join(f"{member} {value}" for member, value in schema.props.items() if member in ("precision", "scale"))
    raise AvroSchemaError(where, f"{name}{f' with {said}' if said else ''} does not fit {schema.fullname}")


def _merged(inner: AvroType, outer: AvroType) -> AvroType:
    """Merge two marks. An attribute of the outer mark, which is nearer to the use, takes precedence."""
    blank = AvroType()
    said = {
        name: value for name in AvroType.__struct_fields__ if (value := getattr(outer, name)) != getattr(blank, name)
    }
    return msgspec.structs.replace(inner, **said)


def _class_name(annotation: Any) -> str:
    """``Order``; ``Box_Order`` for Box[Order]."""
    kind = typing.get_origin(annotation) or annotation
    return "_".join([kind.__name__, *map(_name_of, typing.get_args(annotation))])


def _name_of(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
