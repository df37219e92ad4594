"""Generate functions that write objects as bytes, each for a schema and a Python type.

The encoded parts are local variables, which are joined at the end, and at the end of each list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from serdes.avro.codec.arms import BASES, arm_for
from serdes.avro.codec.branches import arm_choice, plain_choice
from serdes.avro.codec.conversions import Conversion, conversion_of
from serdes.avro.codec.defaults import default_bytes
from serdes.avro.codec.errors import AvroDataError, AvroTypeError
from serdes.avro.codec.guards import MAX_NESTING, Budget, block_charge, needs_budget, record_charge, too_deep
from serdes.avro.codec.shapes import (
    Arms,
    Constants,
    Entries,
    Items,
    Members,
    Nothing,
    Object,
    Scalar,
    Shape,
    check_of,
    key_of,
    shape_of,
)
from serdes.avro.codec.source import Source
from serdes.avro.codec.values import as_bytes, as_fixed, constants, kept_apart, symbol_bytes
from serdes.avro.codec.varint import DOUBLE, FLOAT, SMALL, int_bytes, long_bytes, small
from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Record, Schema, Union

_MOST_INDENT: Final = 12

Parts = list[str]
"""Expressions that are bytes, in order."""


class Encoder:
    """``encode(value, prefix)`` returns ``prefix`` and the value's bytes. It may raise any exception; see `explain`."""

    def __init__(self, schema: Schema, annotation: Any) -> None:
        """Raises AvroTypeError where values of ``annotation`` cannot be written as ``schema``."""
        code = _Writer(schema, annotation)
        self._source = code.source
        self.encode: Callable[[Any, bytes], bytes] = code.source.build()["encode"]

    def explain(self, error: Exception) -> AvroDataError:
        """Return the same error, with the field and in words."""
        path = self._source.path_of(error)
        if isinstance(error, AvroDataError):
            return AvroDataError(error.reason, path + error.path)
        if isinstance(error, KeyError):
            return AvroDataError(f"{error.args[0]!r} is missing, or not allowed here", path)
        if isinstance(error, struct.error):
            return AvroDataError(f"not a number: {error}", path)
        if isinstance(error, RecursionError):
            return AvroDataError("records nest too deep", path)
        if isinstance(error, AttributeError) and error.name in _NEEDED:
            return AvroDataError(f"{error.obj!r:.80} is {type(error.obj).__name__}, not {_NEEDED[error.name]}", path)
        return AvroDataError(str(error), path)


