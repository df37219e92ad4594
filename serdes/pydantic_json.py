"""JSON through pydantic: what its TypeAdapter reads and writes, and the values that it writes with a loss.

pydantic is imported only for types that have parts of it; the service has imported it by then.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from serdes.base import Encode
from serdes.json_engine import hints_of

_MASK = b"**********"
"""The text that pydantic writes for a SecretStr."""


def adapter_of(annotation: Any) -> Any:
    """pydantic's TypeAdapter of an annotation. Raises TypeError for a type that pydantic cannot read."""
    try:
        return _remembered(annotation)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _made(annotation)


@lru_cache(maxsize=1024)
def _remembered(annotation: Any) -> Any:
    return _made(annotation)


def _made(annotation: Any) -> Any:
    if "pydantic" not in sys.modules:
        raise TypeError(
            "it has constraints of annotated_types, which only pydantic checks, and pydantic is not imported. Import "
            "pydantic, or write them as msgspec.Meta(...)"
        )
    pydantic = importlib.import_module("pydantic")
    try:
        return pydantic.TypeAdapter(annotation)
    except (pydantic.PydanticUserError, NameError) as error:
        raise TypeError(f"pydantic: {str(error).splitlines()[0]}") from error


def pydantic_encoder_of(annotation: Any, *, warns: bool = True) -> Encode:
    """Return the function that writes values of an annotation, under the names that they are read by.

    ``warns``: pydantic warns of values that are not of the annotated class, such as a dict instead of a model.

    The function raises ValueError for a value that would be read as a different value: NaN, a secret, or an object of a
    subclass, of which pydantic writes only the fields of the declared class.
    """
    adapter = adapter_of(annotation)
    dump = adapter.dump_json
    may_lose_fields = _holds_models(annotation)

    def encode(value: Any) -> bytes:
        try:
            data: bytes = dump(value, by_alias=True, warnings=warns)
        except ValueError as error:
            path = _undecodable(adapter.dump_python(value, by_alias=True), "")
            if path is None:
                raise
            raise ValueError(
                f"{path or 'it'} has bytes that are not UTF-8, as pydantic writes bytes. Use pydantic.Base64Bytes, or "
                "model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
            ) from error
        if b"null" in data:
            # In this mode the serializers of the user have run, those for JSON too: NaN as None may be their rule.
            plain = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
            if _holds_no_number(plain):
                _check_values(plain, json.loads(data))
        if _MASK in data:
            _check_values(adapter.dump_python(value, by_alias=True, warnings=False), json.loads(data))
        if may_lose_fields:
            whole = dump(value, by_alias=True, serialize_as_any=True, warnings=False)
            if whole != data and _has_undeclared_class(value, annotation):
                _check_fields(json.loads(whole), json.loads(data))
        return data

    return encode


def _holds_models(annotation: Any) -> bool:
    """True if a class with fields stands inside of another: an object of a subclass may be there."""
    seen: set[Any] = set()

    def holds(annotation: Any) -> bool:
        inner = [one for argument in typing.get_args(annotation) for one in classes_of(argument)]
        fields = cast("Mapping[str, Any]", getattr(annotation, "__pydantic_fields__", {}))
        inner += [one for field in fields.values() for one in classes_of(field.annotation)]
        return any(hasattr(one, "__pydantic_fields__") or hasattr(one, "__dataclass_fields__") for one in inner)

    def classes_of(annotation: Any) -> Iterator[Any]:
        if isinstance(annotation, type) and annotation not in seen:
            seen.add(annotation)
            yield annotation
        for argument in typing.get_args(annotation):
            yield from classes_of(argument)

    return holds(annotation) or (hasattr(annotation, "__dataclass_fields__"))


_SERIALIZERS = ("PlainSerializer", "WrapSerializer")


def _has_undeclared_class(value: Any, annotation: Any) -> bool:
    """True if an object is of a subclass of what is declared for its place, and no serializer stands there.

    A serializer of the user may leave fields out: that is a rule, not a loss.
    """
    if isinstance(value, dict):
        return any(_has_undeclared_class(one, annotation) for one in cast("dict[Any, Any]", value).values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_undeclared_class(one, annotation) for one in cast("list[Any]", value))
    kind = cast("type[Any]", type(value))
    fields = _fields_of(kind)
    if not fields:
        return False
    declared = [one for one in _classes_in(annotation) if _fields_of(one)]
    if kind not in declared and any(issubclass(kind, one) for one in declared):
        return True
    return any(_has_undeclared_class(getattr(value, name, None), hint) for name, hint in fields.items())


