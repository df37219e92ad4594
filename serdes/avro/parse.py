"""Parse the text of an Avro schema into nodes, as strictly as Java's ``Schema.Parser`` of Avro 1.12.

This parser accepts, refuses and resolves names exactly as Java does. So a name may be used before its definition, a
type may be defined twice identically, and a default may match any branch of its union. The limits differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast

from serdes.avro import limits
from serdes.avro.checks import fits, same_schema
from serdes.avro.forward import Finishing, Forward, undefined
from serdes.avro.logical import valid_logical_type
from serdes.avro.places import Path, bad_default, bad_name, error, render, shown
from serdes.avro.schema import (
    MISSING,
    PRIMITIVES,
    Array,
    AvroSchemaError,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Props,
    Record,
    Schema,
    Union,
)

Names = Literal["unicode", "ascii", "any"]
"""Letters that names may have. Java's default is ``unicode``; a registry holds new schemas to ``ascii``."""

Json = dict[str, Any]

SCHEMA_MEMBERS: Final = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
ENUM_MEMBERS: Final = SCHEMA_MEMBERS | {"default"}
FIELD_MEMBERS: Final = frozenset({"default", "doc", "name", "order", "type", "aliases"})
MAX_FIXED: Final = (1 << 31) - 1 - 8
_JAVA_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)


def parse(
    text: str,
    *,
    references: Sequence[str] = (),
    validate_defaults: bool = True,
    names: Names = "unicode",
) -> Schema:
    """Return the schema of a text. ``references`` are the texts of named types that it uses, dependencies first.

    Raises AvroSchemaError with the place in the text, the reason, and what to change.
    """
    parser = Parser(validate_defaults=validate_defaults, names=names)
    for number, reference in enumerate(references):
        try:
            parser.parse(reference)
        except AvroSchemaError as refused:
            raise AvroSchemaError(f"reference {number + 1}, {refused.path}", refused.reason) from None
    return parser.parse(text)


