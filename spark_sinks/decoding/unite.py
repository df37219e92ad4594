"""Combine differing schemas into one set of columns, and convert values to the columns' types.

The rules are those of `schema_registry.compatibility.warehouse`: a column is never dropped or narrowed; int becomes
long, float becomes double, and a decimal gets more digits at the same scale. Values that a wider column can represent
exactly are stored in it (an int in a double, text in bytes).
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_sinks.decoding.framing import RESERVED
from spark_sinks.names import (
    IN_FILES,
    NameRule,
    column_of,
    distinct,
    field_of,
    fold,
    matches,
    retyped,
)
from spark_sinks.shape import DATE, Lack

if TYPE_CHECKING:
    import pyarrow as pa

TAKEN = frozenset({*RESERVED, DATE})
"""Names that fields of an Avro schema do not get, because the caller cannot change the schema."""


class Conflict(NamedTuple):
    """A field that its column cannot represent."""

    field: str
    column: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"field {self.field}: the column {self.column} is {self.old}, and the schema says {self.new}"


class Columns:
    """The columns of a table, to which schemas are added. A field has the column that was made for it, or for one whose
    name differs by case only.
    """

    def __init__(
        self,
        fields: Iterable[pa.Field],
        lacks: AbstractSet[Lack] = frozenset(),
        taken: AbstractSet[str] = TAKEN,
        rule: NameRule = IN_FILES,
    ) -> None:
        """``taken`` are reserved names."""
        self._lacks = lacks
        self._taken = taken
        self._rule = rule
        self._columns: dict[str, pa.Field] = {field.name: field for field in fields}

    def __contains__(self, name: str) -> bool:
        return fold(name) in {fold(field_of(column)) for column in self._columns.values()}

    def fields(self) -> list[pa.Field]:
        return [column.with_nullable(True) for column in self._columns.values()]

    def add(self, fields: Sequence[tuple[str, pa.DataType]], *, new_column: bool) -> tuple[str, ...] | Conflict:
        """Add or widen columns for fields of these types, and return the columns' names. A conflict changes nothing.

        A field whose name is reserved gets the suffix ``__value``. With ``new_column`` a field that does not fit its
        column gets another column, so conflicts do not occur.
        """
        changed = dict(self._columns)
        names: list[str] = []
        for (name, kind), column in zip(
            fields, matches([*changed.values()], [name for name, _ in fields]), strict=True
        ):
            kind = _as_held(kind, self._lacks)
            if column is None:
                names.append(self._new(changed, name, name, kind))
            elif (both := united(column.type, kind)) is not None:
                changed[column.name] = retyped(column, both)
                names.append(column.name)
            elif new_column:
                names.append(self._own(changed, name, kind))
            else:
                return Conflict(name, column.name, str(column.type), str(kind))
        self._columns = changed
        return tuple(names)

    def _new(self, columns: dict[str, pa.Field], field: str, name: str, kind: pa.DataType) -> str:
        wanted = f"{name}__value" if fold(name) in self._taken else name
        found = self._rule.free(wanted, {fold(each) for each in columns})
        columns[found] = column_of(field, found, kind)
        return found

    def _own(self, columns: dict[str, pa.Field], field: str, kind: pa.DataType) -> str:
        """Return the column of a field's values that do not fit its first column, for instance ``a__string``."""
        for column in columns.values():
            if field_of(column) == field and (both := united(column.type, kind)) is not None:
                columns[column.name] = retyped(column, both)
                return column.name
        return self._new(columns, field, f"{field}__{type_word(kind)}", kind)


def united(column: pa.DataType, kind: pa.DataType) -> pa.DataType | None:
    """Return a type that represents both the column's values and those of ``kind`` exactly, or None.

    Units of time are ignored, because a target with only microseconds keeps them. So are large, view and dictionary
    encodings, which the column keeps.
    """
    import pyarrow.types as pt

    plain, other = _plain(column), _plain(kind)
    both = plain if plain.equals(other, check_metadata=True) else _wider(plain, other)
    same = both is not None and both.equals(plain, check_metadata=True)
    return column if same and not pt.is_fixed_size_binary(column) else both


