"""JSON through msgspec: Struct, dataclass, TypedDict, pydantic models, and plain data."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from serdes.base import Decode, Encode


class Json:
    """JSON, checked against a type when one is given.

    ``Json(Order)`` decodes into ``Order`` and refuses what does not fit, naming the field; ``Json()`` gives plain data.
    Raises TypeError for a type that nothing makes out of JSON: a class of one's own that is no Struct, dataclass,
    TypedDict, NamedTuple or pydantic model, or has such a thing within.
    """

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        if hasattr(type, "model_validate_json"):  # a pydantic model, version 2: pydantic's own rules apply
            self._decode: Decode = type.model_validate_json
        else:
            self._decode = msgspec.json.Decoder(type, dec_hook=_own).decode
            if type is not Any:
                _check_readable(type)

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return encode_json(value)

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self._decode(data)

    def encoder(self, topic: str) -> Encode:
        return encode_json

    def decoder(self, topic: str) -> Decode:
        return self._decode

    def __repr__(self) -> str:
        return f"serdes.Json({getattr(self.type, '__name__', self.type)})"


def _foreign(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json", by_alias=True)  # by what it is read by
    name = type(value).__name__
    raise TypeError(
        f"{name} has no JSON form; give the bus a serde for it: EventBus(url, serdes={{{name}: MySerde()}})"
    )


def _own(type: Any, value: Any) -> Any:
    """What a class that msgspec does not know is made of: a pydantic model inside of something else."""
    return type.model_validate(value) if hasattr(type, "model_validate") else value


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


_encoder = msgspec.json.Encoder(enc_hook=_foreign)
encode_json: Encode = _encoder.encode
"""Any JSON-able value to bytes."""
