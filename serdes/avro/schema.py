"""An Avro schema as objects: what `parse` makes of a text, and what every other part of the Avro serde reads.

The nodes follow Java's ``org.apache.avro.Schema``. They compare by identity: a recursive record holds itself.
"""

from __future__ import annotations

from typing import Any, Final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
PROMOTIONS: Final[dict[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types that a writer's type may be read as, besides itself."""


class Missing:
    """The type of `MISSING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""A field without a default. ``None`` is the default ``null``."""

Props = dict[str, Any]


class Schema:
    """The base of all nodes."""

    __slots__ = ("logical_type", "props", "type")

    def __init__(self, type: str, props: Props | None = None) -> None:
        self.type = type
        """``record``, ``error``, ``enum``, ``fixed``, ``array``, ``map``, ``union``, or the name of a primitive."""
        self.props: Props = {} if props is None else props
        """Members that Avro does not define, in order; ``logicalType``, ``precision`` and ``scale`` are among them."""
        self.logical_type: str | None = None
        """The logical type, when it is a known one that fits this schema. Java ignores any other, and so do we."""

    @property
    def fullname(self) -> str:
        """The name by which a union knows this branch: the full name of a named type, else the type."""
        return self.type

    def __repr__(self) -> str:
        return f"<Avro {self.fullname}>"


class Primitive(Schema):
    """null, boolean, int, long, float, double, bytes or string."""

    __slots__ = ()


class Array(Schema):
    __slots__ = ("items",)

    def __init__(self, items: Schema, props: Props | None = None) -> None:
        super().__init__("array", props)
        self.items = items


class Map(Schema):
    __slots__ = ("values",)

    def __init__(self, values: Schema, props: Props | None = None) -> None:
        super().__init__("map", props)
        self.values = values


class Union(Schema):
    __slots__ = ("branches",)

    def __init__(self, branches: tuple[Schema, ...]) -> None:
        super().__init__("union")
        self.branches = branches

    @property
    def is_optional(self) -> bool:
        """True for null and one other branch: a value has only one branch to be written as."""
        return len(self.branches) == 2 and any(branch.type == "null" for branch in self.branches)


class Named(Schema):
    """A record, an enum or a fixed."""

    __slots__ = ("_fullname", "aliases", "doc", "name", "namespace")

    def __init__(
        self,
        type: str,
        name: str,
        namespace: str | None = None,
        doc: str | None = None,
        aliases: tuple[str, ...] = (),
        props: Props | None = None,
    ) -> None:
        super().__init__(type, props)
        self.name = name
        self.namespace = namespace or None
        self._fullname = f"{namespace}.{name}" if namespace else name
        self.doc = doc
        self.aliases = aliases
        """The full names of aliases."""

    @property
    def fullname(self) -> str:
        return self._fullname


class Record(Named):
    __slots__ = ("_by_name", "fields")

    def __init__(
        self,
        name: str,
        namespace: str | None = None,
        doc: str | None = None,
        aliases: tuple[str, ...] = (),
        props: Props | None = None,
        *,
        is_error: bool = False,
    ) -> None:
        super().__init__("error" if is_error else "record", name, namespace, doc, aliases, props)
        self.fields: tuple[Field, ...] = ()
        self._by_name: dict[str, Field] = {}

    @property
    def is_error(self) -> bool:
        return self.type == "error"

    def set_fields(self, fields: tuple[Field, ...]) -> None:
        """Once, after construction: a field may hold the record itself."""
        self.fields = fields
        self._by_name = {field.name: field for field in fields}
        for position, field in enumerate(fields):
            field.position = position

    def field(self, name: str) -> Field | None:
        return self._by_name.get(name)


class Enum(Named):
    __slots__ = ("default", "symbols")

    def __init__(
        self,
        name: str,
        symbols: tuple[str, ...],
        namespace: str | None = None,
        doc: str | None = None,
        aliases: tuple[str, ...] = (),
        props: Props | None = None,
        *,
        default: str | None = None,
    ) -> None:
        super().__init__("enum", name, namespace, doc, aliases, props)
        self.symbols = symbols
        self.default = default


class Fixed(Named):
    __slots__ = ("size",)

    def __init__(
        self,
        name: str,
        size: int,
        namespace: str | None = None,
        doc: str | None = None,
        aliases: tuple[str, ...] = (),
        props: Props | None = None,
    ) -> None:
        super().__init__("fixed", name, namespace, doc, aliases, props)
        self.size = size


class Field:
    """A field of a record."""

    __slots__ = ("aliases", "default", "doc", "name", "order", "position", "props", "schema")

    def __init__(
        self,
        name: str,
        schema: Schema,
        default: Any = MISSING,
        *,
        doc: str | None = None,
        order: str = "ascending",
        aliases: tuple[str, ...] = (),
        props: Props | None = None,
    ) -> None:
        self.name = name
        self.schema = schema
        self.default = default
        """A JSON value, or `MISSING`."""
        self.doc = doc
        self.order = order
        """``ascending``, ``descending`` or ``ignore``."""
        self.aliases = aliases
        self.props: Props = {} if props is None else props
        self.position = -1

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

    def __repr__(self) -> str:
        return f"<Avro field {self.name}: {self.schema.fullname}>"


class AvroSchemaError(ValueError):
    """Raised for a text or type that is not an Avro schema, with its place (JSON path or type) and the fix."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
