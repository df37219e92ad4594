"""JSON, typed and plain; errors name the field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serdes import Json
from tests.support import examples

pytestmark = pytest.mark.system


class Order(msgspec.Struct):
    order_id: str
    amount: float


@dataclasses.dataclass
class Shipment:
    order_id: str
    amount: float


class Payment(TypedDict):
    order_id: str
    amount: float


class Refund(pydantic.BaseModel):
    order_id: str
    amount: float


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=examples(30, 300))
@given(plain)
def test_the_standard_library_reads_the_same(value: Any) -> None:
    data = Json().serialize("t", value)
    assert data is not None
    assert json.loads(data) == value
    assert Json().deserialize("t", data) == value
    assert Json().deserialize("t", json.dumps(value).encode()) == value


@pytest.mark.parametrize("model", [Order, Shipment, Payment, Refund])
def test_models_round_trip(model: Any) -> None:
    value = model(order_id="o-1", amount=1.5)
    data = Json(model).serialize("t", value)
    assert data is not None
    assert json.loads(data) == {"order_id": "o-1", "amount": 1.5}
    assert Json(model).deserialize("t", data) == value


@pytest.mark.parametrize("model", [Order, Shipment, Payment, Refund])
def test_a_wrong_field_is_named(model: Any) -> None:
    with pytest.raises(ValueError, match="amount"):
        Json(model).deserialize("t", b'{"order_id":"o-1","amount":"much"}')


def test_what_has_no_json_form() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        Json().serialize("t", object())
    with pytest.raises(msgspec.DecodeError):
        Json().deserialize("t", b"no json")
    with pytest.raises(TypeError):
        Json(lambda: None)


class Aliased(pydantic.BaseModel):
    order_id: str = pydantic.Field(alias="order-id")


def test_a_pydantic_model_is_written_by_the_names_that_it_is_read_by() -> None:
    data = Json(Aliased).serialize("orders", Aliased.model_validate({"order-id": "a"}))
    assert data == b'{"order-id":"a"}'
    assert Json(Aliased).deserialize("orders", data) == Aliased.model_validate({"order-id": "a"})
