"""Whatever text arrives: it is a schema or it is refused with a reason, and schemas can always be compared."""

from __future__ import annotations

import base64
import json
import random

import pytest

from schema_registry.formats import InvalidSchema, ParsedSchema, check, parse
from serdes.registry import Reference, SchemaText
from tests.schema_registry.compatibility.avro_pairs import pairs
from tests.schema_registry.compatibility.test_json_sound import schema as json_schema
from tests.schema_registry.compatibility.test_protobuf import FLIGHT, FLIGHT_DESCRIPTOR, OLD

pytestmark = pytest.mark.system

WORDS = {
    "AVRO": [
        '"type"',
        '"record"',
        '"name"',
        '"fields"',
        "null",
        "[]",
        "{}",
        '"default"',
        "1e999",
        '"logicalType"',
        "-1",
    ],
    "JSON": [
        '"$ref"',
        '"#"',
        '"type"',
        "true",
        "[]",
        "{}",
        '"items"',
        '"allOf"',
        '"enum"',
        "1e999",
        '"properties"',
        "-1",
    ],
    "PROTOBUF": [
        "message",
        "oneof",
        "map<",
        "reserved",
        "{",
        "}",
        ";",
        "=",
        "1",
        '"',
        "option",
        "[",
        "group",
        "extend",
        ".",
    ],
}


def texts(schema_type: str, chance: random.Random) -> list[str]:
    match schema_type:
        case "AVRO":
            return [reader for reader, _ in pairs(chance.randrange(1000), 20)]
        case "JSON":
            return [json.dumps(json_schema(chance)) for _ in range(20)]
        case _:
            return [FLIGHT, OLD, FLIGHT_DESCRIPTOR]


def damaged(chance: random.Random, text: str, words: list[str]) -> str:
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(text) + 1)
        until = min(len(text), at + chance.choice((0, 0, 1, 1, 5, 30)))
        put = chance.choice(
            (chance.choice(words), "", chr(chance.choice((0, 34, 92, 123, 0xD7FF, 0x1F600))), text[:30])
        )
        text = text[:at] + put + text[until:]
    return text


def never(reference: Reference) -> SchemaText:
    raise AssertionError(f"{reference} is not among the references")


@pytest.mark.parametrize(
    ("schema_type", "count"),
    [("AVRO", 1_500), ("JSON", 1_500), ("PROTOBUF", 15), pytest.param("PROTOBUF", 1_500, marks=pytest.mark.slow)],
)
def test_damaged_texts_are_refused_or_compared(schema_type: str, count: int) -> None:
    chance = random.Random(5)
    some = texts(schema_type, chance)
    kept: list[ParsedSchema] = [parse(SchemaText(text, schema_type), never) for text in some]
    refused = 0
    for _ in range(count):
        text = damaged(chance, chance.choice(some), WORDS[schema_type])
        try:
            schema = parse(SchemaText(text, schema_type), never, is_new=chance.random() < 0.5)
        except InvalidSchema as error:
            assert error.reason
            refused += 1
            continue
        verdict = check("FULL", schema, [(1, chance.choice(kept))])
        assert verdict.is_compatible == (not verdict.findings)
        again = parse(SchemaText(schema.canonical, schema_type), never, is_new=False)
        assert again.canonical == schema.canonical
        assert again.normalized().schema == schema.normalized().schema
    assert count // 5 < refused < count


@pytest.mark.parametrize("count", [15, pytest.param(3_000, marks=pytest.mark.slow)])
def test_damaged_descriptors_are_refused_or_compared(count: int) -> None:
    chance = random.Random(6)
    good = base64.b64decode(FLIGHT_DESCRIPTOR)
    kept = parse(SchemaText(FLIGHT, "PROTOBUF"), never)
    taken = 0
    for _ in range(count):
        data = bytearray(good)
        at = chance.randrange(len(data))
        data[at : at + chance.choice((0, 1, 3))] = chance.randbytes(chance.choice((0, 1, 1, 4)))
        try:
            schema = parse(SchemaText(base64.b64encode(data).decode(), "PROTOBUF"), never)
        except InvalidSchema as error:
            assert error.reason
            continue
        check("FULL", schema, [(1, kept)])
        assert parse(SchemaText(schema.canonical, "PROTOBUF"), never).canonical == schema.canonical
        taken += 1
    assert taken >= count // 50
