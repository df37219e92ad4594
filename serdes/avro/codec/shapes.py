"""The shape of a Python annotation for the codec: how its values are created and taken apart."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from serdes.avro.codec.conversions import Duration
from serdes.json_engine import Survey, is_pydantics_mark
from serdes.pydantic_json import adapter_of

PLAIN = (Any, object, typing.Hashable)
_LISTS: dict[Any, Callable[..., Any] | None] = {
    list: None,
    collections.abc.Sequence: None,
    collections.abc.Iterable: None,
    collections.abc.Collection: None,
    collections.abc.MutableSequence: None,
    tuple: tuple,
    set: set,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
}
"""Origins that arrays are read as, and what makes one of a list; None: it is one."""
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class Shape(msgspec.Struct, frozen=True):
    """The base: anything, as plain data."""


class Scalar(Shape, frozen=True):
    """One of Python's own: int, str, date, Decimal, UUID, ..."""

    kind: type


class Nothing(Shape, frozen=True):
    """The type of None."""


class Members(Shape, frozen=True):
    """An enum, with its members."""

    kind: type[enum.Enum]


class Constants(Shape, frozen=True):
    """A Literal, with its allowed values."""

    values: tuple[Any, ...]


class Items(Shape, frozen=True):
    """A list, tuple or set of one kind of items."""

    item: Any
    make: Callable[..., Any] | None = None


class Entries(Shape, frozen=True):
    """A dict of text to one kind of values."""

    value: Any


class Arms(Shape, frozen=True):
    """A union of shapes."""

    annotations: tuple[Any, ...]


class Attribute(msgspec.Struct, frozen=True):
    """A field of a class."""

    name: str
    """The name of the field in Python."""
    data_name: str
    """The name of the field in data, if the class renames it."""
    annotation: Any
    required: bool
    keyword: bool = False
    """The constructor takes it by name only."""


class Object(Shape, frozen=True):
    """A class with fields: msgspec.Struct, dataclass, NamedTuple (``call``), pydantic (``validate``), TypedDict.

    pydantic also makes a plain dataclass that has a ``Field`` as a default: to the class itself that is a value.
    """

    kind: Any
    attributes: tuple[Attribute, ...]
    how: str = "call"

    def attribute(self, *names: str) -> Attribute | None:
        """Return the attribute of a field with these names (its own, then aliases); None if the class has none."""
        for name in names:
            for one in self.attributes:
                if name in (one.name, one.data_name):
                    return one
        return None


_known: dict[Any, Shape] = {}


def shape_of(annotation: Any) -> Shape:
    """Return the shape of an annotation. Raises TypeError if it is not a type of data."""
    try:
        found = _known.get(annotation)
        if found is None:
            found = _known[annotation] = _shape_of(unwrapped(annotation))
        return found
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _shape_of(unwrapped(annotation))


def key_of(annotation: Any) -> Any:
    """Return a cache key for an annotation."""
    try:
        hash(annotation)
    except TypeError:  # Annotated with a list, say
        return repr(annotation)
    return annotation


def unwrapped(annotation: Any) -> Any:
    """Without what says nothing of the values: Annotated, NewType, a ``type`` statement, Required."""
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            annotation = typing.get_args(annotation)[0]
            continue
        meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if meant is None or isinstance(annotation, enum.Enum):
            return annotation
        annotation = meant


def _shape_of(annotation: Any) -> Shape:
    if annotation in PLAIN:
        return Shape()
    if annotation is None or annotation is type(None):
        return Nothing()
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _arms(arguments)
    if origin is typing.Literal:
        return Constants(arguments)
    base = origin or annotation
    if base in _LISTS:
        return _items(base, arguments)
    if base in _MAPS:
        if arguments and unwrapped(arguments[0]) not in (str, *PLAIN):
            raise TypeError(f"{annotation}: the keys of an Avro map are text")
        return Entries(arguments[1] if arguments else Any)
    if isinstance(base, type):
        return _of_class(cast("type[Any]", base), annotation)
    if isinstance(annotation, typing.TypeVar):
        return shape_of(annotation.__bound__ or Any)
    raise TypeError(f"{annotation!r} is not a type that Avro data can be read as")


def _arms(arguments: tuple[Any, ...]) -> Shape:
    flat: list[Any] = []
    for one in arguments:
        bare = unwrapped(one)
        inner = typing.get_args(bare) if typing.get_origin(bare) in (typing.Union, types.UnionType) else (one,)
        flat += [each for each in inner if each not in flat]
    return Shape() if any(unwrapped(one) in PLAIN for one in flat) else Arms(tuple(flat))


