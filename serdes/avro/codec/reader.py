"""Generate functions that read bytes as objects, each for a writer's schema, a reader's schema and a Python type.

Fields are read into local variables in the writer's order, and the object is created from them at the end. Differences
between the two schemas are resolved when the code is generated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from serdes.avro.codec.arms import BASES, arm_for
from serdes.avro.codec.conversions import conversion_of
from serdes.avro.codec.defaults import default_bytes
from serdes.avro.codec.errors import AvroDataError, AvroTypeError
from serdes.avro.codec.guards import (
    MAX_NESTING,
    Budget,
    block_charge,
    least_bytes,
    needs_budget,
    record_charge,
    too_deep,
)
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
    unwrapped,
)
from serdes.avro.codec.source import Source
from serdes.avro.codec.values import Symbols, bad_branch, constants, is_constant, kept_apart, member_of, wrong_end
from serdes.avro.codec.varint import DOUBLE, FLOAT, ZIGZAG, read_count, read_int, read_length, read_long
from serdes.avro.resolve import branch_for, mismatch, sources
from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Primitive, Record, Schema, Union
from serdes.pydantic_json import adapter_of

_MOST_INDENT: Final = 12
"""Code nested deeper than this becomes a separate function, because Python limits nesting."""
_PARAMETERS = "data, p, size, budget, depth"


class Decoder:
    """``decode(data, at)`` reads one value that ends where the data end. It may raise anything: see `explain`."""

    def __init__(self, writer: Schema, reader: Schema, annotation: Any, *, names_branches: bool = False) -> None:
        """Raises AvroTypeError where ``annotation`` cannot hold what ``reader`` describes.

        ``names_branches``: plain data of a reader's union is a pair of branch name and value, which `Encoder` takes.
        """
        code = _Reader(writer, reader, annotation, names_branches)
        self._source = code.source
        self.decode: Callable[[bytes, int], Any] = code.source.build()["decode"]

    def explain(self, error: Exception) -> AvroDataError:
        """Return the same error, with the field and in words."""
        path = self._source.path_of(error)
        if isinstance(error, AvroDataError):
            return AvroDataError(error.reason, path + error.path)
        if isinstance(error, (IndexError, struct.error)):
            reason = "the message ends before the value does"
        elif isinstance(error, UnicodeDecodeError):
            reason = f"the text is not UTF-8: {error.reason} at its byte {error.start}"
        elif isinstance(error, RecursionError):
            reason = "records nest too deep"
        elif isinstance(error, OverflowError):
            reason = f"Python's type does not reach so far: {error}"
        else:
            reason = str(error)
        return AvroDataError(reason, path)


class _Reader:
    """Generate the source of the decoding functions.

    `value` and the methods that it calls return an expression, which the generated code uses once.
    """

    def __init__(self, writer: Schema, reader: Schema, annotation: Any, names_branches: bool) -> None:
        self.source = source = Source(reader.fullname)
        self._names_branches = names_branches
        self._functions: dict[Any, str] = {}
        self._apart = kept_apart(writer)
        self._has_budget = needs_budget(writer)
        for name, value in _TOOLS.items():
            source.bind(value, name)
        with source.function("def decode(data, p):"):
            source.line("size = len(data)")
            source.line("budget = Budget()" if self._has_budget else "budget = None")
            source.line("depth = 0")
            source.line(f"result = {self.value(writer, reader, annotation)}")
            source.line("if p != size: wrong_end(p, size)")
            source.line("return result")

    # dispatch --------------------------------------------------------------------------------------------------------

    def value(self, writer: Schema, reader: Schema, annotation: Any) -> str:
        """Code that reads a value and checks its annotation's constraints; the expression that is it."""
        read = self._value(writer, reader, annotation)
        check = check_of(annotation)
        return read if check is None else f"{self.source.bind(check, 'check')}({read})"

    def _value(self, writer: Schema, reader: Schema, annotation: Any) -> str:
        key, is_deep = (id(writer), id(reader), key_of(annotation)), self.source.indent > _MOST_INDENT
        if isinstance(writer, Union):
            return self._called(key, writer, reader, annotation) if is_deep else self._union(writer, reader, annotation)
        if isinstance(reader, Union):
            index = branch_for(writer, reader)
            if index is not None:
                branch = reader.branches[index]
                value = self._value(writer, branch, annotation)
                return f"({branch.fullname!r}, {value})" if self._names_branches and not reader.is_optional else value
        reason = mismatch(writer, reader)
        if reason is not None:
            self.source.line(f"raise AvroDataError({reason!r})")
            return "None"
        shape = shape_of(annotation)
        if isinstance(shape, Arms):
            with self._placed():
                arm = arm_for(reader, shape)
            return self.value(writer, reader, arm)
        if id(writer) in self._apart or (is_deep and isinstance(writer, (Array, Map, Record))):
            return self._called((id(writer), id(reader), key_of(annotation)), writer, reader, annotation)
        return self._one(writer, reader, annotation, shape)

    def _one(self, writer: Schema, reader: Schema, annotation: Any, shape: Shape) -> str:
        if isinstance(writer, Record) and isinstance(reader, Record):
            return self._record(writer, reader, annotation, shape)
        if isinstance(writer, Array) and isinstance(reader, Array):
            return self._array(writer, reader, shape)
        if isinstance(writer, Map) and isinstance(reader, Map):
            return self._map(writer, reader, shape)
        if isinstance(writer, Enum) and isinstance(reader, Enum):
            return self._enum(writer, reader, shape)
        if writer.type == "null":
            if not isinstance(shape, (Nothing, Constants)) and type(shape) is not Shape:
                raise self._misfit(reader, annotation)
            return "None"
        return self._converted(self._primitive(writer, reader), reader, annotation, shape)

    def _called(self, key: Any, writer: Schema, reader: Schema, annotation: Any) -> str:
        """Return a call of the function that reads it, which is written when it is needed first."""
        source = self.source
        name = self._functions.get(key)
        if name is None:
            name = self._functions[key] = source.fresh("read_")
            with source.function(f"def {name}({_PARAMETERS}):"):
                if isinstance(writer, Union):
                    result = self.value(writer, reader, annotation)
                else:
                    if isinstance(writer, Record):
                        source.line(f"if depth > {MAX_NESTING}: too_deep()")
                    if id(writer) in self._apart:
                        self._charge(writer)
                    result = self._one(writer, reader, annotation, shape_of(annotation))
                source.line(f"return {result}, p")
        value = source.fresh("x")
        deeper = " + 1" if isinstance(writer, Record) else ""
        source.line(f"{value}, p = {name}(data, p, size, budget, depth{deeper})")
        return value

    def _charge(self, record: Schema) -> None:
        """Charge for an optional record, which was not charged before."""
        if self._has_budget and (charge := record_charge(record, self._apart)):
            self.source.line(charge)

    @contextmanager
    def _placed(self) -> Generator[None]:
        """Says of an AvroTypeError which field it is about."""
        try:
            yield
        except AvroTypeError as error:
            raise error if error.path else AvroTypeError(error.reason, self.source.where) from None

    def _misfit(self, reader: Schema, annotation: Any) -> AvroTypeError:
        name = getattr(annotation, "__name__", str(annotation))
        logical = f" ({reader.logical_type})" if reader.logical_type else ""
        return AvroTypeError(f"Avro's {reader.fullname}{logical} cannot be read as {name}", self.source.where)

    # single values ---------------------------------------------------------------------------------------------------

    def _number(self, read: str, name: str) -> None:
        """One byte is the common case, and needs no call."""
        line = self.source.line
        line(f"{name} = data[p]")
        line(f"if {name} < 128: {name} = ZIGZAG[{name}]; p += 1")
        line(f"else: {name}, p = {read}(data, p)")

    def _length(self, name: str, read: str = "read_length") -> None:
        line = self.source.line
        line(f"{name} = data[p]")
        line(f"if {name} & 129: {name}, p = {read}(data, p)")
        line(f"else: {name} >>= 1; p += 1")

    def _primitive(self, writer: Schema, reader: Schema) -> str:
        source, name = self.source, self.source.fresh("x")
        kind = writer.type
        if kind in ("int", "long"):
            self._number(f"read_{kind}", name)
            return f"float({name})" if reader.type in ("float", "double") else name
        if kind in ("string", "bytes"):
            self._length("n")
            source.line("e = p + n")
            source.line("if e > size: raise IndexError")
            source.line(f"{name} = data[p:e]{'.decode()' if reader.type == 'string' else ''}")
            source.line("p = e")
        elif isinstance(writer, Fixed):
            source.line(f"e = p + {writer.size}")
            source.line("if e > size: raise IndexError")
            source.line(f"{name} = data[p:e]; p = e")
        elif kind == "boolean":
            source.line(f"{name} = BOOLEANS[data[p]]; p += 1")
        else:
            source.line(f"{name}, = read_{kind}(data, p); p += {4 if kind == 'float' else 8}")
        return name

    def _converted(self, value: str, reader: Schema, annotation: Any, shape: Shape) -> str:
        """Convert the value that was read to the annotated type."""
        logical = conversion_of(reader)
        bind = self.source.bind
        if type(shape) is Shape:
            if logical is None or logical.is_lossy:
                return value
            return f"{bind(logical.read, 'to_logical')}({value})"
        if isinstance(shape, Constants):
            return f"{bind(constants(shape.values), 'to_constant')}({value})"
        if isinstance(shape, Members):
            return f"{bind(shape.kind, 'to_member')}({value})"
        if not isinstance(shape, Scalar):
            raise self._misfit(reader, annotation)
        kind, base = shape.kind, BASES[reader.type]
        if logical is not None and issubclass(kind, logical.kind):
            return f"{bind(logical.read, 'to_logical')}({value})"
        if kind is base:
            return value
        is_number = base is int and kind is float
        if (
            is_number
            or (issubclass(kind, base) and kind is not bool)
            or (base is bytes and kind in (bytearray, memoryview))
        ):
            return f"{bind(kind, 'to_kind')}({value})"
        raise self._misfit(reader, annotation)

    def _enum(self, writer: Enum, reader: Enum, shape: Shape) -> str:
        as_value: Callable[[str], Any] = str
        if isinstance(shape, Members):
            as_value = member_of(shape.kind, reader)
        elif isinstance(shape, Constants):
            as_value = constants(shape.values)
        elif type(shape) is not Shape and not (isinstance(shape, Scalar) and shape.kind is str):
            raise self._misfit(reader, getattr(shape, "kind", shape))
        table = self.source.bind(Symbols(writer, reader, as_value), "symbols")
        name = self.source.fresh("x")
        if len(writer.symbols) <= 64:
            self.source.line(f"{name} = {table}[data[p]]; p += 1")
        else:
            self.source.line("n, p = read_long(data, p)")
            self.source.line(f"{name} = {table}[n * 2]")
        return name

    # what holds others -----------------------------------------------------------------------------------------------

    def _union(self, writer: Union, reader: Schema, annotation: Any) -> str:
        source, name = self.source, self.source.fresh("x")
        which = source.fresh("u")
        if len(writer.branches) <= 64:
            source.line(f"{which} = data[p]; p += 1")
        else:
            source.line(f"{which}, p = read_long(data, p); {which} *= 2")
        word = "if"
        for index, branch in enumerate(writer.branches):
            with source.block(f"{word} {which} == {index * 2}:"):
                if isinstance(branch, Record) and id(branch) not in self._apart:
                    self._charge(branch)
                source.line(f"{name} = {self.value(branch, reader, annotation)}")
            word = "elif"
        source.line(f"else: bad_branch({which}, {len(writer.branches)})")
        return name

    def _block_loop(self, item: Schema, key_bytes: int = 0) -> Generator[None]:
        """Generate the loop around an item of an array or entry of a map. ``key_bytes``: the fewest bytes of a key."""
        source, count = self.source, self.source.fresh("n")
        least, cost, more = block_charge(item, key_bytes, self._apart)
        left = "(size - p)" if least == 1 else f"(size - p) // {least}" if least else count
        charge = f"budget.charge({count}, {cost}, {more}, {left})"
        with source.block("while True:"):
            self._length(count, "read_count")
            source.line(f"if not {count}: break")
            source.line(charge)
            with source.block(f"for _ in range({count}):"):
                yield

    def _array(self, writer: Array, reader: Array, shape: Shape) -> str:
        if not isinstance(shape, Items) and type(shape) is not Shape:
            raise self._misfit(reader, getattr(shape, "kind", shape))
        item, make = (shape.item, shape.make) if isinstance(shape, Items) else (Any, None)
        source, items = self.source, self.source.fresh("items")
        source.line(f"{items} = []")
        for _ in self._block_loop(writer.items):
            with source.at(("count", items)):
                source.line(f"{items}.append({self.value(writer.items, reader.items, item)})")
        return items if make is None else f"{source.bind(make, 'make')}({items})"

    def _map(self, writer: Map, reader: Map, shape: Shape) -> str:
        if not isinstance(shape, Entries) and type(shape) is not Shape:
            raise self._misfit(reader, getattr(shape, "kind", shape))
        source, entries = self.source, self.source.fresh("entries")
        source.line(f"{entries} = {{}}")
        for _ in self._block_loop(writer.values, key_bytes=1):
            key = self._primitive(_TEXT, _TEXT)
            with source.at(("key", key)):
                value = self.value(writer.values, reader.values, shape.value if isinstance(shape, Entries) else Any)
                source.line(f"{entries}[{key}] = {value}")
        return entries

    def _record(self, writer: Record, reader: Record, annotation: Any, shape: Shape) -> str:
        if isinstance(shape, Entries):
            item = shape.value
        elif isinstance(shape, Object) or type(shape) is Shape:
            item = Any
        else:
            raise self._misfit(reader, annotation)
        target, given = sources(writer, reader), dict[str, str]()
        wanted = {field.name: item for field in reader.fields}
        if isinstance(shape, Object):
            wanted = self._attributes(reader, shape)
        for field in writer.fields:
            read_as = target.get(field.position)
            with self.source.at(f".{field.name}"):
                if read_as is None or read_as.name not in wanted:
                    self._skip(field.schema)
                    continue
                value = self.value(field.schema, read_as.schema, wanted[read_as.name])
                if not value.isidentifier():
                    name = self.source.fresh("x")
                    self.source.line(f"{name} = {value}")
                    value = name
                given[read_as.name] = value
        for field in reader.fields:
            if field.name in wanted and field.name not in given:
                with self.source.at(f".{field.name}"):
                    given[field.name] = self._default(field, wanted[field.name])
        return self._made(reader, shape, given)

    def _attributes(self, reader: Record, shape: Object) -> dict[str, Any]:
        """Return the annotations of the fields that the class has."""
        found = {field.name: shape.attribute(field.name, *field.aliases) for field in reader.fields}
        have = {one.name for one in found.values() if one is not None}
        missing = [one.name for one in shape.attributes if one.required and one.name not in have]
        if missing:
            raise AvroTypeError(
                f"{shape.kind.__name__} needs {', '.join(missing)}, which {reader.fullname} does not have",
                self.source.where,
            )
        return {
            name: one.annotation if one.required or shape.how != "dict" else unwrapped(one.annotation) | None
            for name, one in found.items()
            if one is not None
        }

    def _made(self, reader: Record, shape: Shape, given: dict[str, str]) -> str:
        """Return the expression of a record made of its fields' variables."""
        if not isinstance(shape, Object):
            return "{" + ", ".join(f"{field.name!r}: {given[field.name]}" for field in reader.fields) + "}"
        of = {one.name: value for name, value in given.items() if (one := self._attribute(reader, shape, name))}
        if shape.how == "dict":
            return self._typed_dict(shape, of)
        if shape.how == "validate":
            names = {one.name: one.data_name for one in shape.attributes}
            literal = ", ".join(f"{names[name]!r}: {value}" for name, value in of.items())
            return f"{self.source.bind(adapter_of(shape.kind).validate_python, 'make')}({{{literal}}})"
        arguments: list[str] = []
        by_name = False
        for one in shape.attributes:
            by_name = by_name or one.keyword or one.name not in of  # also after a field that is omitted
            if one.name in of:
                arguments.append(f"{one.name}={of[one.name]}" if by_name else of[one.name])
        return f"{self.source.bind(shape.kind, 'make')}({', '.join(arguments)})"

    def _typed_dict(self, shape: Object, of: dict[str, str]) -> str:
        """Omit optional keys whose value is null."""
        required = {one.name for one in shape.attributes if one.required}
        name = self.source.fresh("x")
        literal = ", ".join(f"{key!r}: {value}" for key, value in of.items() if key in required)
        self.source.line(f"{name} = {{{literal}}}")
        for key, value in of.items():
            if key not in required:
                self.source.line(f"if {value} is not None: {name}[{key!r}] = {value}")
        return name

    @staticmethod
    def _attribute(reader: Record, shape: Object, name: str) -> Any:
        field = cast("Field", reader.field(name))
        return shape.attribute(name, *field.aliases)

    def _default(self, field: Field, annotation: Any) -> str:
        """Return the value of a reader's field that the writer did not write."""
        with self._placed():
            data = default_bytes(field.schema, field.default)
            decode = Decoder(field.schema, field.schema, annotation, names_branches=self._names_branches).decode
        value = decode(data, 0)
        if is_constant(value):
            return self.source.bind(value, self.source.fresh("default_"))
        make = self.source.bind(lambda: decode(data, 0), "default")
        return f"{make}()"

    # skipped values -----------------------------------------------------------------------------------------------

    def _skip(self, writer: Schema) -> None:
        if isinstance(writer, (Union, Array, Map, Record)):
            if id(writer) in self._apart or self.source.indent > _MOST_INDENT:
                self._skip_called(writer)
            else:
                self._skip_inside(writer)
            return
        line, kind = self.source.line, writer.type
        if isinstance(writer, Fixed):
            line(f"p += {writer.size}")
        elif kind in _WIDTHS:
            line(f"p += {_WIDTHS[kind]}")
        elif kind in ("int", "long", "enum"):
            line("while data[p] > 127: p += 1")
            line("p += 1")
        else:
            self._length("n")
            line("p += n")

    def _skip_inside(self, writer: Union | Array | Map | Record) -> None:
        if isinstance(writer, Record):
            for field in writer.fields:
                self._skip(field.schema)
        elif isinstance(writer, Union):
            self._skip_union(writer)
        else:
            self._skip_blocks(writer)

    def _skip_called(self, writer: Union | Array | Map | Record) -> None:
        source, key = self.source, ("skip", id(writer))
        name = self._functions.get(key)
        if name is None:
            name = self._functions[key] = source.fresh("skip_")
            with source.function(f"def {name}({_PARAMETERS}):"):
                if isinstance(writer, Record):
                    source.line(f"if depth > {MAX_NESTING}: too_deep()")
                self._skip_inside(writer)
                source.line("return p")
        deeper = " + 1" if isinstance(writer, Record) else ""
        source.line(f"p = {name}(data, p, size, budget, depth{deeper})")

    def _skip_union(self, writer: Union) -> None:
        source, which = self.source, self.source.fresh("u")
        source.line(f"{which}, p = read_long(data, p)")
        for index, branch in enumerate(writer.branches):
            with source.block(f"{'elif' if index else 'if'} {which} == {index}:"):
                self._skip(branch)
        source.line(f"else: bad_branch({which} * 2, {len(writer.branches)})")

    def _skip_blocks(self, writer: Array | Map) -> None:
        """Also by the size that a block may say of itself."""
        source, count = self.source, self.source.fresh("n")
        item = writer.items if isinstance(writer, Array) else writer.values
        with source.block("while True:"):
            source.line(f"{count}, p = read_long(data, p)")
            source.line(f"if not {count}: break")
            with source.block(f"if {count} < 0:"):
                source.line("n, p = read_length(data, p)")
                source.line("p += n")
                source.line("continue")
            if least_bytes(item) or isinstance(writer, Map):
                source.line(f"if {count} > size - p: raise IndexError")
                with source.block(f"for _ in range({count}):"):
                    if isinstance(writer, Map):
                        self._skip(_TEXT)
                    self._skip(item)


_TEXT = Primitive("string")
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _Booleans(dict[int, bool]):
    def __missing__(self, byte: int) -> bool:
        raise AvroDataError(f"a boolean is 0 or 1, not {byte}")


_TOOLS: dict[str, Any] = {
    "ZIGZAG": ZIGZAG,
    "BOOLEANS": _Booleans({0: False, 1: True}),
    "AvroDataError": AvroDataError,
    "Budget": Budget,
    "bad_branch": bad_branch,
    "read_count": read_count,
    "read_double": DOUBLE.unpack_from,
    "read_float": FLOAT.unpack_from,
    "read_int": read_int,
    "read_length": read_length,
    "read_long": read_long,
    "too_deep": too_deep,
    "wrong_end": wrong_end,
}
