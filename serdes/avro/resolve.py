"""Which part of a writer's schema is read as which part of a reader's: Avro's schema resolution, as Java does it."""

from __future__ import annotations

from serdes.avro.schema import PROMOTIONS, Enum, Field, Fixed, Named, Record, Schema, Union

Seen = set[tuple[int, int]]


def kind_of(schema: Schema) -> str:
    """Its type; an error is a record."""
    return "record" if schema.type == "error" else schema.type


def same_name(writer: Schema, reader: Schema) -> bool:
    """True if names match, without namespaces or through an alias of the reader's. Unnamed types: if they are equal."""
    if not (isinstance(writer, Named) and isinstance(reader, Named)):
        return writer.type == reader.type
    return writer.name == reader.name or writer.fullname in reader.aliases


def fields_for(reader: Field, writer: Record) -> list[Field]:
    """Return the writer's fields of the name or an alias of a reader's field, which is read from the first of them."""
    return [field for name in (reader.name, *reader.aliases) if (field := writer.field(name)) is not None]


def sources(writer: Record, reader: Record) -> dict[int, Field]:
    """Map the positions of the writer's fields to the reader's fields that are read from them."""
    return {found[0].position: field for field in reader.fields if (found := fields_for(field, writer))}


def is_promoted(writer: Schema, reader: Schema) -> bool:
    """True if values of the writer's type may be read as another type, the reader's."""
    return kind_of(reader) in PROMOTIONS.get(kind_of(writer), ())


def branch_for(writer: Schema, reader: Union, seen: Seen | None = None) -> int | None:
    """Return the reader's branch for a writer's schema that is not a union.

    A branch of equal type is preferred (for a record: of equal name, else with matching fields), then a promotion.
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
    return next((index for index, branch in enumerate(reader.branches) if is_promoted(writer, branch)), None)


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
        if is_promoted(writer, reader):
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
        if not field.has_default and not fields_for(field, writer):
            return (
                f"{writer.fullname} was written without the field {field.name!r}, and {reader.fullname} has no default "
                "for it"
            )
    return None