class Parser:
    """Parses texts in sequence. Named types of earlier texts are known in later texts."""

    def __init__(self, *, validate_defaults: bool = True, names: Names = "unicode") -> None:
        self.named: dict[str, Named] = {}
        """Every named type so far, by full name."""
        self._validate_defaults = validate_defaults
        self._is_name = {"unicode": _is_unicode_name, "ascii": _is_ascii_name, "any": _is_any_name}[names]
        self._new: dict[str, Named] = {}
        self._waiting: list[tuple[Forward, Callable[[Schema], None]]] = []
        self._unions: list[tuple[Union, Path]] = []

    def parse(self, text: str) -> Schema:
        """Parse the schema of a text. A refused text defines no types."""
        try:
            schema = self._schema(limits.load(text), None, None, 1)
            if isinstance(schema, Forward):
                raise undefined(schema)
            if self._waiting or self._unions:
                self._resolve(schema)
            elif self.named:
                limits.check_depth(schema)
            self.named.update(self._new)
            return self.named[schema.fullname] if isinstance(schema, Named) else schema
        except RecursionError:  # a deep default, on a stack that is deep already
            raise AvroSchemaError("$", "brackets are nested too deeply") from None
        finally:
            self._new, self._waiting, self._unions = {}, [], []

    # Types

    def _schema(self, value: Any, path: Path, namespace: str | None, depth: int) -> Schema:
        if type(value) is str:
            return Primitive(value) if value in PRIMITIVES else self._find(value, path, namespace)
        if depth > limits.MAX_DEPTH:
            raise limits.too_deep(render(path))
        if type(value) is list:
            return self._union(cast("list[Any]", value), path, namespace, depth)
        if type(value) is not dict:
            raise error(path, f"{shown(value)} is not a schema; give a name, an object, or an array for a union")
        members = cast("Json", value)
        kind = members.get("type")
        if type(kind) is not str:
            hint = "; an object inside `type` is the schema itself: take the outer one away" if kind is not None else ""
            raise error(path, f"`type` is missing or no string{hint}")
        if kind in PRIMITIVES:
            schema = Primitive(kind, _props(members, SCHEMA_MEMBERS))
            if schema.props:
                schema.logical_type = valid_logical_type(schema)
            return schema
        match kind:
            case "record" | "error":
                return self._record(members, path, namespace, depth)
            case "enum":
                return self._enum(members, path, namespace)
            case "fixed":
                return self._fixed(members, path, namespace)
            case "array" | "map":
                return self._collection(kind, members, path, namespace, depth)
            case _:
                return self._find(kind, path, namespace)

    def _find(self, name: str, path: Path, namespace: str | None) -> Schema:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        found = self.named.get(full) or self._new.get(full) or self.named.get(name) or self._new.get(name)
        return found or Forward(full, path)

    def _record(self, members: Json, path: Path, namespace: str | None, depth: int) -> Record:
        name, space = self._name(members, path, namespace)
        record = Record(name, space, _text(members, "doc"), is_error=members["type"] == "error")
        declared = members.get("fields")
        if type(declared) is not list:
            raise error(path, f"record {record.fullname} has no `fields`; give an array, [] for none")
        fields: dict[str, Field] = {}
        for position, member in enumerate(cast("list[Any]", declared)):
            place: Path = ((path, "fields"), position)
            field = self._field(member, place, record, depth)
            if field.name in fields:
                raise error(place, f"record {record.fullname} has two fields named {field.name}; rename one")
            fields[field.name] = field
        record.set_fields(tuple(fields.values()))
        self._props_of(record, members, path, SCHEMA_MEMBERS)
        return cast("Record", self._define(record, members, path))

    def _field(self, value: Any, path: Path, record: Record, depth: int) -> Field:
        members = cast("Json", value) if type(value) is dict else {}
        name = members.get("name")
        if type(name) is not str:
            raise error(path, f"a field of record {record.fullname} has no `name`")
        if not self._is_name(name):
            raise bad_name(path, "field", name)
        if "type" not in members:
            raise error(path, f"field {name} of record {record.fullname} has no `type`")
        schema = self._schema(members["type"], (path, "type"), record.namespace, depth + 1)
        order = self._order(members, path)
        default = members.get("default", MISSING)
        if type(default) is str and schema.type in ("float", "double"):
            default = _java_double(default, (path, "default"))
        if default is not MISSING and self._validate_defaults and not fits(schema, default):
            for one in schema.branches if isinstance(schema, Union) else (schema,):
                if isinstance(one, Forward):
                    reason = "is not defined; define it in this text above this field, or pass its text as a reference"
                    raise error(one.path, f"{one.name} {reason}")
            raise bad_default(path, record, name, schema, default)
        field = Field(
            name,
            schema,
            default,
            doc=_text(members, "doc"),
            order=order,
            aliases=_aliases(members, path),
            props=_props(members, FIELD_MEMBERS),
        )
        self._hold(schema, lambda resolved: setattr(field, "schema", resolved))
        return field

    def _order(self, members: Json, path: Path) -> str:
        if "order" not in members:
            return "ascending"
        value = members["order"]
        order = value.upper().lower() if type(value) is str else None
        if order not in ("ascending", "descending", "ignore"):
            raise error((path, "order"), f"{shown(value)} is not an order; use ascending, descending or ignore")
        return order

    def _enum(self, members: Json, path: Path, namespace: str | None) -> Enum:
        name, space = self._name(members, path, namespace)
        declared = members.get("symbols")
        if type(declared) is not list:
            raise error(path, f"enum {name} has no `symbols`; give an array of names")
        symbols: dict[str, None] = {}
        for position, symbol in enumerate(cast("list[Any]", declared)):
            place: Path = ((path, "symbols"), position)
            if type(symbol) is not str or not self._is_name(symbol):
                raise bad_name(place, "symbol", symbol)
            if symbol in symbols:
                raise error(place, f"enum {name} has the symbol {symbol} twice")
            symbols[symbol] = None
        default = _text(members, "default")
        if default is not None and default not in symbols:
            raise error((path, "default"), f"{default!r} is no symbol of enum {name}: {', '.join(symbols) or 'none'}")
        enum = Enum(name, tuple(symbols), space, _text(members, "doc"), default=default)
        self._props_of(enum, members, path, ENUM_MEMBERS)
        return cast("Enum", self._define(enum, members, path))

    def _fixed(self, members: Json, path: Path, namespace: str | None) -> Fixed:
        name, space = self._name(members, path, namespace)
        size = members.get("size")
        if type(size) is not int or not 0 <= size <= MAX_FIXED:
            raise error((path, "size"), f"fixed {name} needs a `size` in bytes: a whole number from 0 to {MAX_FIXED}")
        fixed = Fixed(name, size, space, _text(members, "doc"))
        self._props_of(fixed, members, path, SCHEMA_MEMBERS)
        return cast("Fixed", self._define(fixed, members, path))

    def _collection(self, kind: str, members: Json, path: Path, namespace: str | None, depth: int) -> Schema:
        inside = "items" if kind == "array" else "values"
        if inside not in members:
            raise error(path, f"{kind} has no `{inside}`: the type of what is in it")
        content = self._schema(members[inside], (path, inside), namespace, depth + 1)
        schema = Array(content) if kind == "array" else Map(content)
        self._props_of(schema, members, path, SCHEMA_MEMBERS)
        self._hold(content, lambda resolved: setattr(schema, inside, resolved))
        return schema

    def _union(self, values: list[Any], path: Path, namespace: str | None, depth: int) -> Union:
        branches = tuple(
            self._schema(value, (path, position), namespace, depth + 1) for position, value in enumerate(values)
        )
        union = Union(branches)
        _check_union(union, path)
        if any(isinstance(branch, Forward) for branch in branches):
            self._unions.append((union, path))
        return union

    # Names

    def _name(self, members: Json, path: Path, namespace: str | None) -> tuple[str, str | None]:
        """Return the simple name and the namespace of a named type."""
        kind = members["type"]
        given = members.get("name")
        if type(given) is not str:
            raise error(path, f"{kind} has no `name`")
        space = _text(members, "namespace")
        if space is None:
            space = namespace
        if "." in given:
            space, _, given = given.rpartition(".")
        if not self._is_name(given):
            raise bad_name((path, "name"), kind, given)
        return given, space or None

    def _define(self, schema: Named, members: Json, path: Path) -> Named:
        """Register a type by its name.

        A repeated definition is the first one; but a definition of an earlier text keeps its own doc and aliases here.
        """
        if "aliases" in members:
            schema.aliases = self._full_aliases(schema, members, path)
        full = schema.fullname
        if schema.namespace is None and full in PRIMITIVES:
            raise error((path, "name"), f"a type may not be called {full}, as a primitive is; rename it")
        if schema.namespace and not all(map(self._is_name, schema.namespace.split("."))):
            raise bad_name(path, "namespace", schema.namespace)
        known = self.named.get(full) or self._new.get(full)
        if known is not None:
            if not same_schema(known, schema):
                raise error(
                    path, f"{full} is defined twice, and differently; rename one, or refer to the first by name"
                )
            return schema if full in self.named else known
        if len(self.named) + len(self._new) >= limits.MAX_NAMED_TYPES:
            raise error(path, f"more than {limits.MAX_NAMED_TYPES:,} named types")
        self._new[full] = schema
        return schema

    def _full_aliases(self, schema: Named, members: Json, path: Path) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for alias in _aliases(members, path):
            space, dot, name = alias.rpartition(".")
            if not self._is_name(name):
                raise bad_name((path, "aliases"), "alias", alias)
            space = space if dot else schema.namespace
            found[f"{space}.{name}" if space else name] = None
        return tuple(found)

    def _props_of(self, schema: Schema, members: Json, path: Path, reserved: frozenset[str]) -> None:
        schema.props = props = _props(members, reserved)
        if not props:
            return
        schema.logical_type = valid_logical_type(schema)
        if schema.type in ("record", "error", "array", "map"):
            for name, value in props.items():
                if _has_big_integer(value):
                    raise error((path, name), "Java keeps no whole number beyond 64 bits here; write it as a string")

    # Names used before their definition

    def _hold(self, schema: Schema, put: Callable[[Schema], None]) -> None:
        if isinstance(schema, Forward):
            self._waiting.append((schema, put))

    def _resolve(self, root: Schema) -> None:
        in_unions = [branch for union, _ in self._unions for branch in union.branches if isinstance(branch, Forward)]
        for forward in (*(forward for forward, _ in self._waiting), *in_unions):
            forward.target = self._new.get(forward.name) or self.named.get(forward.name)
            if forward.target is None:
                raise undefined(forward)
        if self._validate_defaults:
            Finishing().run((*self._new.values(), root))
        for forward, put in self._waiting:
            put(forward.resolved())
        for union, path in self._unions:
            union.branches = tuple(
                branch.resolved() if isinstance(branch, Forward) else branch for branch in union.branches
            )
            _check_union(union, path)
        limits.check_depth(root)


