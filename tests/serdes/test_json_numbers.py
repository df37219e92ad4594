"""A number that JSON cannot express is refused with its field, on every way that a value is encoded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from serdes import Json
from serdes.choose import serde_of_values


class Reading(msgspec.Struct):
    celsius: float


class Pair(msgspec.Struct):
    low: float
    high: float | None
    name: str = ""


class Series(msgspec.Struct):
    name: str | None
    values: list[float]
    last: Reading | None = None


@dataclasses.dataclass
class Plain:
    celsius: float


@pytest.mark.parametrize("number", [math.nan, -math.nan, math.inf, -math.inf, math.inf - math.inf])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda number: number, "it"),
        (Reading, "celsius"),
        (Plain, "celsius"),
        (lambda number: Pair(1.0, number), "high"),
        (lambda number: Pair(number, None), "low"),
        (lambda number: Series(None, [1.0, number]), "values[1]"),
        (lambda number: Series("null", [], Reading(number)), "last.celsius"),
        (lambda number: {"a": None, "b": number}, "b"),
        (lambda number: {"a": None, "b": [{"c": number}]}, "b[0].c"),
        (lambda number: [Reading(number)], "[0].celsius"),
        (lambda number: (None, number), "[1]"),
    ],
)
def test_a_number_without_json_form_is_refused(make: Any, field: str, number: float) -> None:
    value = make(number)
    with pytest.raises(ValueError) as caught:
        serde_of_values(type(value)).serialize("t", value)
    assert str(caught.value).startswith(f"{field} is ")
    assert "JSON cannot express" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        Reading(1e308), Pair(0.0, None, "null"), Series(None, [1.0], None), Plain(-0.5),
        {"a": None, "b": {"c": None, "d": 1e-300}}, [None, "null", 1.5], {"text": "\xcb\x7f\xff"},
    ],
)  # fmt: skip
def test_other_values_read_back_unchanged(value: Any) -> None:
    data = serde_of_values(type(value)).serialize("t", value)
    assert Json(type(value)).deserialize("t", data or b"") == value