def _items(base: Any, arguments: tuple[Any, ...]) -> Shape:
    if base is tuple and len({one for one in arguments if one is not Ellipsis}) > 1:
        raise TypeError(f"tuple[{', '.join(map(str, arguments))}]: an Avro array has items of one type")
    return Items(arguments[0] if arguments else Any, _LISTS[base])


def _of_class(kind: type[Any], annotation: Any) -> Shape:
    if issubclass(kind, enum.Enum):
        return Members(kind)
    if issubclass(kind, msgspec.Struct) and kind is not Duration:
        return Object(kind, _struct_attributes(kind, annotation))
    if hasattr(kind, "__pydantic_validator__"):
        return Object(kind, _pydantic_attributes(kind), "validate")
    if dataclasses.is_dataclass(kind):
        fields = {one.name: one.default for one in dataclasses.fields(kind) if one.init}
        attributes = _call_attributes(kind, annotation, set(fields))
        if not any(map(is_pydantics_mark, fields.values())):
            return Object(kind, attributes)
        return Object(kind, tuple(_with_pydantics_default(one, fields[one.name]) for one in attributes), "validate")
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return Object(
            kind, tuple(Attribute(n, n, hint, _is_required(kind, n, hint)) for n, hint in hints.items()), "dict"
        )
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if names is not None and issubclass(kind, tuple):
        return Object(kind, _call_attributes(cast("type[Any]", kind), annotation, set(names)))
    return Scalar(kind)


def check_of(annotation: Any) -> Callable[[Any], Any] | None:
    """Return the function that checks a value against the constraints in ``Annotated``; None if there are none."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    survey = Survey(annotation, only_marks=True)
    if survey.rules:
        return adapter_of(annotation).validate_python
    return functools.partial(msgspec.convert, type=annotation) if survey.metas else None


def _with_pydantics_default(attribute: Attribute, default: Any) -> Attribute:
    if not is_pydantics_mark(default):
        return attribute
    return msgspec.structs.replace(attribute, required=default.is_required())


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """The class itself does not know where annotations are text."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    origin = typing.get_origin(hint)
    return origin is typing.Required or (origin is not typing.NotRequired and name in kind.__required_keys__)


def _hints(kind: type[Any], annotation: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    arguments = typing.get_args(annotation)
    if not arguments:
        return hints
    parameters: tuple[Any, ...] = getattr(kind, "__parameters__", ())
    meant: dict[Any, Any] = dict(zip(parameters, arguments, strict=False))
    return {name: _filled(hint, meant) for name, hint in hints.items()}


def _filled(hint: Any, meant: typing.Mapping[Any, Any]) -> Any:
    """Return a hint with type variables, of which it is known what they mean; ``list[T]`` has one, too."""
    if isinstance(hint, typing.TypeVar):
        return meant.get(hint, hint)
    if isinstance(hint, type):
        return cast("Any", hint)
    inside: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    return hint[tuple(meant.get(one, one) for one in inside)] if inside else hint


def _struct_attributes(kind: type[Any], annotation: Any) -> tuple[Attribute, ...]:
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return _call_attributes(kind, annotation, set(names), names)


def _call_attributes(
    kind: type[Any], annotation: Any, fields: set[str], data_names: typing.Mapping[str, str] | None = None
) -> tuple[Attribute, ...]:
    hints = _hints(kind, annotation)
    parameters = inspect.signature(kind).parameters.values()
    return tuple(
        Attribute(
            one.name,
            (data_names or {}).get(one.name, one.name),
            hints.get(one.name, Any),
            one.default is one.empty,
            one.kind is one.KEYWORD_ONLY,
        )
        for one in parameters
        if one.name in fields
    )


def _alias(alias: Any) -> str | None:
    """Return the name by which a pydantic field is set; of several aliases, the first."""
    return next((one for one in getattr(alias, "choices", (alias,)) if isinstance(one, str)), None)


def pydantics_fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a pydantic model or dataclass; empty for other classes."""
    return getattr(kind, "model_fields", None) or getattr(kind, "__pydantic_fields__", {})


def _pydantic_attributes(kind: Any) -> tuple[Attribute, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        Attribute(
            name,
            _alias(field.validation_alias or field.alias) or name,
            hints.get(name, field.annotation),
            field.is_required(),
        )
        for name, field in pydantics_fields(kind).items()
    )
