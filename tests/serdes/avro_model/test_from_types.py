"""Code first: what Python's types are in Avro."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from serdes.avro.codec.conversions import Duration
from serdes.avro.from_types import schema_of
from serdes.avro.marks import (
    AvroField,
    AvroType,
    Float32,
    Int32,
    LocalTimestampMicros,
    LocalTimestampMillis,
    TimeMillis,
    TimestampMillis,
)
from serdes.avro.schema import AvroSchemaError, Record
from serdes.avro.text import to_text

pytestmark = pytest.mark.system

T = TypeVar("T")
OrderId = NewType("OrderId", str)


def said(annotation: Any, **options: Any) -> Any:
    return json.loads(to_text(schema_of(annotation, **options)))


def fields(annotation: Any) -> dict[str, Any]:
    """A record's fields by name, without their names."""
    return {field.pop("name"): field for field in said(annotation)["fields"]}


class Status(enum.StrEnum):
    NEW = "new"
    DONE = "done"


class Size(enum.IntEnum):
    """How big."""

    __avro__ = AvroType(default="SMALL")

    SMALL = 1
    LARGE = 2


class Line(msgspec.Struct, frozen=True):
    sku: str
    count: Int32 = 1


class Tree(msgspec.Struct):
    children: list[Tree] = []
    parent: Tree | None = None


class Order(msgspec.Struct, rename="camel"):
    """What a customer wants.

    And when.
    """

    __avro__ = AvroType(namespace="shop", aliases=("Purchase", "old.Order"), props={"owner": "team-a"})

    order_id: OrderId
    lines: list[Line]
    placed_at: Annotated[dt.datetime, AvroField(doc="by the customer", aliases=("created",), props={"pii": False})]
    status: Status = Status.NEW


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (None, "null"), (bool, "boolean"), (int, "long"), (Int32, "int"), (float, "double"), (Float32, "float"),
        (str, "string"), (OrderId, "string"), (bytes, "bytes"), (bytearray, "bytes"), (Literal[1, 2], "long"),
        (Annotated[int, AvroType("int")], "int"),
        (Annotated[int, msgspec.Meta(ge=0)], "long"),
        (list[int], {"type": "array", "items": "long"}),
        (Sequence[str], {"type": "array", "items": "string"}),
        (tuple[Int32, ...], {"type": "array", "items": "int"}),
        (set[str], {"type": "array", "items": "string"}),
        (frozenset[str], {"type": "array", "items": "string"}),
        (dict[str, list[bool]], {"type": "map", "values": {"type": "array", "items": "boolean"}}),
        (Mapping[str, float], {"type": "map", "values": "double"}),
        (int | None, ["long", "null"]), (None | int, ["null", "long"]),
        (int | str | bytes, ["long", "string", "bytes"]),
        (dt.date, {"type": "int", "logicalType": "date"}),
        (dt.datetime, {"type": "long", "logicalType": "timestamp-micros"}),
        (TimestampMillis, {"type": "long", "logicalType": "timestamp-millis"}),
        (LocalTimestampMillis, {"type": "long", "logicalType": "local-timestamp-millis"}),
        (LocalTimestampMicros, {"type": "long", "logicalType": "local-timestamp-micros"}),
        (dt.time, {"type": "long", "logicalType": "time-micros"}),
        (TimeMillis, {"type": "int", "logicalType": "time-millis"}),
        (Annotated[int, AvroType(logical="timestamp-nanos")], {"type": "long", "logicalType": "timestamp-nanos"}),
        (uuid.UUID, {"type": "string", "logicalType": "uuid"}),
        (Annotated[uuid.UUID, AvroType(size=16, name="Id")],
         {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}),
        (Annotated[Decimal, AvroType(precision=10, scale=2)],
         {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        (Annotated[Decimal, AvroType(precision=9, size=4, name="Amount", namespace="shop")],
         {"type": "fixed", "name": "Amount", "namespace": "shop", "size": 4, "logicalType": "decimal", "precision": 9}),
        (Annotated[Decimal, AvroType(logical="big-decimal")], {"type": "bytes", "logicalType": "big-decimal"}),
        (Duration, {"type": "fixed", "name": "Duration", "size": 12, "logicalType": "duration"}),
        (Annotated[str, AvroType(props={"avro.java.string": "String"})],
         {"type": "string", "avro.java.string": "String"}),
        (Status, {"type": "enum", "name": "Status", "symbols": ["new", "done"]}),
        (Size, {"type": "enum", "name": "Size", "doc": "How big.", "symbols": ["SMALL", "LARGE"], "default": "SMALL"}),
    ],
)  # fmt: skip
def test_single_types(annotation: Any, schema: Any) -> None:
    assert said(annotation) == schema


