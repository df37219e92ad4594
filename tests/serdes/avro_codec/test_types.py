"""Python's types in and out: each kind of class, and what their annotations mean to the bytes."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections import deque
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from serdes.avro import AvroTypeError, Duration
from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.from_types import schema_of
from serdes.avro.marks import AvroType, Int32
from serdes.avro.parse import parse

pytestmark = pytest.mark.system


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    S = 1
    L = 2


class Leg(msgspec.Struct):
    price: float
    color: Color = Color.RED


class Flight(msgspec.Struct, kw_only=True):
    number: str
    legs: list[Leg] = []
    first: Leg | None = None
    by_name: dict[str, Leg] = {}


@dataclasses.dataclass
class Plane:
    seats: Int32
    tags: set[str] = dataclasses.field(default_factory=set)
    crew: tuple[str, ...] = ()
    ready: bool = False


class Row(TypedDict):
    id: int
    note: NotRequired[str]
    leg: Leg


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName")
    leg: Plane
    colors: list[Color] = []


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    last_name: str | None = None


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []
    parent: Tree | None = None


class Cat(msgspec.Struct):
    lives: int


class Dog(msgspec.Struct):
    name: str


class Pets(msgspec.Struct):
    one: Cat | Dog | None
    all: list[Cat | Dog | str | int]


class Paint(msgspec.Struct):
    color: Color | str
    coats: Literal[1, 2] = 1


class Crossed(enum.Enum):
    A = "B"
    B = "A"


class Loose(TypedDict, total=False):
    id: Required[int]
    note: str
    size: NotRequired[int | None]


class Chosen(pydantic.BaseModel):
    name: str = pydantic.Field(validation_alias=pydantic.AliasChoices("theName", "name"))


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    items: list[T]
    first: T | None = None


UserId = NewType("UserId", int)


class Values(msgspec.Struct):
    day: date
    at: datetime
    clock: time
    price: Annotated[Decimal, AvroType(precision=10, scale=2)]
    id: UUID
    wait: Duration
    user: UserId
    mode: Literal["on", "off"]
    raw: bytes
    queue: deque[int]
    blob: bytearray
    maybe: Literal["a", "b"] | None = None
    size: Size = Size.L


LEG = Leg(1.5, Color.GREEN)
VALUES = Values(
    day=date(1969, 12, 31),
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    clock=time(23, 59, 59, 999999),
    price=Decimal("-12.34"),
    id=UUID(int=77),
    wait=Duration(1, 2, 3),
    user=UserId(5),
    mode="off",
    raw=b"\0\xff",
    queue=deque([1, 2]),
    blob=bytearray(b"x"),
)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Flight, Flight(number="BA1", legs=[LEG, Leg(2.0)], first=LEG, by_name={"a": LEG})),
        (Flight, Flight(number="")),
        (Plane, Plane(180, {"a", "b"}, ("x", "y"), True)),
        (Row, {"id": 1, "note": "n", "leg": LEG}),
        (Row, {"id": 1, "leg": LEG}),
        (Point, Point(1.0, -2.0)),
        (Model, Model(theName="n", leg=Plane(1), colors=[Color.RED])),
        (Renamed, Renamed("Ada")),
        (Tree, Tree(1, [Tree(2, [Tree(3)])], Tree(4))),
        (Pets, Pets(Cat(9), [Dog("Rex"), "text", 7, Cat(1)])),
        (Pets, Pets(None, [])),
        (Values, VALUES),
        (Cat | Dog, Dog("Rex")),
        (list[Cat], [Cat(1), Cat(2)]),
        (dict[str, int], {"a": 1}),
        (Paint, Paint(Color.RED)),
        (Paint, Paint("red", 2)),
        (Loose, {"id": 1}),
        (Loose, {"id": 1, "note": "n", "size": 2}),
        (Chosen, Chosen(theName="n")),
        (Page[datetime], Page([VALUES.at], VALUES.at)),
        (str, "text"),
        (Color, Color.GREEN),
    ],
)
def test_values_come_back_as_they_were(annotation: Any, value: Any) -> None:
    schema = schema_of(annotation)
    data = Encoder(schema, annotation).encode(value, b"")
    assert Decoder(schema, schema, annotation).decode(data, 0) == value


def test_members_whose_names_are_values_of_others() -> None:
    """What is written is what the schema calls the value, for readers who know nothing of Python."""
    schema = schema_of(Crossed)
    data = Encoder(schema, Crossed).encode(Crossed.A, b"")
    assert Decoder(schema, schema, Any).decode(data, 0) == "B"
    assert Decoder(schema, schema, Crossed).decode(data, 0) is Crossed.A


def test_plain_data_of_a_types_schema() -> None:
    """What a reader without the class gets."""
    schema = schema_of(Flight)
    data = Encoder(schema, Flight).encode(Flight(number="BA1", first=LEG), b"")
    plain = Decoder(schema, schema, Any).decode(data, 0)
    assert plain == {"number": "BA1", "legs": [], "first": {"price": 1.5, "color": "green"}, "by_name": {}}
    assert Encoder(schema, Any).encode(plain, b"") == data


def test_an_instance_of_another_class_is_refused() -> None:
    schema = schema_of(Flight)
    encoder = Encoder(schema, Flight)
    with pytest.raises(TypeError, match=r"Cat.*is Cat, not Flight"):
        encoder.encode(Cat(1), b"")


@pytest.mark.parametrize(
    ("annotation", "value", "path", "reason"),
    [
        (Flight, Flight(number="x", legs=[LEG, Leg("dear")]), "legs[1].price", "not a number"),
        (Flight, Flight(number=7), "number", "7 is int, not str"),
        (Flight, Flight(number="x", by_name={"k": Leg(1.0, "red")}), "by_name['k'].color", "no symbol of Color"),
        (Plane, Plane(1 << 31), "seats", "does not fit an Avro int (32 bits)"),
        (Plane, Plane("many"), "seats", "'many' is str, not int"),
        (Plane, Plane(1, ready="yes"), "ready", "'yes' is str, not bool"),
        (Row, {"leg": LEG}, "id", "'id' is missing"),
        (Pets, Pets(Cat(1), [Plane(1)]), "all[0]", "fits no branch of the union"),
        (Paint, Paint("red", 3), "coats", "3 is none of 1, 2"),
        (Tree, Tree(1, [Tree(1, [Tree(1 << 63)])]), "children[0].children[0].value", "does not fit an Avro long"),
        (Values, msgspec.structs.replace(VALUES, price=Decimal("1.234")), "price", "more digits after"),
        (Values, msgspec.structs.replace(VALUES, price=Decimal("NaN")), "price", "no number"),
        (Values, msgspec.structs.replace(VALUES, price=Decimal("1e20")), "price", "more digits than precision=10"),
        (Values, msgspec.structs.replace(VALUES, at=datetime(2026, 1, 1)), "at", "has no time zone"),
        (Values, msgspec.structs.replace(VALUES, day="2026-01-01"), "day", "not date"),
        (Values, msgspec.structs.replace(VALUES, mode="maybe"), "mode", "no symbol of"),
        (Values, msgspec.structs.replace(VALUES, queue=None), "queue", "None is not a list"),
        (Values, msgspec.structs.replace(VALUES, queue="ab"), "queue", "is not a list"),
        (Values, msgspec.structs.replace(VALUES, raw="text"), "raw", "is str, not bytes"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_that_cannot_be_written(annotation: Any, value: Any, path: str, reason: str) -> None:
    encoder = Encoder(schema_of(annotation), annotation)
    with pytest.raises(Exception) as raised:  # whatever it is, it can be explained
        encoder.encode(value, b"")
    assert isinstance(raised.value, Exception)
    error = encoder.explain(raised.value)
    assert error.path == path
    assert reason in error.reason


@pytest.mark.parametrize(
    ("schema", "annotation", "reason"),
    [
        ('"double"', int, "Avro's double cannot be read as int"),
        ('["null", "int"]', str | None, "no arm of str | NoneType holds int"),
        ('["null", "int"]', int, "null cannot be read as int"),
        ('{"type": "record", "name": "Leg", "fields": []}', Leg, "Leg needs price, which Leg does not have"),
        ('{"type": "array", "items": "string"}', list[int], "cannot be read as int"),
        ('{"type": "enum", "name": "E", "symbols": ["BLUE"]}', Color, "no member for the symbol 'BLUE'"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_when_it_is_bound(schema: str, annotation: Any, reason: str) -> None:
    node = parse(schema)
    with pytest.raises(AvroTypeError, match=reason):
        Decoder(node, node, annotation)


def test_fields_that_a_class_does_not_have_are_not_read() -> None:
    """A schema may say more than the class wants to know."""
    wide = parse(
        json.dumps(
            {
                "type": "record",
                "name": "Cat",
                "fields": [{"name": "color", "type": "string", "default": "grey"}, {"name": "lives", "type": "long"}],
            }
        )
    )
    assert Decoder(wide, wide, Cat).decode(b"\x04ab\x12", 0) == Cat(9)
    assert Encoder(wide, Cat).encode(Cat(9), b"") == b"\x08grey\x12"


def test_a_field_that_nobody_gives_and_has_no_default_is_refused() -> None:
    wide = parse('{"type": "record", "name": "Cat", "fields": [{"name": "color", "type": "string"}]}')
    with pytest.raises(AvroTypeError, match="field color: Cat lacks the field, and the schema has no default"):
        Encoder(wide, Cat)


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        ({"type": "int", "logicalType": "date"}, date(1970, 1, 3), b"\x04"),
        ({"type": "int", "logicalType": "time-millis"}, time(0, 0, 0, 5000), b"\x0a"),
        ({"type": "long", "logicalType": "timestamp-millis"}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"\xd0\x0f"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime(1970, 1, 1, 0, 0, 0, 3), b"\x06"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 5, b"\x0a"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("-0.01"), b"\x02\xff"),
        ({"type": "bytes", "logicalType": "big-decimal"}, Decimal("12.5"), b"\x06\x02\x7d\x02"),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=1), b"\x48" + str(UUID(int=1)).encode()),
        ({"type": "fixed", "size": 16, "name": "u", "logicalType": "uuid"}, UUID(int=1), b"\0" * 15 + b"\1"),
        (
            {"type": "fixed", "size": 12, "name": "d", "logicalType": "duration"},
            Duration(1, 2, 3),
            b"\1\0\0\0\2\0\0\0\3\0\0\0",
        ),
    ],
)
def test_logical_types_as_plain_data(schema: Any, value: Any, data: bytes) -> None:
    node = parse(json.dumps(schema))
    assert Encoder(node, Any).encode(value, b"") == data
    assert Decoder(node, node, Any).decode(data, 0) == value


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "does not reach so far"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "not a time of day"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x7f\xff", "more than 2 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2_000_000_000}, b"\x80\x9a\x0c" + b"\x7f" * 99_968,
         "more than 4000 digits"),
    ],
)  # fmt: skip
def test_a_value_that_python_does_not_have_is_refused(schema: Any, data: bytes, reason: str) -> None:
    node = parse(json.dumps(schema))
    decoder = Decoder(node, node, Any)
    with pytest.raises(Exception) as raised:  # whatever it is, it can be explained
        decoder.decode(data, 0)
    assert isinstance(raised.value, Exception)
    assert reason in decoder.explain(raised.value).reason


def test_a_named_branch_of_a_union_of_plain_data() -> None:
    schema = parse(
        json.dumps(
            [
                {"type": "record", "name": "a.One", "fields": [{"name": "x", "type": "int", "default": 0}]},
                {"type": "record", "name": "b.Two", "fields": [{"name": "x", "type": "int", "default": 0}]},
            ]
        )
    )
    encoder = Encoder(schema, Any)
    assert encoder.encode({"x": 1}, b"") == b"\0\2"
    assert encoder.encode(("b.Two", {"x": 1}), b"") == b"\2\2"
    assert encoder.encode(("Two", {}), b"") == b"\2\0"
    with pytest.raises(AvroDataError, match="fits no branch of the union"):
        encoder.encode(7, b"")


def test_a_bare_number_is_no_time_of_day_where_a_number_may_be_one() -> None:
    schema = parse('[{"type": "int", "logicalType": "time-millis"}, "long"]')
    encoder = Encoder(schema, Any)
    assert encoder.encode(-65, b"") == b"\2\x81\1"
    assert encoder.encode(time(0, 0, 0, 1000), b"") == b"\0\2"