def _fields_of(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a class's fields, without those that have a serializer of their own."""
    fields = cast("Mapping[str, Any] | None", getattr(kind, "__pydantic_fields__", None))
    if fields is not None:
        return {name: Any if _is_serialized(field.metadata) else field.annotation for name, field in fields.items()}
    return hints_of(kind) if hasattr(kind, "__dataclass_fields__") else {}


def _classes_in(annotation: Any) -> Iterator[type[Any]]:
    """Yield the classes that an annotation names, without those that a serializer of the user writes."""
    if typing.get_origin(annotation) is typing.Annotated:
        if not _is_serialized(annotation.__metadata__):
            yield from _classes_in(annotation.__origin__)
        return
    if isinstance(annotation, type):
        yield annotation
    meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    for argument in (*typing.get_args(annotation), *([] if meant is None else [meant])):
        yield from _classes_in(argument)


def _is_serialized(marks: Iterable[Any]) -> bool:
    return any(type(mark).__name__ in _SERIALIZERS for mark in marks)


def _holds_no_number(value: Any) -> bool:
    """True if plain data holds not-a-number or infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_holds_no_number(one) for one in cast("dict[Any, Any]", value).values())
    return isinstance(value, list) and any(_holds_no_number(one) for one in cast("list[Any]", value))


def _undecodable(value: Any, path: str) -> str | None:
    """Return the place of bytes that are not UTF-8."""
    if isinstance(value, bytes):
        return None if value.decode("utf-8", "replace").encode() == value else path
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        inner = [(f"{path}.{name}" if path else str(name), one) for name, one in fields.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(f"{path}[{number}]", one) for number, one in enumerate(cast("list[Any]", value))]
    return next((found for where, one in inner if (found := _undecodable(one, where)) is not None), None)


def _check_values(value: Any, written: Any, path: str = "") -> None:
    """Raise ValueError for a value that was written as null or masked. Both arguments have the same structure."""
    if isinstance(value, float) and written is None and not math.isfinite(value):
        raise ValueError(without_json_form(path, value))
    if isinstance(written, str) and written.encode() == _MASK and hasattr(value, "get_secret_value"):
        raise ValueError(
            f"{path or 'it'} is a {type(value).__name__}, which is written as asterisks. Give it a serializer "
            "(@field_serializer) that writes what readers need"
        )
    if isinstance(value, dict) and isinstance(written, dict):
        inner = zip(cast("dict[Any, Any]", value).items(), cast("dict[str, Any]", written).values(), strict=False)
        for (name, one), its_form in inner:
            _check_values(one, its_form, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple, set, frozenset)) and isinstance(written, list):
        items = zip(cast("list[Any]", value), cast("list[Any]", written), strict=False)
        for number, (one, its_form) in enumerate(items):
            _check_values(one, its_form, f"{path}[{number}]")


def _check_fields(whole: Any, written: Any, path: str = "") -> None:
    """Raise ValueError for a field of an object of a subclass that was not written."""
    if isinstance(whole, dict) and isinstance(written, dict):
        there = cast("dict[str, Any]", written)
        for name, one in cast("dict[str, Any]", whole).items():
            where = f"{path}.{name}" if path else name
            if name not in there:
                raise ValueError(
                    f"{where} would not be written, because {path or 'the value'} is declared as a class without this "
                    "field. Declare the class that is sent there (a union of classes, or SerializeAsAny[...])"
                )
            _check_fields(one, there[name], where)
    elif isinstance(whole, list) and isinstance(written, list):
        pairs = zip(cast("list[Any]", whole), cast("list[Any]", written), strict=False)
        for number, (one, its_form) in enumerate(pairs):
            _check_fields(one, its_form, f"{path}[{number}]")


def without_json_form(path: str, value: float) -> str:
    """Return the message for not-a-number and infinity."""
    return f"{path or 'it'} is {value}, which JSON cannot express. Send None or a text in its place"
