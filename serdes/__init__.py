"""Bytes to objects and back, in Kafka's byte formats, as JSON, and as Avro with a schema registry.

Usable with any Kafka client; the event bus picks one by annotation.
"""

from typing import TYPE_CHECKING, Any

from serdes.base import (
    BoundSerde,
    Decode,
    Encode,
    SchemaNeeded,
    SchemaSerde,
    Serde,
    TypedSerde,
    bind_decoder,
    bind_encoder,
    for_keys,
)
from serdes.choose import (
    Others,
    encoder_for,
    serde_for,
    serde_named,
    serde_of_values,
    split_optional,
)
from serdes.json import Json
from serdes.primitives import Bytes, Int, Long, Str
from serdes.registry import SchemaClient, SchemaRegistryError

if TYPE_CHECKING:
    from serdes.avro import Avro

__all__ = [
    "Avro",
    "BoundSerde",
    "Bytes",
    "Decode",
    "Encode",
    "Int",
    "Json",
    "Long",
    "Others",
    "SchemaClient",
    "SchemaNeeded",
    "SchemaRegistryError",
    "SchemaSerde",
    "Serde",
    "Str",
    "TypedSerde",
    "bind_decoder",
    "bind_encoder",
    "encoder_for",
    "for_keys",
    "serde_for",
    "serde_named",
    "serde_of_values",
    "split_optional",
]


def __getattr__(name: str) -> Any:
    if name == "Avro":  # imported when it is asked for: most programs do not
        from serdes.avro.serde import Avro

        return Avro
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
