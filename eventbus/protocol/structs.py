"""A mutable `msgspec.Struct` class per message, for all its versions, made on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from eventbus.protocol.schema import Field, Structure, message


@cache
def struct_class(name: str) -> type[msgspec.Struct]:
    """Return the class of the message: fields with the schema's defaults, inner structures as attributes by their
    names.

    Raises KeyError for a message that is not in the tables.
    """
    schema = message(name)
    inner: dict[str, type[msgspec.Struct]] = {}
    for structure in schema.structures.values():
        _define(structure, name, inner)
    fields = [_field(field, inner) for field in schema.body.fields]
    # gc=False: messages hold data, never each other, so the collector need not walk thousands of them.
    return msgspec.defstruct(name, fields, module="eventbus.protocol.messages", namespace=dict(inner), gc=False)


def _define(structure: Structure, outer: str, made: dict[str, type[msgspec.Struct]]) -> None:
    """Define the class of an inner structure, after those of the structures in it."""
    if structure.name in made:
        return
    for field in structure.fields:
        if field.structure:
            _define(field.structure, outer, made)
    fields = [_field(field, made) for field in structure.fields]
    cls = msgspec.defstruct(structure.name, fields, module="eventbus.protocol.messages", gc=False)
    cls.__qualname__ = f"{outer}.{structure.name}"
    made[structure.name] = cls


def _field(field: Field, made: dict[str, type[msgspec.Struct]]) -> tuple[str, Any, Any]:
    if field.default is ...:
        return field.name, Any, msgspec.field(default_factory=made[field.type])
    return field.name, Any, field.default
