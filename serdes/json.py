"""JSON through msgspec: Struct, dataclass, TypedDict, pydantic models, and plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from serdes.base import Decode, Encode


class Json:
    """JSON, checked against a type when one is given.

    ``Json(Order)`` decodes into ``Order`` and refuses what does not fit, naming the field; ``Json()`` gives plain data.
    """

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        if hasattr(type, "model_validate_json"):  # a pydantic model, version 2: pydantic's own rules apply
            self._decode: Decode = type.model_validate_json
        else:
            self._decode = msgspec.json.Decoder(type).decode

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
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_foreign)
encode_json: Encode = _encoder.encode
"""Any JSON-able value to bytes."""
