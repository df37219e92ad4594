"""Random messages: every field of a version filled with something that tells it from its neighbours."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from eventbus.protocol.schema import Field, Message, Structure, message
from eventbus.protocol.structs import struct_class

_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def instance(name: str, version: int, chance: random.Random, *, tame: bool = False) -> msgspec.Struct:
    """A message with every field that ``version`` has. ``tame``: values that mean something (times, error codes)."""
    schema = message(name)
    return _Maker(schema, version, chance, tame).structure(schema.body, struct_class(name))


class _Maker:
    def __init__(self, schema: Message, version: int, chance: random.Random, tame: bool) -> None:
        self._outer = struct_class(schema.name)
        self._version = version
        self._chance = chance
        self._tame = tame

    def structure(self, structure: Structure, cls: type[msgspec.Struct]) -> msgspec.Struct:
        fields = [field for field in structure.fields if self._version in field.versions]
        return cls(**{field.name: self._field(field) for field in fields})

    def _field(self, field: Field) -> Any:
        if field.tag is not None and self._chance.random() < 0.5:
            return self.structure(field.structure, self._class(field)) if field.default is ... else field.default
        if self._version in field.nullable and self._chance.random() < 0.3:
            return None
        if field.is_array:
            return [self._value(field) for _ in range(self._chance.choice((0, 1, 1, 2, 3)))]
        return self._value(field)

    def _class(self, field: Field) -> type[msgspec.Struct]:
        return getattr(self._outer, field.type)

    def _value(self, field: Field) -> Any:
        chance = self._chance
        if field.structure:
            return self.structure(field.structure, self._class(field))
        match field.type:
            case "string":
                return "".join(chance.choices("aZ9-é€😀", k=chance.choice((0, 1, 5, 5, 40, 130))))
            case "bytes" | "records":
                return chance.randbytes(chance.choice((0, 1, 20, 126, 127, 128, 300)))
            case "uuid":
                return chance.randbytes(16)
            case "bool":
                return chance.random() < 0.5
            case "float64":
                return chance.choice((0.0, -1.5, 1e300))
            case "uint16":
                return chance.randrange(1 << 16)
            case _ if self._tame and "error_code" in field.name:
                return chance.choice((0, 1, 3, -1))
            case _ if self._tame and (field.name.endswith("_ms") or "timestamp" in field.name):
                return chance.choice((0, 1, 60_000, 2_000_000_000))
            case kind:
                bits = chance.choice((3, 7, 14, _RANGES[kind])) % (_RANGES[kind] + 1)
                return chance.randrange(-(1 << bits), 1 << bits)
