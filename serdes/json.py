"""JSON through msgspec, or through pydantic for types that have parts of it: see `serdes.json_engine`.

What a reader of the same type would read as another value is refused when it is written. Types that JSON lacks have one
form each: bytes are base64 text, times are ISO 8601, a Decimal or UUID is a text; a reader that declares the type gets
the value back, a reader of plain data gets the text.
"""

from __future__ import annotations

import types
import typing
from typing import Any, cast

import msgspec

from serdes.base import Decode, Encode
from serdes.json_engine import survey_of
from serdes.json_writing import encoder_of_class, to_json
from serdes.pydantic_json import adapter_of, pydantic_encoder_of


class Json:
    """JSON, checked against a type if a type is given.

    ``Json(Order)`` decodes into ``Order``, or raises an error with the field that does not match; ``Json()`` returns
    plain data. Raises TypeError for a type that cannot be decoded from JSON: a class that is not a Struct, dataclass,
    TypedDict, NamedTuple or pydantic model, or contains such a class; and for a type with a validation rule that
    reading would bypass. With ``only_writes``, the first read raises this error instead.
    """

    def __init__(self, type: Any = Any, *, only_writes: bool = False) -> None:
        self.type = type
        self.is_pydantics = type is not Any and survey_of(type).is_pydantics
        """True if pydantic reads the type, and writes those of its values whose class is not pydantic's."""
        self._decode = self._decode_first if only_writes else _decoder_of(type, self.is_pydantics)

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return self.encoder_of(cast("Any", type(value)))(value)

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self._decode(data)

    def _decode_first(self, data: bytes) -> Any:
        self._decode = _decoder_of(self.type, self.is_pydantics)
        return self._decode(data)

    def encoder(self, topic: str) -> Encode:
        return lambda value: self.encoder_of(cast("Any", type(value)))(value)

    def encoder_of(self, kind: type) -> Encode:
        """Return the function that writes values of this runtime type."""
        if _never_holds(self.type, kind):
            return _refuse(self.type, kind)
        if self.is_pydantics and not survey_of(kind).is_pydantics and _may_hold(self.type, kind):
            try:
                return pydantic_encoder_of(self.type, warns=False)
            except TypeError:  # a type that is only written, and has parts that pydantic cannot read
                return encoder_of_class(kind)
        return encoder_of_class(kind)

    def decoder(self, topic: str) -> Decode:
        return self._decode

    def __repr__(self) -> str:
        return f"serdes.Json({getattr(self.type, '__name__', self.type)})"


# writing -------------------------------------------------------------------------------------------------------------


def _classes_of(annotation: Any) -> list[Any] | None:
    """Return the classes that values of an annotation may have; None: they are not known."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _classes_of(annotation.__origin__)
    meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if meant is not None and not isinstance(annotation, type):
        return _classes_of(meant)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        arms = [_classes_of(arm) for arm in typing.get_args(annotation)]
        return None if any(arm is None for arm in arms) else [one for arm in arms for one in arm or ()]
    kind = dict if typing.is_typeddict(annotation) else typing.get_origin(annotation) or annotation
    return [kind] if isinstance(kind, type) and kind is not object else None


def _may_hold(annotation: Any, kind: type) -> bool:
    """True if pydantic writes values of this class by the rules of the annotation, and not as what they are."""
    classes = _classes_of(annotation)
    return classes is None or any(issubclass(kind, one) for one in classes)


_OBJECTS = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__", "__attrs_attrs__")


def _never_holds(annotation: Any, kind: type) -> bool:
    """True for text where an object is declared: no reader of the declared type could read it."""
    classes = _classes_of(annotation) if issubclass(kind, str) else None
    return bool(classes) and all(_is_object(one) for one in classes)


def _is_object(kind: type[Any]) -> bool:
    if "root" in getattr(kind, "__pydantic_fields__", ()):
        return False
    return kind in (dict, list, type(None)) or any(hasattr(kind, name) for name in _OBJECTS)


def _refuse(annotation: Any, kind: type) -> Encode:
    named = getattr(annotation, "__name__", annotation)

    def refuse(value: Any) -> bytes:
        raise TypeError(
            f"the topic is declared as {named}, and a {kind.__name__} is none. Send text that is JSON already as "
            "bytes: text.encode()"
        )

    return refuse


# reading -------------------------------------------------------------------------------------------------------------


def _decoder_of(annotation: Any, is_pydantics: bool) -> Decode:
    if annotation is Any:
        return msgspec.json.Decoder().decode
    problem = survey_of(annotation).problem()
    if problem:
        raise TypeError(problem)
    if is_pydantics:
        return adapter_of(annotation).validate_json
    decode = msgspec.json.Decoder(annotation, dec_hook=_own).decode
    _check_readable(annotation)
    return decode


def _own(type: Any, value: Any) -> Any:
    """Read a pydantic model inside of a Struct. By the rules for JSON: a strict model takes a date only as its text."""
    return type.model_validate_json(to_json(value)) if hasattr(type, "model_validate_json") else value


_PLAIN: tuple[Any, ...] = (None, True, 0, 0.5, "", [], {})
"""One of each kind that JSON has."""


def _check_readable(annotation: Any) -> None:
    import msgspec.inspect  # 10 ms, for those who read JSON into types

    waiting: list[Any] = [msgspec.inspect.type_info(annotation)]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting.extend(cast("tuple[Any, ...]", one))
        elif isinstance(one, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, msgspec.inspect.CustomType) and not _is_made(one.cls):
                raise TypeError(f"nothing makes {one.cls.__name__} out of JSON")
            waiting.extend(getattr(one, name) for name in one.__struct_fields__)


def _is_made(kind: type) -> bool:
    """It is a model that makes itself, or an abstract class that plain data is of."""
    try:
        return hasattr(kind, "model_validate") or any(isinstance(value, kind) for value in _PLAIN)
    except TypeError:  # a Protocol that cannot be asked
        return True
