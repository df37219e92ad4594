"""Names of columns: one rule for all tables, at every depth of their types.

Most readers of tables take ``id`` and ``ID`` for one column, so names differ by more than case. Databases also limit
the length and the characters of a name. A field whose name cannot be that of a column gets another one, and the column
keeps the field's name in its metadata (`FIELD`). So each field finds its column again, in whatever order the fields of
a later schema are.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

FIELD = b"eventbus.field"
"""The key in the metadata of a column that has another name than its field."""
_DOC = b"doc"
"""The key of the text that becomes the column's doc in Iceberg's schema, or its comment in a database."""


class NameRule(NamedTuple):
    """The names that the columns of a table may have.

    ``unfit``: a pattern of what is replaced by underscores. ``reserved``: columns that every table of a database has.
    """

    longest_bytes: int
    unfit: str
    reserved: frozenset[str] = frozenset()

    def usable(self, name: str) -> str:
        """Return the name, or the nearest one that a column may have."""
        text = re.sub(self.unfit, lambda found: "_" * len(found[0]), name) or "_"
        return self._short(f"{text}__value" if text in self.reserved else text)

    def free(self, name: str, used: Container[str]) -> str:
        """Return a column name, with a number appended if ``used`` has the name already in any case."""
        number, wanted = 1, self.usable(name)
        found = wanted
        while fold(found) in used:
            number += 1
            found = self._short(wanted, f"__{number}")
        return found

    def _short(self, text: str, end: str = "") -> str:
        if len(f"{text}{end}".encode()) <= self.longest_bytes:
            return f"{text}{end}"
        end = f"__{hashlib.sha256(text.encode()).hexdigest()[:8]}{end}"
        return text.encode()[: self.longest_bytes - len(end)].decode(errors="ignore") + end


IN_FILES = NameRule(255, "\0")
"""Arrow passes names to libraries as C strings, and most of them have none of zero bytes."""
IN_DATABASES = NameRule(
    63, "[\0\U00010000-\U0010ffff]| +$", frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
)
"""PostgreSQL's length and columns, and MySQL's characters: a topic has the same columns in every database."""


def fold(name: str) -> str:
    """Return what names are compared by. MySQL takes the dotted I for an i."""
    return name.casefold().replace("\u0307", "")


def column_of(field: str, name: str, kind: pa.DataType) -> pa.Field:
    """Return a column of this name for a field."""
    import pyarrow as pa

    # JSON shows an empty name, and makes ASCII of characters that MySQL refuses in a comment.
    metadata = {FIELD: field.encode(), _DOC: f"field {json.dumps(field)}".encode()}
    return pa.field(name, kind, metadata=None if name == field else metadata)


def field_of(column: pa.Field) -> str:
    """Return the name of the field that is in a column."""
    metadata = column.metadata or {}
    return metadata[FIELD].decode() if FIELD in metadata else column.name


def doc_of(column: pa.Field) -> str:
    """Return the text that names the field of a renamed column, else an empty one."""
    return (column.metadata or {}).get(_DOC, b"").decode()


def retyped(column: pa.Field, kind: pa.DataType) -> pa.Field:
    """Return the column with another type. It may be null."""
    return column.with_type(kind).with_nullable(True)


def distinct(names: Iterable[str]) -> list[str]:
    """Return names that differ by more than case."""
    found: dict[str, str] = {}
    for name in names:
        name = IN_FILES.free(name, found)
        found[fold(name)] = name
    return [*found.values()]


def matches(columns: Sequence[pa.Field], fields: Sequence[str]) -> list[pa.Field | None]:
    """Return the column of each field: that of the field itself, or of one that only differs by case and is gone."""
    exact: dict[str, pa.Field] = {}
    for column in columns:
        exact.setdefault(field_of(column), column)
    near: dict[str, pa.Field] = {}
    for name, column in exact.items():
        if name not in fields:
            near.setdefault(fold(name), column)
    return [exact.get(name) or near.pop(fold(name), None) for name in fields]


def fields_of(columns: pa.Schema) -> pa.Schema:
    """Return the fields that are in columns, with their own names at every depth."""
    import pyarrow as pa

    return pa.schema([*_with_fields(pa.struct([*columns]))])


def _with_fields(kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_struct(kind):
        return pa.struct([pa.field(field_of(each), _with_fields(each.type), each.nullable) for each in kind])
    if pt.is_list(kind):
        return pa.list_(retyped(kind.value_field, _with_fields(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(kind.key_type, _with_fields(kind.item_type))
    return kind


def check_names(columns: pa.Schema, rule: NameRule) -> None:
    """Raise `ConfigError` for names that a transform gave to columns, and that the table cannot have."""
    _check(list(columns), rule, "")


def _check(fields: Sequence[pa.Field], rule: NameRule, above: str) -> None:
    import pyarrow.types as pt

    seen: dict[str, str] = {}
    for field in fields:
        name = f"{above}{field.name}"
        if (usable := rule.usable(field.name)) != field.name:
            raise ConfigError(
                f"A column of this table cannot have the name {name!r}. Rename it with transform=, for instance to "
                f"{usable!r}."
            )
        if (other := seen.setdefault(fold(field.name), name)) != name:
            raise ConfigError(
                f"Columns {other!r} and {name!r} differ in case only, and most readers of tables take them for one. "
                f"Rename one with transform=."
            )
        kind = field.type
        if pt.is_nested(kind):
            _check([kind.field(number) for number in range(kind.num_fields)], IN_FILES, f"{name}.")
