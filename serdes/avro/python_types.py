"""Read the names, docs, defaults and marks of Python classes."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from serdes.avro.codec.shapes import pydantics_fields
from serdes.avro.marks import AvroField, AvroType
from serdes.avro.schema import MISSING
from serdes.json_engine import is_pydantics_mark

PLAIN_FACTORIES: tuple[Any, ...] = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)
"""Default factories that return an equal value each time. A factory such as a clock does not define a default."""


class Marked(msgspec.Struct):
    """An annotation without its wrapping, and what the wrapping said."""

    bare: Any
    types: list[AvroType]
    """The marks of an annotation, outermost last."""
    field: AvroField | None = None
    description: str | None = None


def marked(annotation: Any) -> Marked:
    """Takes Annotated, NewType, ``type`` statements, Required, NotRequired and Final off."""
    found = Marked(annotation, [])
    while True:
        bare = found.bare
        origin = typing.get_origin(bare)
        if origin is typing.Annotated:
            _read_marks(found, bare.__metadata__)
            found.bare = bare.__origin__
        elif origin in (typing.Required, typing.NotRequired, typing.Final):
            found.bare = typing.get_args(bare)[0]
        elif not isinstance(bare, type) and hasattr(bare, "__supertype__"):
            found.bare = bare.__supertype__
        elif not isinstance(bare, type) and hasattr(bare, "__value__"):
            found.bare = bare.__value__
        else:
            return found


def _read_marks(found: Marked, metadata: tuple[Any, ...]) -> None:
    """Return the marks of nested wrappers, innermost first; outer marks take precedence."""
    found.types = [mark for mark in metadata if isinstance(mark, AvroType)] + found.types
    for mark in reversed(metadata):
        if isinstance(mark, AvroField):
            found.field = found.field or mark
        elif isinstance(text := getattr(mark, "description", None), str):  # msgspec.Meta, pydantic.Field
            found.description = found.description or text


def class_mark(kind: type[Any]) -> AvroType:
    """Return a class's own ``__avro__``, with the namespace of the nearest parent that has one."""
    own = vars(kind).get("__avro__", None)
    mark = own if isinstance(own, AvroType) else AvroType()
    if mark.namespace is None:
        for parent in kind.__mro__[1:]:
            theirs = vars(parent).get("__avro__", None)
            if isinstance(theirs, AvroType) and theirs.namespace is not None:
                return msgspec.structs.replace(mark, namespace=theirs.namespace)
    return mark


def doc_of(kind: type[Any]) -> str | None:
    """Return the docstring that was written for this class, not inherited or generated."""
    doc = vars(kind).get("__doc__")
    if not isinstance(doc, str) or not doc.strip() or doc == enum.Enum.__doc__ or doc == "An enumeration.":
        return None
    if doc.startswith(f"{kind.__name__}(") and (dataclasses.is_dataclass(kind) or issubclass(kind, tuple)):
        return None  # made by the dataclass decorator, by NamedTuple
    return inspect.cleandoc(doc)


def enum_symbols(kind: type[enum.Enum]) -> dict[str, enum.Enum]:
    """Return the members by their symbols: their values where all are names that Avro allows, else their own names."""
    by_value = {member.value: member for member in kind if isinstance(member.value, str) and is_symbol(member.value)}
    return by_value if len(by_value) == len(kind) else {member.name: member for member in kind}


def is_symbol(text: str) -> bool:
    return text.isidentifier()


def defaults_of(kind: Any) -> dict[str, Any]:
    """Return the default values of a class's attributes, without those of factories whose results may differ."""
    if typing.is_typeddict(kind):
        return {}
    if hasattr(kind, "__pydantic_validator__"):
        found = {
            name: _default(one.default, one.default_factory)
            for name, one in pydantics_fields(kind).items()
            if not one.is_required()
        }
    elif issubclass(kind, msgspec.Struct):
        found = {one.name: _default(one.default, one.default_factory) for one in msgspec.structs.fields(kind)}
    elif dataclasses.is_dataclass(kind):
        found = {one.name: _dataclass_default(one) for one in dataclasses.fields(kind)}
    else:
        found = dict(cast("Mapping[str, Any]", getattr(kind, "_field_defaults", {})))
    return {name: value for name, value in found.items() if value is not MISSING}


def _dataclass_default(field: Any) -> Any:
    """``cents: int = Field(default=1, gt=0)`` is pydantic's way of saying 1."""
    default = field.default
    if is_pydantics_mark(default):
        return MISSING if default.is_required() else _default(default.default, default.default_factory)
    return _default(default, field.default_factory)


_NOTHING = (None, msgspec.NODEFAULT, dataclasses.MISSING)


def _default(value: Any, factory: Any) -> Any:
    if not any(factory is nothing for nothing in _NOTHING):
        return factory() if any(factory is plain for plain in PLAIN_FACTORIES) else MISSING
    return MISSING if any(value is nothing for nothing in _NOTHING[1:]) else value


def descriptions_of(kind: Any) -> dict[str, str]:
    """Docs of a pydantic model's fields that do not stand in their annotations."""
    return {name: one.description for name, one in pydantics_fields(kind).items() if one.description}
