"""Avro: schemas as objects, a codec compiled for each of them, and the serde that keeps them in a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serdes.avro.codec.conversions import Duration
    from serdes.avro.codec.errors import AvroDataError, AvroTypeError
    from serdes.avro.serde import Avro

__all__ = ["Avro", "AvroDataError", "AvroTypeError", "Duration"]

_HOMES = {
    "Avro": "serdes.avro.serde",
    "AvroDataError": "serdes.avro.codec.errors",
    "AvroTypeError": "serdes.avro.codec.errors",
    "Duration": "serdes.avro.codec.conversions",
}


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: whoever wants the schemas alone need not pay for the codec."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