def test_a_struct_byte_for_byte() -> None:
    assert to_text(schema_of(Order)) == (
        '{"type":"record","name":"Order","namespace":"shop","doc":"What a customer wants.\\n\\nAnd when.","fields":['
        '{"name":"orderId","type":"string"},'
        '{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":['
        '{"name":"sku","type":"string"},{"name":"count","type":"int","default":1}]}}},'
        '{"name":"placedAt","type":{"type":"long","logicalType":"timestamp-micros"},"doc":"by the customer",'
        '"aliases":["created"],"pii":false},'
        '{"name":"status","type":{"type":"enum","name":"Status","symbols":["new","done"]},"default":"new"}'
        '],"owner":"team-a","aliases":["Purchase","old.Order"]}'
    )


def test_a_type_that_holds_itself() -> None:
    schema = schema_of(Tree)
    assert isinstance(schema, Record)
    assert fields(Tree) == {
        "children": {"type": {"type": "array", "items": "Tree"}, "default": []},
        "parent": {"type": ["null", "Tree"], "default": None},
    }


def test_dataclasses() -> None:
    @dataclasses.dataclass
    class Shipment:
        weight: Float32
        tags: dict[str, str] = dataclasses.field(default_factory=dict)
        note: str | None = "fragile"
        made: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)

    assert "doc" not in said(Shipment), "the decorator's own docstring is none"
    assert fields(Shipment) == {
        "weight": {"type": "float"},
        "tags": {"type": {"type": "map", "values": "string"}, "default": {}},
        "note": {"type": ["string", "null"], "default": "fragile"},
        "made": {"type": {"type": "string", "logicalType": "uuid"}},
    }


def test_typed_dicts_and_named_tuples() -> None:
    assert fields(Point) == {"x": {"type": "long"}, "label": {"type": ["null", "string"], "default": None}}
    assert fields(Pair) == {"left": {"type": "long"}, "right": {"type": "string", "default": "r"}}


class Point(TypedDict):
    x: int
    label: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Payment(pydantic.BaseModel):
    """Money."""

    __avro__ = AvroType(name="PaymentV2", namespace="pay")

    amount: Annotated[Decimal, AvroType(precision=10, scale=2)] = Decimal("9.99")
    method: Literal["card", "cash"] = "card"
    payer: str = pydantic.Field(alias="paidBy", description="full name")
    tags: list[str] = pydantic.Field(default_factory=list)
    memo: Annotated[str | None, AvroField(order="ignore")] = None


def test_pydantic_models() -> None:
    schema = said(Payment)
    assert (schema["name"], schema["namespace"], schema["doc"]) == ("PaymentV2", "pay", "Money.")
    assert fields(Payment) == {
        "amount": {
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            "default": "\x03\xe7",
        },
        "method": {"type": {"type": "enum", "name": "PaymentV2Method", "symbols": ["card", "cash"]}, "default": "card"},
        "paidBy": {"type": "string", "doc": "full name"},
        "tags": {"type": {"type": "array", "items": "string"}, "default": []},
        "memo": {"type": ["null", "string"], "default": None, "order": "ignore"},
    }


class Everything(msgspec.Struct):
    day: dt.date = dt.date(2026, 1, 2)
    at: dt.datetime = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    millis: TimestampMillis = dt.datetime(2026, 1, 2, 0, 0, 0, 1_000, tzinfo=dt.UTC)
    local: LocalTimestampMillis = dt.datetime(1970, 1, 1, 0, 0, 1)
    clock: TimeMillis = dt.time(0, 0, 1)
    ident: uuid.UUID = uuid.UUID(int=1)
    data: bytes = b"\x00\xff"
    code: Annotated[bytes, AvroType(size=2)] = b"ab"
    size: Size = Size.LARGE
    line: Line = Line("a", 2)
    either: int | str | None = "x"
    low: float = float("-inf")
    maybe: bool | None = True
    raw: Annotated[dict[str, int], AvroField(default={"a": 1})] = {}


def test_defaults_in_avro_s_form() -> None:
    assert {name: field["default"] for name, field in fields(Everything).items()} == {
        "day": 20455,
        "at": 1767312000000000,
        "millis": 1767312000001,
        "local": 1000,
        "clock": 1000,
        "ident": "00000000-0000-0000-0000-000000000001",
        "data": "\x00\xff",
        "code": "ab",
        "size": "LARGE",
        "line": {"sku": "a", "count": 2},
        "either": "x",
        "low": "-Infinity",
        "maybe": True,
        "raw": {"a": 1},
    }


