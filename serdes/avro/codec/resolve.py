"""Which part of a writer's schema is read as which part of a reader's: Avro's schema resolution, as Java does it."""

from __future__ import annotations

from serdes.avro.schema import PROMOTIONS, Enum, Field, Fixed, Named, Record, Schema, Union

Seen = set[tuple[int, int]]


def kind_of(schema: Schema) -> str:
    """Its type; an error is a record."""
    return "record" if schema.type == "error" else schema.type


def same_name(writer: Named, reader: Named) -> bool:
    """Names match without their namespaces, or through an alias of the reader's."""
    return writer.name == reader.name or writer.fullname in reader.aliases


def source_of(reader: Field, writer: Record) -> Field | None:
    """The writer's field that a reader's field is read from: of its name, or of one of its aliases."""
    found = (writer.field(name) for name in (reader.name, *reader.aliases))
    return next((one for one in found if one is not None), None)


def sources(writer: Record, reader: Record) -> dict[int, Field]:
    """The reader's fields by the positions of the writer's that they are read from."""
    found = ((source_of(field, writer), field) for field in reader.fields)
    return {source.position: field for source, field in found if source is not None}


def branch_for(writer: Schema, reader: Union, seen: Seen | None = None) -> int | None:
    """Return the reader's branch for a writer's schema that is not a union.

    A branch of the same type is preferred (for a record: of the same name, else with matching fields), then a
    promotion.
    """
    seen = set() if seen is None else seen
    kind, fallback = kind_of(writer), None
    for index, branch in enumerate(reader.branches):
        if kind_of(branch) != kind:
            continue
        if not (isinstance(writer, Named) and isinstance(branch, Named)):
            return index
        if writer.fullname == branch.fullname or writer.fullname in branch.aliases:
            return index
        if mismatch(writer, branch, seen) is None and (fallback is None or writer.name == branch.name):
            fallback = index
    if fallback is not None:
        return fallback
    promoted = PROMOTIONS.get(kind, ())
    return next((index for index, branch in enumerate(reader.branches) if branch.type in promoted), None)


def mismatch(writer: Schema, reader: Schema, seen: Seen | None = None) -> str | None:
    """Return why no value of the writer's schema can be read with the reader's schema, or None if some values can.

    A union may have readable and unreadable branches; an unreadable value is reported when it is read.
    """
    seen = set() if seen is None else seen
    if isinstance(writer, Union) or (id(writer), id(reader)) in seen:
        return None
    seen.add((id(writer), id(reader)))
    if isinstance(reader, Union):
        if branch_for(writer, reader, seen) is None:
            names = ", ".join(branch.fullname for branch in reader.branches)
            return f"it was written as {writer.fullname}, and is read as a union without it ({names})"
        return None
    if kind_of(writer) != kind_of(reader):
        if reader.type in PROMOTIONS.get(writer.type, ()):
            return None
        return f"it was written as {writer.fullname}, which cannot be read as {reader.fullname}"
    if isinstance(writer, Record) and isinstance(reader, Record):
        return _record_mismatch(writer, reader)
    if isinstance(writer, (Enum, Fixed)) and isinstance(reader, (Enum, Fixed)):
        if not same_name(writer, reader):
            return f"it was written as {writer.fullname}, and is read as {reader.fullname}: give that an alias"
        if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
            return f"it was written with {writer.size} bytes, and is read with {reader.size}"
    return None


def _record_mismatch(writer: Record, reader: Record) -> str | None:
    for field in reader.fields:
        if not field.has_default and source_of(field, writer) is None:
            return (
                f"{writer.fullname} was written without the field {field.name!r}, and {reader.fullname} has no default "
                "for it"
            )
    return None
