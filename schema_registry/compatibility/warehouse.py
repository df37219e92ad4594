"""Which changes of an Avro schema break a table that its records land in: Spark, Delta, Iceberg, Parquet.

Stricter than Avro: a table keeps the rows of all versions side by side, fills a column that is missing with null and
not with a default, and takes logical types at their word. What is allowed: a nullable column more, a column that
becomes nullable, int to long, float to double, a decimal of more digits at the same scale, other symbols of an enum (a
string column), other names of types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

import msgspec

from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Primitive, Record, Schema, Union

TARGETS: Final = ("spark", "delta", "iceberg", "parquet")
RULES: Final[dict[str, tuple[str, ...]]] = {
    "REQUIRED_FIELD_ADDED": TARGETS,
    "FIELD_DELETED": TARGETS,
    "FIELD_RENAMED": ("spark", "delta", "parquet"),
    "FIELDS_REORDERED": ("spark", "parquet"),
    "NULLABLE_TO_REQUIRED": TARGETS,
    "DEFAULT_REMOVED": ("spark", "delta", "iceberg"),
    "MAP_KEY_CHANGED": TARGETS,
    "TYPE_CHANGED": TARGETS,
    "DECIMAL_CHANGED": TARGETS,
    "LOGICAL_TYPE_CHANGED": TARGETS,
    "FIXED_SIZE_CHANGED": ("iceberg", "parquet"),
    "UNION_CHANGED": TARGETS,
    "NAMES_DIFFER_BY_CASE": ("spark", "delta", "iceberg"),
    "RECURSIVE_TYPE": TARGETS,
}
"""Rule -> the tables it breaks. Iceberg follows a renamed or moved column by its id; the others go by name or place."""

WIDENED: Final = {("int", "long"), ("float", "double")}
STRINGS: Final = frozenset({"string", "enum"})
"""Both are string columns."""


class TableFinding(msgspec.Struct, frozen=True):
    """A change that breaks tables."""

    rule: str
    where: str
    """The column, from the top: ``Flight.legs[].origin``."""
    breaks: tuple[str, ...]
    """Which tables, of those asked for."""
    old: str
    new: str
    explanation: str
    fix: str

    @property
    def message(self) -> str:
        return (
            f"{{errorType:'{self.rule}', description:'{self.explanation}', "
            f"additionalInfo:'breaks {', '.join(self.breaks)}'}}"
        )


def table_findings(new: Schema, old: Schema, targets: Sequence[str] = TARGETS) -> list[TableFinding]:
    """Return what breaks in tables with records of ``old`` when records of ``new`` follow."""
    if unknown := set(targets).difference(TARGETS):
        raise ValueError(f"unknown tables {', '.join(sorted(unknown))}: use some of {', '.join(TARGETS)}")
    return list(_Tables(tuple(targets)).compare(_name(new), new, old, ()))


class _Tables:
    def __init__(self, targets: tuple[str, ...]) -> None:
        self.targets = targets
        self.done: set[tuple[int, int]] = set()

    def compare(self, where: str, new: Schema, old: Schema, inside: tuple[Schema, ...]) -> Iterator[TableFinding]:
        new_nullable, new = nullable(new)
        old_nullable, old = nullable(old)
        if old_nullable and not new_nullable:
            yield from self.found(
                "NULLABLE_TO_REQUIRED",
                where,
                f"nullable {_name(old)}",
                _name(new),
                "rows that hold null already stay in the table",
                f'keep ["null", {_name(new)}]',
            )
        if any(new is outer for outer in inside):
            yield from self.found(
                "RECURSIVE_TYPE",
                where,
                _name(old),
                _name(new),
                "a column cannot hold its own type",
                "flatten it, or refer by key",
            )
            return
        if (id(new), id(old)) in self.done:
            return
        self.done.add((id(new), id(old)))
        yield from self.compare_types(where, new, old, (*inside, new))

    def compare_types(self, where: str, new: Schema, old: Schema, inside: tuple[Schema, ...]) -> Iterator[TableFinding]:
        match new, old:
            case Record(), Record():
                yield from self.compare_columns(where, new, old, inside)
            case Map(), Map():
                yield from self.compare(where + "{}", new.values, old.values, inside)
            case Array(), Array():
                yield from self.compare_arrays(where, new, old, inside)
            case Union(), Union():
                yield from self.compare_unions(where, new, old, inside)
            case Fixed(), Fixed() if new.size != old.size:
                yield from self.found(
                    "FIXED_SIZE_CHANGED",
                    where,
                    f"{old.size} bytes",
                    f"{new.size} bytes",
                    "the column's width is part of its type",
                    "keep the size, or add a column",
                )
            case _:
                yield from self.compare_values(where, new, old)

    def compare_values(self, where: str, new: Schema, old: Schema) -> Iterator[TableFinding]:
        was, now = _name(old), _name(new)
        same_kind = new.type == old.type or {new.type, old.type} <= STRINGS
        decimals = new.logical_type == old.logical_type == "decimal"
        if decimals and {new.type, old.type} <= {"bytes", "fixed"}:
            if _scale(new) != _scale(old) or _precision(new) < _precision(old):
                yield from self.found(
                    "DECIMAL_CHANGED",
                    where,
                    was,
                    now,
                    "values in the table were written with the other scale, or do not fit any more",
                    f"keep scale {_scale(old)} and at least {_precision(old)} digits, or add a column",
                )
        elif new.logical_type != old.logical_type:
            yield from self.found(
                "LOGICAL_TYPE_CHANGED",
                where,
                was,
                now,
                "the same number or text means something else; Avro's own check does not look at it",
                f"keep {was}, or add a column",
            )
        elif not same_kind and ((old.type, new.type) not in WIDENED or new.logical_type is not None):
            yield from self.found(
                "TYPE_CHANGED",
                where,
                was,
                now,
                "only int to long, float to double and a wider decimal can be read from the files that exist",
                f"keep {was}, or add a column of type {now}",
            )

    def compare_columns(
        self, where: str, new: Record, old: Record, inside: tuple[Schema, ...]
    ) -> Iterator[TableFinding]:
        origins = {field.name: _origin(field, old) for field in new.fields}
        kept = [origin.name for origin in origins.values() if origin is not None]
        for field in old.fields:
            if field.name not in kept:
                yield from self.found(
                    "FIELD_DELETED",
                    f"{where}.{field.name}",
                    _column(field),
                    "",
                    "queries name the column, and new rows have nothing for it",
                    "keep it, nullable, and write null",
                )
        if kept != sorted(kept, key=[field.name for field in old.fields].index):
            yield from self.found(
                "FIELDS_REORDERED",
                where,
                ", ".join(field.name for field in old.fields),
                ", ".join(field.name for field in new.fields),
                "who takes columns by their place (INSERT INTO ... SELECT, insertInto, Hive) mixes them up",
                "keep the order and add new fields at the end",
            )
        yield from self.clashing_names(where, new)
        for field in new.fields:
            yield from self.compare_column(f"{where}.{field.name}", field, origins[field.name], inside)

    def compare_column(
        self, where: str, field: Field, origin: Field | None, inside: tuple[Schema, ...]
    ) -> Iterator[TableFinding]:
        if origin is None:
            if not nullable(field.schema)[0]:
                yield from self.found(
                    "REQUIRED_FIELD_ADDED",
                    where,
                    "",
                    _column(field),
                    "rows that are in the table already have null there, whatever the default is",
                    f'make it ["null", {_name(field.schema)}] with "default": null',
                )
            return
        if origin.name != field.name:
            yield from self.found(
                "FIELD_RENAMED",
                where,
                origin.name,
                field.name,
                f"tables know the column as {origin.name!r}; an alias is Avro's alone",
                f"keep the name {origin.name!r}",
            )
        if origin.has_default and not field.has_default:
            yield from self.found(
                "DEFAULT_REMOVED",
                where,
                _column(origin),
                _column(field),
                "writers that leave the column out got the default so far",
                "keep the default",
            )
        yield from self.compare(where, field.schema, origin.schema, inside)

    def clashing_names(self, where: str, new: Record) -> Iterator[TableFinding]:
        seen: dict[str, str] = {}
        for field in new.fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other != field.name:
                yield from self.found(
                    "NAMES_DIFFER_BY_CASE",
                    f"{where}.{field.name}",
                    other,
                    field.name,
                    "column names are the same in upper and lower case",
                    "name one of them differently",
                )

    def compare_arrays(self, where: str, new: Array, old: Array, inside: tuple[Schema, ...]) -> Iterator[TableFinding]:
        keys = _map_key(new), _map_key(old)
        if keys[0] is not None and keys[1] is not None and any(self.compare_values("", keys[0], keys[1])):
            yield from self.found(
                "MAP_KEY_CHANGED",
                where,
                _name(keys[1]),
                _name(keys[0]),
                "entries that exist are found by keys of the old type",
                f"keep the key's type {_name(keys[1])}",
            )
        else:
            yield from self.compare(where + "[]", new.items, old.items, inside)

    def compare_unions(self, where: str, new: Union, old: Union, inside: tuple[Schema, ...]) -> Iterator[TableFinding]:
        ours, theirs = new.branches, old.branches
        if [branch.type for branch in ours[: len(theirs)]] != [branch.type for branch in theirs]:
            yield from self.found(
                "UNION_CHANGED",
                where,
                _name(old),
                _name(new),
                "a union of types becomes a struct with one column per branch, in order",
                "add branches at the end only",
            )
            return
        for branch, origin in zip(ours, theirs, strict=False):
            yield from self.compare(where, branch, origin, inside)

    def found(self, rule: str, where: str, old: str, new: str, why: str, fix: str) -> Iterator[TableFinding]:
        breaks = tuple(target for target in RULES[rule] if target in self.targets)
        if breaks:
            change = (
                old
                if old == new
                else f"{old} became {new}"
                if old and new
                else f"{old or new} was {'dropped' if old else 'added'}"
            )
            yield TableFinding(rule, where, breaks, old, new, f"{where}: {change}: {why}", fix)


def nullable(schema: Schema) -> tuple[bool, Schema]:
    """Return whether null is allowed, and the type without null."""
    if not isinstance(schema, Union):
        return schema.type == "null", schema
    others = tuple(branch for branch in schema.branches if branch.type != "null")
    if len(others) == len(schema.branches) or not others:
        return not others, schema
    return True, others[0] if len(others) == 1 else Union(others)


def _origin(field: Field, old: Record) -> Field | None:
    """Return the old column of a new field."""
    for name in (field.name, *field.aliases):
        if (found := old.field(name)) is not None:
            return found
    return None


def _map_key(schema: Array) -> Primitive | None:
    """The key of an array that stands for a map: items are records of ``key`` and ``value``, as Iceberg writes them.

    Only a key of a simple type; any other is a column like others.
    """
    items = schema.items
    if isinstance(items, Record) and [field.name for field in items.fields] == ["key", "value"]:
        key = items.fields[0].schema
        return key if isinstance(key, Primitive) else None
    return None


def _precision(schema: Schema) -> int:
    return cast(int, schema.props.get("precision", 0))


def _scale(schema: Schema) -> int:
    return cast(int, schema.props.get("scale", 0))


def _column(field: Field) -> str:
    return f"{field.name} {_name(field.schema)}"


def _name(schema: Schema) -> str:
    match schema:
        case Union():
            return f"[{', '.join(_name(branch) for branch in schema.branches[:8])}]"
        case Array():
            return f"array of {_name(schema.items)}"
        case Map():
            return f"map of {_name(schema.values)}"
        case Record() | Enum():
            return schema.fullname
        case _ if schema.logical_type == "decimal":
            return f"decimal({_precision(schema)}, {_scale(schema)})"
        case _:
            return schema.logical_type or schema.fullname