def _wider(column: Any, kind: Any) -> pa.DataType | None:
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_struct(column) and pt.is_struct(kind):
        return _united_structs(column, kind)
    if pt.is_list(column) and pt.is_list(kind):
        item = united(column.value_type, kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pt.is_map(column) and pt.is_map(kind):
        key, item = united(column.key_type, kind.key_type), united(column.item_type, kind.item_type)
        return None if item is None or key != column.key_type else pa.map_(key, item)
    if pt.is_decimal(column) and pt.is_decimal(kind):
        same = column.scale == kind.scale
        return (column if column.precision >= kind.precision else kind) if same else None
    if pt.is_timestamp(column) and pt.is_timestamp(kind):
        return column if (column.tz is None) == (kind.tz is None) else None
    if (pt.is_time(column) and pt.is_time(kind)) or (pt.is_binary(column) and pt.is_string(kind)):
        return column
    if pt.is_int64(column) and pt.is_time(kind):  # microseconds in a table without a type for times
        return column
    if pt.is_signed_integer(column) and pt.is_signed_integer(kind):
        return column if column.bit_width >= kind.bit_width else kind
    if pt.is_floating(column) and pt.is_floating(kind):
        return column if column.bit_width >= kind.bit_width else kind
    if pt.is_float64(column) and pt.is_signed_integer(kind) and kind.bit_width <= 32:
        return column
    return None


def _united_structs(column: Any, kind: Any) -> pa.DataType | None:
    import pyarrow as pa

    fields: dict[str, pa.Field] = {field.name: field for field in column}
    known = matches([*column], [field_of(field) for field in kind])
    for field, there in zip(kind, known, strict=True):
        if there is None:
            name = IN_FILES.free(field_of(field), {fold(each) for each in fields})
            fields[name] = column_of(field_of(field), name, field.type)
            continue
        both = united(there.type, field.type)
        if both is None:
            return None
        fields[there.name] = retyped(there, both)
    return pa.struct([*fields.values()])


def _plain(kind: Any) -> pa.DataType:
    """Strip what does not affect values: large, view and dictionary encodings, and names within lists."""
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_dictionary(kind):
        return _plain(kind.value_type)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_struct(kind):
        return pa.struct([retyped(field, _plain(field.type)) for field in kind])
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def _as_held(kind: Any, lacks: AbstractSet[Lack]) -> pa.DataType:
    """Replace types that the table lacks, and names within them that it cannot have."""
    import pyarrow as pa
    import pyarrow.types as pt

    if "time" in lacks and pt.is_time(kind):
        return pa.int64()
    if "narrow" in lacks and pt.is_signed_integer(kind):
        return pa.int64()
    if "narrow" in lacks and pt.is_floating(kind):
        return pa.float64()
    if "nanos" in lacks and pt.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pt.is_struct(kind):
        fields = [*kind]
        names = distinct(field.name for field in fields)
        return pa.struct(
            [column_of(each.name, name, _as_held(each.type, lacks)) for each, name in zip(fields, names, strict=True)]
        )
    if pt.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _as_held(kind.value_type, lacks)))
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _as_held(kind.item_type, lacks))
    return kind


def type_word(kind: Any) -> str:
    """Return the word for a type in the name of a column."""
    import pyarrow.types as pt

    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "local_timestamp"
    if pt.is_decimal(kind):
        return f"decimal_{kind.precision}_{kind.scale}"
    return _WORDS.get(str(kind), str(kind).partition("<")[0].partition("[")[0])


_WORDS = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "binary": "bytes",
    "date32[day]": "date",
    "time64[us]": "time",
}


def conform(array: Any, kind: Any) -> Any:
    """Convert values to a type that `united` returned for theirs."""
    import pyarrow as pa
    import pyarrow.types as pt

    if array.type.equals(kind, check_metadata=True):
        return array
    if pt.is_struct(kind):
        known = matches([*kind], [field_of(field) for field in array.type])
        own = {column.name: number for number, column in enumerate(known) if column is not None}
        columns = [
            conform(array.field(own[field.name]), field.type) if field.name in own else pa.nulls(len(array), field.type)
            for field in kind
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if pt.is_list(kind):
        items = conform(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    if pt.is_map(kind):
        keys, items = conform(array.keys, kind.key_type), conform(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    return array.cast(kind, safe=not pt.is_temporal(kind))