def test_a_default_s_branch_comes_first() -> None:
    assert fields(Everything)["either"]["type"] == ["string", "long", "null"]
    assert fields(Everything)["maybe"]["type"] == ["boolean", "null"]


def test_an_order_of_branches_that_matters() -> None:
    class Named(msgspec.Struct, kw_only=True):
        one: Annotated[str | int | None, AvroField(branches=("null", "long", "string"))] = 5
        two: Annotated[str | None, AvroField(branches=("string", "null"))]

    assert fields(Named) == {
        "one": {"type": ["null", "long", "string"], "default": 5},
        "two": {"type": ["string", "null"]},
    }


class Box(msgspec.Struct, Generic[T]):
    content: T


class Base(msgspec.Struct):
    __avro__ = AvroType(namespace="base", name="Named", aliases=("Old",))
    key: int


class Derived(Base):
    more: str


def test_names() -> None:
    assert said(Box[Line])["name"] == "Box_Line"
    assert fields(Box[int]) == {"content": {"type": "long"}}
    derived = said(Derived)
    assert (derived["name"], derived["namespace"], "aliases" in derived) == ("Derived", "base", False)
    assert said(Line, namespace="given")["namespace"] == "given"
    assert "namespace" not in said(list[Line])["items"]
    assert said(Annotated[Line, AvroType(name="Item", namespace="x")])["name"] == "Item"
    assert said(list[Order])["items"]["fields"] == said(Order)["fields"]


def test_a_class_inside_a_function_is_called_by_its_own_name() -> None:
    class Local(msgspec.Struct):
        x: int

    assert to_text(schema_of(Local)) == '{"type":"record","name":"Local","fields":[{"name":"x","type":"long"}]}'


def test_a_union_of_records() -> None:
    assert [branch["name"] for branch in said(Line | Pair)] == ["Line", "Pair"]
    assert said(dict[str, Line | Pair | None])["values"][2] == "null"


class Anything(msgspec.Struct):
    value: Any


class Deep(msgspec.Struct):
    lines: list[dict[str, Decimal]]


class Permissions(enum.Flag):
    READ = 1


class Odd(enum.Enum):
    A = "a-b"
    B = "c"


class BadDefault(msgspec.Struct):
    count: Int32 = 2**40


class BadLine(msgspec.Struct):
    __avro__ = AvroType(name="Line")
    line: Line


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Anything, "Anything.value: Any says nothing of its values; Avro needs a type"),
        (Deep, "Deep.lines[]{}: a Decimal needs a precision in Avro; write Annotated[Decimal, AvroType(precision=10,"),
        (dict[int, str], "the keys of an Avro map are text"),
        (tuple[int, str], "an Avro array has items of one type"),
        (dt.timedelta, "timedelta: a timedelta has no Avro type; use int with the unit in its name, or Duration"),
        (complex, "complex has no Avro type"),
        (list[int] | list[str], "two branches of the union are array in Avro; wrap one in a class"),
        (dt.datetime | int, "two branches of the union are long in Avro; wrap one in a class"),
        (Annotated[int, AvroType("float")], "float does not fit here; long or int do"),
        (Annotated[dt.date, AvroType(logical="timestamp-millis")], "timestamp-millis is not a logical type for a date"),
        (Permissions, "Permissions may be several flags at once; use int"),
        (Literal["a-b"], "'a-b' is not an Avro name; change the Literal, or use str"),
        (Literal["a", 1], "a Literal of several types; use a union of types"),
        (BadDefault, "BadDefault.count: the default 1099511627776 has no form in Avro as int; change it, or give"),
        (BadLine, "BadLine.line: BadLine and Line are both Line; give one `AvroType(name=...)`"),
        (Annotated[Line, AvroType(name="a b")], '"a b" is no name for a record'),
        (Annotated[Decimal, AvroType(precision=2, scale=5)], "decimal with precision 2, scale 5 does not fit bytes"),
        (Annotated[Decimal, AvroType(precision=10, size=4, name="F")], "decimal with precision 10 does not fit F"),
        (Annotated[str, AvroType(logical="date")], "date does not fit string"),
    ],
)  # fmt: skip
def test_what_avro_cannot_say(annotation: Any, message: str) -> None:
    with pytest.raises(AvroSchemaError) as caught:
        schema_of(annotation)
    assert message in str(caught.value)


def test_an_enum_whose_values_are_no_names_gives_its_members() -> None:
    assert said(Odd)["symbols"] == ["A", "B"]