class _Writer:
    """Writes the functions. ``parts`` takes what to join; names of values are used once."""

    def __init__(self, schema: Schema, annotation: Any) -> None:
        self.source = source = Source(schema.fullname)
        self._functions: dict[Any, str] = {}
        self._apart = kept_apart(schema)
        self._has_budget = needs_budget(schema)
        for name, value in _TOOLS.items():
            source.bind(value, name)
        with source.function("def encode(value, prefix):"):
            source.line("depth = 0")
            source.line(f"budget = {'Budget()' if self._has_budget else None}")
            parts: list[tuple[str, Any]] = []
            self.value("value", schema, annotation, parts)
            self._return("return JOIN((prefix,", parts, "))")

    def _return(self, before: str, parts: list[tuple[str, Any]], after: str) -> None:
        """Write each part on a separate line, attributed to its field."""
        self.source.line(before)
        for part, path in parts:
            with self.source.about(path):
                self.source.line(f" {part},")
        self.source.line(after)

    def _add(self, parts: list[tuple[str, Any]], *expressions: str) -> None:
        parts.extend((one, self.source.path) for one in expressions)

    # dispatch --------------------------------------------------------------------------------------------------------

    def value(self, name: str, schema: Schema, annotation: Any, parts: list[tuple[str, Any]]) -> None:
        """Code for the value that the expression ``name`` is, which must keep the rules of its annotation."""
        if (check := check_of(annotation)) is not None:
            checked = self.source.fresh("x")
            self.source.line(f"{checked} = {name}")
            self.source.line(f"{self.source.bind(check, 'check')}({checked})")
            name = checked
        shape, is_deep = shape_of(annotation), self.source.indent > _MOST_INDENT
        if isinstance(schema, Union):
            if is_deep:
                self._called((id(schema), key_of(annotation)), name, schema, annotation, parts)
            else:
                self._union(name, schema, annotation, shape, parts)
            return
        if isinstance(shape, Arms):
            self.value(name, schema, self._arm(schema, shape), parts)
            return
        if id(schema) in self._apart or (is_deep and isinstance(schema, (Array, Map, Record))):
            self._called((id(schema), key_of(annotation)), name, schema, annotation, parts)
        else:
            self._one(name, schema, annotation, shape, parts)

    def _one(self, name: str, schema: Schema, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        if isinstance(schema, Record):
            self._record(name, schema, annotation, shape, parts)
        elif isinstance(schema, Array):
            self._array(name, schema, annotation, shape, parts)
        elif isinstance(schema, Map):
            self._map(name, schema, annotation, shape, parts)
        elif schema.type == "null":
            if not isinstance(shape, (Nothing, Constants)) and type(shape) is not Shape:
                raise self._misfit(schema, annotation)
            self.source.line(f"if {name} is not None: raise TypeError(f'{{{name}!r:.80}} is not null')")
        elif isinstance(schema, Enum):
            self._enum(name, schema, annotation, shape, parts)
        else:
            self._primitive(self._converted(name, schema, annotation, shape), schema, parts)

    def _called(self, key: Any, name: str, schema: Schema, annotation: Any, parts: list[tuple[str, Any]]) -> None:
        source = self.source
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = source.fresh("write_")
            inner: list[tuple[str, Any]] = []
            with source.function(f"def {function}(value, depth, budget):"):
                if isinstance(schema, Union):
                    self.value("value", schema, annotation, inner)
                else:
                    if isinstance(schema, Record):
                        source.line(f"if depth > {MAX_NESTING}: too_deep()")
                    if id(schema) in self._apart:
                        self._charge(schema)
                    self._one("value", schema, annotation, shape_of(annotation), inner)
                self._return("return JOIN((", inner, "))")
        result = source.fresh("b")
        source.line(f"{result} = {function}({name}, depth{' + 1' if isinstance(schema, Record) else ''}, budget)")
        self._add(parts, result)

    def _charge(self, record: Schema) -> None:
        if self._has_budget and (charge := record_charge(record, self._apart)):
            self.source.line(charge)

    def _charge_block(self, items: str, item: Schema, key_bytes: int) -> None:
        _, cost, more = block_charge(item, key_bytes, self._apart)
        charge = f"budget.charge(len({items}), {cost}, {more}, len({items}))"
        if more == 0:  # in place, because a call takes three times as long
            self.source.line(f"budget.items -= len({items}){f' * {cost}' if cost > 1 else ''}")
            charge = f"if budget.items < 0: {charge}"
        self.source.line(charge)

    def _arm(self, schema: Schema, shape: Arms) -> Any:
        try:
            return arm_for(schema, shape)
        except AvroTypeError as error:
            raise AvroTypeError(error.reason, self.source.where) from None

    def _misfit(self, schema: Schema, annotation: Any) -> AvroTypeError:
        name = getattr(annotation, "__name__", str(annotation))
        logical = f" ({schema.logical_type})" if schema.logical_type else ""
        return AvroTypeError(f"{name} cannot be written as Avro's {schema.fullname}{logical}", self.source.where)

    # single values ---------------------------------------------------------------------------------------------------

    def _converted(self, name: str, schema: Schema, annotation: Any, shape: Shape) -> str:
        """Return the value as the schema's own type has it."""
        logical = conversion_of(schema)
        if type(shape) is Shape:
            if logical is None:
                return name
            convert, kind = self.source.bind(logical.write, "to_avro"), self.source.bind(logical.kind, "kind")
            return f"({convert}({name}) if isinstance({name}, {kind}) else {self._raw(name, logical)})"
        if isinstance(shape, Members):
            return f"{name}.value"
        if isinstance(shape, Constants):
            return f"{self.source.bind(constants(shape.values), 'to_constant')}({name})"
        if not isinstance(shape, Scalar):
            raise self._misfit(schema, annotation)
        kind, base = shape.kind, BASES[schema.type]
        if logical is not None and issubclass(kind, logical.kind):
            return f"{self.source.bind(logical.write, 'to_avro')}({name})"
        is_number = (kind is int and base is float) or (kind is float and base is int)
        is_bytes = base is bytes and kind in (bytearray, memoryview)
        if is_number or is_bytes or (issubclass(kind, base) and not (kind is bool and base is int)):
            return name if logical is None else self._raw(name, logical)
        raise self._misfit(schema, annotation)

    def _raw(self, name: str, logical: Conversion) -> str:
        """Return a value in the form below its logical type. Readers of the logical type must be able to convert it."""
        return name if logical.is_lossy else f"{self.source.bind(logical.checked, 'checked')}({name})"

    def _primitive(self, value: str, schema: Schema, parts: list[tuple[str, Any]]) -> None:
        source, kind = self.source, schema.type
        if kind in ("int", "long"):
            if not value.isidentifier():
                name = source.fresh("x")
                source.line(f"{name} = {value}")
                value = name
            self._add(parts, f"(small({value}) or {kind}_bytes({value}))")
        elif kind in ("float", "double"):
            self._add(parts, f"{kind}_bytes({value})")
        elif kind == "boolean":
            self._add(parts, f"BOOLEANS[{value}]")
        elif isinstance(schema, Fixed):
            self._add(parts, f"as_fixed({value}, {schema.size})")
        else:
            name = source.fresh("x")
            source.line(f"{name} = {value}.encode()" if kind == "string" else f"{name} = as_bytes({value})")
            self._add(parts, f"(small(len({name})) or long_bytes(len({name})))", name)

    def _enum(self, name: str, schema: Enum, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        fits = isinstance(shape, (Members, Constants)) or type(shape) is Shape
        if not fits and not (isinstance(shape, Scalar) and shape.kind is str):
            raise self._misfit(schema, annotation)
        table = self.source.bind(symbol_bytes(schema, shape.kind if isinstance(shape, Members) else None), "symbols")
        self._add(parts, f"{table}[{name}]")

    # what holds others -----------------------------------------------------------------------------------------------

    def _joined(self, result: str, index: bytes, parts: list[tuple[str, Any]]) -> None:
        if not parts:
            self.source.line(f"{result} = {index!r}")
        elif len(parts) <= 2 and all(path == self.source.path for _, path in parts):
            self.source.line(f"{result} = {' + '.join([repr(index), *(part for part, _ in parts)])}")
        else:
            self._return(f"{result} = JOIN(({index!r},", parts, "))")

    def _union(self, name: str, schema: Union, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        source, result = self.source, self.source.fresh("b")
        if not name.isidentifier():
            variable = source.fresh("x")
            source.line(f"{variable} = {name}")
            name = variable
        arms = self._branch_annotations(schema, annotation, shape)
        if schema.is_optional and len(arms) == 2:
            null = [branch.type for branch in schema.branches].index("null")
            with source.block(f"if {name} is None:"):
                source.line(f"{result} = {long_bytes(null)!r}")
            with source.block("else:"):
                self._branch(name, result, 1 - null, schema, arms)
        else:
            choose = plain_choice(schema) if type(shape) is Shape else arm_choice(schema, arms)
            which = source.fresh("u")
            source.line(f"{which}, {name} = {source.bind(choose, 'choose')}({name})")
            for at, index in enumerate(arms):
                with source.block(f"{'elif' if at else 'if'} {which} == {index}:"):
                    self._branch(name, result, index, schema, arms)
        self._add(parts, result)

    def _branch(self, name: str, result: str, index: int, schema: Union, arms: dict[int, Any]) -> None:
        inner: list[tuple[str, Any]] = []
        if id(schema.branches[index]) not in self._apart:
            self._charge(schema.branches[index])
        self.value(name, schema.branches[index], arms[index], inner)
        self._joined(result, long_bytes(index), inner)

    def _branch_annotations(self, schema: Union, annotation: Any, shape: Shape) -> dict[int, Any]:
        """Return the annotation of each branch that values of this type can be written as. Every arm must have one."""
        if type(shape) is Shape:
            return dict.fromkeys(range(len(schema.branches)), Any)
        arms = shape if isinstance(shape, Arms) else Arms((annotation,))
        found: dict[int, Any] = {}
        for index, branch in enumerate(schema.branches):
            try:
                found[index] = arm_for(branch, arms)
            except AvroTypeError:
                continue
        lost = [arm for arm in arms.annotations if arm not in found.values()]
        if lost:
            names = ", ".join(branch.fullname for branch in schema.branches)
            raise AvroTypeError(
                f"no branch of the union ({names}) holds {getattr(lost[0], '__name__', lost[0])}", self.source.where
            )
        return found

    def _array(self, name: str, schema: Array, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        if not isinstance(shape, Items) and type(shape) is not Shape:
            raise self._misfit(schema, annotation)
        source = self.source
        items, out, item, result = (source.fresh(one) for one in ("items", "out", "item", "b"))
        source.line(f"{items} = {name}")
        with source.block(f"if {items}:"):
            source.line(f"if isinstance({items}, NO_LISTS): raise TypeError(f'{{{items}!r:.80}} is not a list')")
            self._charge_block(items, schema.items, 0)
            source.line(f"{out} = [long_bytes(len({items}))]")
            with source.at(("item", f"{items} {item}")), source.block(f"for {item} in {items}:"):
                inner: list[tuple[str, Any]] = []
                self.value(item, schema.items, shape.item if isinstance(shape, Items) else Any, inner)
                self._append(out, inner)
            source.line(f"{out}.append(b'\\0')")
            source.line(f"{result} = JOIN({out})")
        source.line(f"elif {items} is None: raise TypeError('None is not a list')")
        source.line(f"else: {result} = b'\\0'")
        self._add(parts, result)

    def _append(self, out: str, parts: list[tuple[str, Any]]) -> None:
        if len(parts) == 1:
            self.source.line(f"{out}.append({parts[0][0]})")
        elif parts:
            self._return(f"{out} += (", parts, ")")

    def _map(self, name: str, schema: Map, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        if not isinstance(shape, Entries) and type(shape) is not Shape:
            raise self._misfit(schema, annotation)
        source = self.source
        entries, out, key, item, text, result = (source.fresh(one) for one in ("m", "out", "key", "item", "x", "b"))
        source.line(f"{entries} = {name}")
        source.line(f"{out} = [long_bytes(len({entries}))] if {entries} else []")
        self._charge_block(entries, schema.values, 1)
        with source.block(f"for {key}, {item} in {entries}.items():"), source.at(("key", key)):
            source.line(f"{text} = {key}.encode()")
            inner: list[tuple[str, Any]] = []
            self._add(inner, f"(small(len({text})) or long_bytes(len({text})))", text)
            self.value(item, schema.values, shape.value if isinstance(shape, Entries) else Any, inner)
            self._append(out, inner)
        source.line(f"{out}.append(b'\\0')")
        source.line(f"{result} = JOIN({out})")
        self._add(parts, result)

    def _record(self, name: str, schema: Record, annotation: Any, shape: Shape, parts: list[tuple[str, Any]]) -> None:
        source = self.source
        is_object = isinstance(shape, Object)
        if not is_object and not isinstance(shape, Entries) and type(shape) is not Shape:
            raise self._misfit(schema, annotation)
        if not name.isidentifier():
            variable = source.fresh("r")
            source.line(f"{variable} = {name}")
            name = variable
        if is_object and shape.how != "dict":
            cls = source.bind(shape.kind, "kind")
            source.line(f"if not isinstance({name}, {cls}): raise TypeError(wrong_kind({name}, {cls}))")
        item = shape.value if isinstance(shape, Entries) else Any
        for field in schema.fields:
            with source.at(f".{field.name}"):
                if isinstance(shape, Object):
                    self._attribute(name, field, shape, parts)
                else:
                    self._entry(name, field, item, field.name, parts, may_lack=True)

    def _attribute(self, name: str, field: Field, shape: Object, parts: list[tuple[str, Any]]) -> None:
        """Write one field of an object, or the schema's default if the class lacks the field."""
        one = shape.attribute(field.name, *field.aliases)
        if one is None:
            if not field.has_default:
                raise AvroTypeError(
                    f"{shape.kind.__name__} lacks the field, and the schema has no default", self.source.where
                )
            self._add(parts, repr(default_bytes(field.schema, field.default)))
        elif shape.how == "dict":
            self._entry(name, field, one.annotation, one.name, parts, may_lack=not one.required)
        else:
            self._field(f"{name}.{one.name}", field, one.annotation, parts)

    def _entry(
        self, name: str, field: Field, annotation: Any, key: str, parts: list[tuple[str, Any]], *, may_lack: bool
    ) -> None:
        """One field of a dict; the schema's default where it is not there."""
        if not (may_lack and field.has_default):
            self._field(f"{name}[{key!r}]", field, annotation, parts)
            return
        source, value, result = self.source, self.source.fresh("x"), self.source.fresh("b")
        source.line(f"{value} = {name}.get({key!r}, MISSING)")
        with source.block(f"if {value} is MISSING:"):
            source.line(f"{result} = {default_bytes(field.schema, field.default)!r}")
        with source.block("else:"):
            inner: list[tuple[str, Any]] = []
            self._field(value, field, annotation, inner)
            self._joined(result, b"", inner)
        self._add(parts, result)

    def _field(self, expression: str, field: Field, annotation: Any, parts: list[tuple[str, Any]]) -> None:
        """Add the code that writes a field. An expression that the code uses twice is stored in a variable first."""
        if field.schema.type in ("enum", "null", "fixed") or conversion_of(field.schema) is not None:
            name = self.source.fresh("x")
            self.source.line(f"{name} = {expression}")
            expression = name
        self.value(expression, field.schema, annotation, parts)


_NEEDED = {"encode": "str", "items": "a dict", "value": "a member of an enum", "get": "a dict"}
"""The expected type of a value, by the attribute that the value lacks."""


class _Booleans(dict[Any, bytes]):
    def __missing__(self, value: Any) -> bytes:
        raise TypeError(f"{value!r:.80} is {type(value).__name__}, not bool")


def wrong_kind(value: Any, kind: type) -> str:
    return f"{value!r:.80} is {type(value).__name__}, not {kind.__name__}"


_TOOLS: dict[str, Any] = {
    "Budget": Budget,
    "BOOLEANS": _Booleans({True: b"\1", False: b"\0"}),
    "JOIN": b"".join,
    "MISSING": object(),
    "NO_LISTS": (str, bytes, bytearray, memoryview, dict),
    "SMALL": SMALL,
    "as_bytes": as_bytes,
    "as_fixed": as_fixed,
    "double_bytes": DOUBLE.pack,
    "float_bytes": FLOAT.pack,
    "int_bytes": int_bytes,
    "long_bytes": long_bytes,
    "small": small,
    "too_deep": too_deep,
    "wrong_kind": wrong_kind,
}
