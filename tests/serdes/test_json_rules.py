"""A type's own rules hold for what is read from JSON and Avro, or the type is refused where it is declared."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from serdes import Json, serde_for
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.from_types import schema_of
from serdes.choose import serde_of_values

pytestmark = pytest.mark.system


@pydantic_dataclass
class Payment:
    cents: int = pydantic.Field(gt=0)
    currency: str = pydantic.Field(default="eur", alias="iso")


class Card(pydantic.BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Cash(pydantic.BaseModel):
    kind: Literal["cash"] = "cash"
    notes: int


@dataclasses.dataclass
class Receipt:
    payment: Payment


@dataclasses.dataclass
class Positive:
    count: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Default:
    count: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class Doubled:
    count: pydantic.PositiveInt
    twice: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.twice = 2 * self.count


class Strict(pydantic.BaseModel, strict=True):
    day: datetime.date


class Diary(msgspec.Struct):
    entry: Strict


@attrs.define
class Validated:
    count: int = attrs.field(validator=attrs.validators.gt(0))


@pytest.mark.parametrize(
    ("annotation", "good", "read", "bad"),
    [
        (Payment, '{"cents": "5"}', Payment(cents=5), '{"cents": -5}'),
        (Payment, '{"cents": 5}', Payment(cents=5), "{}"),
        (list[Payment], '[{"cents": 5}]', [Payment(cents=5)], '[{"cents": -5}]'),
        (dict[str, Payment], '{"a": {"cents": 5}}', {"a": Payment(cents=5)}, '{"a": {"cents": -5}}'),
        (Receipt, '{"payment": {"cents": 5}}', Receipt(Payment(cents=5)), '{"payment": {"cents": -5}}'),
        (Positive, '{"count": 5}', Positive(5), '{"count": -5}'),
        (Default, '{"count": 5}', Default(5), "{}"),
        (Doubled, '{"count": 5, "twice": 7}', Doubled(5), '{"count": -5}'),
        (Annotated[float, pydantic.Field(gt=0)], "5", 5.0, "-5"),
        (list[Annotated[int, pydantic.Field(gt=0)]], "[5]", [5], "[-5]"),
        (Card | Cash, '{"kind": "cash", "notes": 1}', Cash(notes=1), '{"kind": "cash"}'),
        (list[Card | Cash], '[{"kind": "cash", "notes": 1}]', [Cash(notes=1)], "[1]"),
        (
            Annotated[Card | Cash, pydantic.Field(discriminator="kind")],
            '{"kind": "cash", "notes": 1}', Cash(notes=1), '{"kind": "coins"}',
        ),
        (Strict, '{"day": "2026-11-28"}', Strict(day=datetime.date(2026, 11, 28)), '{"day": 5}'),
        (Diary, '{"entry": {"day": "2026-11-28"}}', Diary(Strict(day=datetime.date(2026, 11, 28))), '{"entry": {}}'),
        (Validated, '{"count": 5}', Validated(5), '{"count": -5}'),
        (Annotated[str, pydantic.Field(min_length=3)], "abc", "abc", "a"),
    ],
)  # fmt: skip
def test_the_rules_of_the_type_hold(annotation: Any, good: str, read: Any, bad: str) -> None:
    serde = serde_for(annotation)
    assert serde.deserialize("t", good.encode()) == read
    with pytest.raises(ValueError):
        serde.deserialize("t", bad.encode())


class PaymentInStruct(msgspec.Struct):
    payment: Payment


class ConstraintInStruct(msgspec.Struct):
    count: Annotated[int, pydantic.Field(gt=0)]


class DefaultInStruct(msgspec.Struct):
    count: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class BothLibraries:
    count: Annotated[int, msgspec.Meta(gt=0)]
    other: pydantic.PositiveInt


@attrs.define
class Converted:
    count: int = attrs.field(converter=int)


@attrs.define
class Computed:
    count: int = attrs.field(init=False)


@dataclasses.dataclass
class ComputedPlain:
    count: int = dataclasses.field(init=False)


@dataclasses.dataclass(init=False)
class OwnInit:
    count: int

    def __init__(self, count: int) -> None:
        self.count = abs(count)


class Point(NamedTuple):
    x: int


class OwnNew(Point):
    def __new__(cls, x: int) -> OwnNew:
        return super().__new__(cls, abs(x))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            PaymentInStruct,
            "pydantic's rule of PaymentInStruct.payment (Payment) does not run inside the msgspec.Struct",
        ),
        (ConstraintInStruct, "pydantic's rule of ConstraintInStruct.count does not run"),
        (DefaultInStruct, "pydantic's rule of DefaultInStruct.count does not run"),
        (BothLibraries, "BothLibraries.count has a constraint of msgspec.Meta"),
        (Converted, "the converter of Converted.count does not run"),
        (list[Converted], "the converter of Converted.count does not run"),
        (Computed, "Computed.count has init=False"),
        (ComputedPlain, "ComputedPlain.count has init=False"),
        (OwnInit, "OwnInit.__init__ does not run"),
        (OwnNew, "OwnNew.__new__ does not run"),
    ],
)
def test_a_rule_that_would_not_run_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        Json(kind)
    assert message in str(caught.value)


class Base(pydantic.BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


class Letter(pydantic.BaseModel):
    inner: Base | None = None
    items: list[Base] = []
    secret: pydantic.SecretStr | None = None
    number: float | None = None
    data: bytes = b""


def written(value: Any) -> bytes | None:
    return serde_of_values(type(value)).serialize("t", value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Letter(inner=Derived()), "inner.b would not be written"),
        (Letter(items=[Base(), Derived()]), "items[1].b would not be written"),
        (Letter(secret=pydantic.SecretStr("x")), "secret is a SecretStr"),
        (Letter(number=math.inf), "number is inf"),
        ({"letter": Letter(secret=pydantic.SecretStr("x"))}, "secret is a SecretStr"),
        (Letter(data=b"\xff"), "data has bytes that are not UTF-8"),
    ],
)
def test_a_pydantic_value_that_would_change_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        written(value)
    assert message in str(caught.value)


class Item(msgspec.Struct):
    a: int


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [{"a": 1}, Item(1), Base()])
def test_where_a_model_is_declared_other_objects_are_written_as_they_are(value: Any) -> None:
    assert Json(Base).serialize("t", value) == b'{"a":1}'
    assert Json(list[Base] | None).serialize("t", [{"a": 1}]) == b'[{"a":1}]'
    assert Json(list[Base]).serialize("t", (value,)) == b'[{"a":1}]'


class Short(pydantic.BaseModel):
    """Its own serializers leave fields out."""

    inner: Annotated[Derived, pydantic.PlainSerializer(lambda one: {"a": one.a})] = Derived()
    items: list[Base] = []
    number: float = math.nan

    @pydantic.field_serializer("number", when_used="json")
    def finite(self, number: float) -> float | None:
        return number if math.isfinite(number) else None


def test_the_serializers_of_a_model_decide_what_is_written() -> None:
    value = Short(items=[Base()])
    assert json.loads(written(value) or b"") == {"inner": {"a": 1}, "items": [{"a": 1}], "number": None}


class Marked(TypedDict):
    base: Base


@dataclasses.dataclass
class Counted:
    base: Base
    count: Annotated[int, msgspec.Meta(gt=0)] = 1
    note: str | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize(("kind", "value"), [(Counted, Counted(Base())), (Marked, Marked(base=Base()))])
def test_msgspec_reads_models_within_what_pydantic_cannot_read(kind: Any, value: Any) -> None:
    assert Json(kind).deserialize("t", Json(kind).serialize("t", value) or b"") == value
    with pytest.raises(ValueError):
        Json(kind).deserialize("t", b'{"base":{"a":"x"}}')


def test_constraints_of_msgspec_hold_beside_models() -> None:
    with pytest.raises(ValueError):
        Json(Counted).deserialize("t", b'{"base":{"a":1},"count":0}')


@pytest.mark.parametrize("value", [Payment(cents=5), Receipt(Payment(cents=5)), Derived(), Letter(inner=Base())])
def test_pydantic_writes_what_it_reads(value: Any) -> None:
    assert Json(type(value)).deserialize("t", written(value) or b"") == value


def test_a_declared_type_writes_the_aliases_of_what_a_list_holds() -> None:
    data = Json(list[Payment]).serialize("t", [Payment(cents=5)])
    assert json.loads(data or b"") == [{"cents": 5, "iso": "eur"}]


class Bounded(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(gt=0)]


class BoundedItems(msgspec.Struct):
    counts: list[pydantic.PositiveInt]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Payment, {"cents": 5, "iso": "usd"}, {"cents": -5, "iso": "usd"}),
        (Default, {"count": 5}, {"count": -5}),
        (Positive, {"count": 5}, {"count": -5}),
        (Bounded, {"count": 5}, {"count": -5}),
        (BoundedItems, {"counts": [5]}, {"counts": [-5]}),
    ],
)
def test_avro_checks_the_same_rules(kind: Any, good: Any, bad: Any) -> None:
    schema = schema_of(kind)
    write, read = Encoder(schema, dict).encode, Decoder(schema, schema, kind).decode
    assert type(read(write(good, b""), 0)) is kind
    with pytest.raises(ValueError):
        read(write(bad, b""), 0)
