"""Bytes to objects and back, in Kafka's byte formats, as JSON, and as Avro with a schema registry.

Usable with any Kafka client; the event bus chooses a serde by annotation.

- ``choose``, ``base``: the serde of a Python type, and the protocols that a serde implements
- ``primitives``: Kafka's Bytes, String, Integer and Long
- ``json``, ``json_engine``, ``json_writing``, ``pydantic_json``, ``nesting``: JSON, through msgspec or pydantic
- ``avro``: Avro schemas, codec and serde
- ``framing``, ``registry``, ``rules``, ``errors``: schema ids in messages, and requests to a registry
"""

from __future__ import annotations

from serdes.lazy import lazy_names

TYPE_CHECKING = False  # as in `serdes.lazy`
if TYPE_CHECKING:
    from serdes.avro import Avro as Avro
    from serdes.base import Serde as Serde
    from serdes.choose import serde_for as serde_for
    from serdes.errors import SchemaRegistryError as SchemaRegistryError
    from serdes.json import Json as Json
    from serdes.primitives import Bytes as Bytes
    from serdes.primitives import Int as Int
    from serdes.primitives import Long as Long
    from serdes.primitives import Str as Str
    from serdes.registry import SchemaClient as SchemaClient

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
