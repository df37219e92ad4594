"""Versions side by side, and the lines of fields in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from schema_registry.tools.fields import Row, compare
from schema_registry.tools.places import place_of_class, place_of_field
from serdes.avro.parse import parse

pytestmark = pytest.mark.system

FILE = "tests/schema_registry/tools/test_fields.py"


class Leg(msgspec.Struct):
    """Part of a trip."""

    origin: str
    dest: str


class Base(msgspec.Struct):
    number: int


class Trip(Base):
    legs: list[Leg] | None
    by_day: dict[str, Leg]


@dataclass
class Ticket:
    trip: Trip


OLD = """{"type": "record", "name": "Trip", "namespace": "air", "fields": [
  {"name": "number", "type": "int"},
  {"name": "gone", "type": "string"},
  {"name": "day", "type": {"type": "long", "logicalType": "timestamp-micros"}, "doc": "UTC"},
  {"name": "legs", "type": {"type": "array", "items": {"type": "record", "name": "Leg", "fields": [
    {"name": "origin", "type": "string"}, {"name": "price", "type": "bytes"}]}}}]}"""
NEW = """{"type": "record", "name": "Trip", "namespace": "air", "fields": [
  {"name": "number", "type": "long"},
  {"name": "day", "type": {"type": "long", "logicalType": "timestamp-micros"}, "doc": "UTC"},
  {"name": "legs", "type": ["null", {"type": "array", "items": {"type": "record", "name": "Leg", "fields": [
    {"name": "origin", "type": "string"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "next", "type": ["null", "Leg"], "default": null}]}}], "default": null}]}"""


def test_field_by_field() -> None:
    assert compare(parse(OLD), parse(NEW)) == [
        Row("Trip", "record air.Trip", "record air.Trip", ""),
        Row("Trip.number", "int", "long", "changed"),
        Row("Trip.gone", "string", "", "removed"),
        Row("Trip.day", "long (timestamp-micros) # UTC", "long (timestamp-micros) # UTC", ""),
        Row("Trip.legs", "array of Leg", "null | array of Leg = null", "changed"),
        Row("Trip.legs[].origin", "string", "string", ""),
        Row("Trip.legs[].price", "bytes", "bytes (decimal 9, 2)", "changed"),
        Row("Trip.legs[].next", "", "null | Leg = null", "added"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ('"int"', '"long"', [Row("int", "int", "", "removed"), Row("long", "", "long", "added")]),
        (
            '{"type": "enum", "name": "E", "symbols": ["a"]}',
            '{"type": "enum", "name": "E", "symbols": ["a", "b"], "default": "a"}',
            [Row("E", "enum E {a}", "enum E {a, b} = a", "changed")],
        ),
        (
            '{"type": "fixed", "name": "F", "size": 4}',
            '{"type": "fixed", "name": "F", "size": 8}',
            [Row("F", "fixed F 4", "fixed F 8", "changed")],
        ),
    ],
)
def test_what_is_no_record(old: str, new: str, rows: list[Row]) -> None:
    assert compare(parse(old), parse(new)) == rows


def line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as file:  # noqa: PTH123 - beside this very module
        return next(number for number, line in enumerate(file, 1) if text in line)


@pytest.mark.parametrize(
    ("kind", "where", "line"),
    [
        (Trip, "Trip.legs", "legs: list"),
        (Trip, "Trip.legs[].dest", "dest: str"),
        (Trip, "Trip.by_day{}.origin", "origin: str"),
        (Trip, "Trip.number", "number: int"),
        (Ticket, "Ticket.trip.legs[].origin", "origin: str"),
        (Trip, "Trip.legs[].gone", "legs: list"),
        (Trip, "Trip", "class Trip"),
        (Trip, "Trip.gone", "class Trip"),
    ],
)
def test_the_line_of_a_field(kind: Any, where: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of_field(kind, where)
    assert place is not None
    assert (place.file.endswith(FILE), place.line) == (True, line_of(line))


def test_what_is_written_nowhere_has_no_line() -> None:
    made = msgspec.defstruct("Made", [("a", int)])
    assert place_of_field(made, "Made.a") is None
    assert place_of_class(dict[str, int]) is None
    assert place_of_field(None, "A.b") is None
