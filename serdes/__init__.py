"""Bytes to objects and back, in Kafka's byte formats, as JSON, and as Avro with a schema registry.

Usable with any Kafka client; the event bus picks one by annotation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from serdes.avro import Avro
    from serdes.base import Serde
    from serdes.choose import serde_for
    from serdes.errors import SchemaRegistryError
    from serdes.json import Json
    from serdes.primitives import Bytes, Int, Long, Str
    from serdes.registry import SchemaClient

__all__ = [
    "Avro",
    "Bytes",
    "Int",
    "Json",
    "Long",
    "SchemaClient",
    "SchemaRegistryError",
    "Serde",
    "Str",
    "serde_for",
]

_HOMES = {
    "avro.serde": ("Avro",),
    "base": ("Serde",),
    "choose": ("serde_for",),
    "errors": ("SchemaRegistryError",),
    "json": ("Json",),
    "primitives": ("Bytes", "Int", "Long", "Str"),
    "registry": ("SchemaClient",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