def _check_union(union: Union, path: Path) -> None:
    names: set[str] = set()
    for position, branch in enumerate(union.branches):
        if isinstance(branch, Union):
            raise error((path, position), "a union directly inside a union; put its branches into the outer one")
        name = branch.fullname
        if name in names:
            raise error((path, position), f"the union has {name} twice; a union knows its branches by type and name")
        names.add(name)


# Members


def _text(members: Json, name: str) -> str | None:
    """Return a member that is a string; Java overlooks any other value."""
    value = members.get(name)
    return value if type(value) is str else None


def _aliases(members: Json, path: Path) -> tuple[str, ...]:
    if "aliases" not in members:
        return ()
    value = members["aliases"]
    if type(value) is not list or any(type(alias) is not str for alias in cast("list[Any]", value)):
        raise error((path, "aliases"), f"{shown(value)} is no array of names")
    return tuple(dict.fromkeys(cast("list[str]", value)))


def _props(members: Json, reserved: frozenset[str]) -> Props:
    return {name: value for name, value in members.items() if name not in reserved}


def _has_big_integer(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_big_integer, cast("Json", value).values()))
    if isinstance(value, list):
        return any(map(_has_big_integer, cast("list[Any]", value)))
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


def _java_double(text: str, path: Path) -> float:
    """Return a float's or double's default written as a string, as Java reads it."""
    bare = text.strip("".join(map(chr, range(0x21))))
    if not _JAVA_DOUBLE.fullmatch(bare):
        raise error(path, f"{text!r} is no number")
    lowered = bare.lower()
    if "0x" in lowered:
        try:
            return float.fromhex(lowered.rstrip("fd") if "p" in lowered else lowered)
        except OverflowError:
            return float("-inf" if lowered[0] == "-" else "inf")
    return float(lowered if lowered.endswith(("nan", "infinity")) else lowered.rstrip("fd"))


def _is_ascii_name(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _is_unicode_name(name: str) -> bool:
    if name.isascii():
        return name.isidentifier()
    first = name[0]
    return (first == "_" or (first.isalpha() and first <= "\uffff")) and all(
        letter == "_" or ((letter.isalpha() or letter.isdecimal()) and letter <= "\uffff") for letter in name[1:]
    )


def _is_any_name(name: str) -> bool:
    return True
