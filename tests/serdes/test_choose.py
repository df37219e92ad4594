"""Which serde a type means: what is written by the value's type is read by the annotation."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pytest

from serdes import serde_for
from serdes.base import bind_decoder, bind_encoder
from serdes.choose import encoder_for


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Shape(enum.Enum):
    ROUND = "round"


class OrderId(str):
    __slots__ = ()


class Blob(bytes):
    __slots__ = ()


class Order(msgspec.Struct):
    amount: float


Name = NewType("Name", str)
ShortName = NewType("ShortName", Name)


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (bytes, b"\xff", b"\xff"),
        (bytearray, bytearray(b"\xff"), b"\xff"),
        (memoryview, memoryview(b"\xff"), b"\xff"),
        (Blob, Blob(b"\xff"), b"\xff"),
        (str, "red", b"red"),
        (Colour, Colour.RED, b"red"),
        (Colour | None, Colour.RED, b"red"),
        (OrderId, OrderId("o-1"), b"o-1"),
        (Name, Name("n"), b"n"),
        (ShortName, ShortName(Name("n")), b"n"),
        (Literal["red", "blue"], "red", b"red"),
        (Annotated[str, msgspec.Meta(max_length=3)], "red", b"red"),
        (int, 3, b"\x00\x00\x00\x00\x00\x00\x00\x03"),
        (Size, Size.LARGE, b"\x00\x00\x00\x00\x00\x00\x00\x03"),
        (bool, True, b"true"),
        (float, 1.5, b"1.5"),
        (Shape, Shape.ROUND, b'"round"'),
        (Order, Order(1.5), b'{"amount":1.5}'),
        (list[int], [1, 2], b"[1,2]"),
        (dict[str, Order], {"a": Order(1.5)}, b'{"a":{"amount":1.5}}'),
        (Any, {"a": [None]}, b'{"a":[null]}'),
    ],
)
def test_what_is_written_is_read(annotation: Any, value: Any, data: bytes) -> None:
    serde = serde_for(annotation)
    assert encoder_for(type(value), "t")(value) == data
    assert bind_encoder(serde, "t")(value) == data
    read = bind_decoder(serde, "t")(data)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (Colour, b"green", "'green' is not a valid Colour"),
        (Size, b"\x00" * 8, "0 is not a valid Size"),
        (Literal["red", "blue"], b"green", "green"),
        (Annotated[str, msgspec.Meta(max_length=3)], b"green", "length <= 3"),
        (Annotated[int, msgspec.Meta(gt=0)], b"\x00" * 8, ">= 1"),
    ],
)
def test_values_outside_the_annotation_are_refused(annotation: Any, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind_decoder(serde_for(annotation), "t")(data)


class Tagged:
    """A serde that says who it is."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def serialize(self, topic: str, value: Any) -> bytes:
        return self.tag.encode()

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self.tag


class Base: ...


class Near(Base): ...


class Nearest(Near): ...


class Payment(TypedDict):
    amount: float


@pytest.mark.parametrize(
    ("custom", "annotation", "value_type", "tag"),
    [
        ({Base: "base"}, Base, Base, "base"),
        ({Base: "base"}, Nearest, Nearest, "base"),
        ({Base: "base", Near: "near"}, Nearest, Nearest, "near"),
        ({Base: "base"}, Nearest | None, Nearest, "base"),
        ({str: "str"}, Colour, Colour, "str"),
        ({dict: "dict"}, Payment, dict, "dict"),
        ({list: "list"}, list[int], list, "list"),
        ({bool: "bool"}, bool, bool, "bool"),
        ({bytes: "bytes"}, bytes, bytes, "bytes"),
    ],
)
def test_a_custom_serde_holds_for_derived_types_both_ways(
    custom: dict[type, str], annotation: Any, value_type: type, tag: str
) -> None:
    serdes = {cls: Tagged(name) for cls, name in custom.items()}
    assert encoder_for(value_type, "t", serdes)(None) == tag.encode()
    assert bind_decoder(serde_for(annotation, serdes), "t")(b"") == tag


def test_a_type_json_cannot_be_checked_against() -> None:
    with pytest.raises(TypeError):
        serde_for(lambda: None)


def test_serdes_say_what_they_are() -> None:
    names = [repr(serde_for(one)) for one in (bytes, int, Colour, Literal["a"], Order)]
    assert names == ["serdes.Bytes", "serdes.Long", "serdes.Colour", "serdes.Str", "serdes.Json(Order)"]
