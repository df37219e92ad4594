"""Bytes to objects and back, in Kafka's byte formats.

Usable with any Kafka client; the event bus picks one by annotation.
"""

from serdes.base import BoundSerde, Decode, Encode, Serde, bind_decoder, bind_encoder
from serdes.choose import encoder_for, serde_for, split_optional
from serdes.json import Json
from serdes.primitives import Bytes, Int, Long, Str

__all__ = [
    "BoundSerde",
    "Bytes",
    "Decode",
    "Encode",
    "Int",
    "Json",
    "Long",
    "Serde",
    "Str",
    "bind_decoder",
    "bind_encoder",
    "encoder_for",
    "serde_for",
    "split_optional",
]
