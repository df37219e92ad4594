"""Bytes as Kafka Connect's converters make them, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from eventbus.connect.converters import Converter, make_converter
from eventbus.connect.settings import Properties
from eventbus.connect.values import DATE, DECIMAL, STRING, TIME, TIMESTAMP, Field, Schema, schema_of, unscaled
from eventbus.errors import SerializationError

pytestmark = pytest.mark.system

ROW = Schema(
    "struct",
    name="invoices",
    fields=(
        Field("id", Schema("int64")),
        Field("total", Schema("bytes", True, DECIMAL, scale=2)),
        Field("day", Schema("int32", True, DATE)),
        Field("at", Schema("int64", False, TIMESTAMP)),
        Field("noon", Schema("int32", False, TIME)),
        Field("tags", Schema("array", True, items=STRING)),
    ),
)
VALUE = {
    "id": 1, "total": Decimal("-1.28"), "day": date(1970, 1, 11), "at": datetime(1970, 1, 1, 0, 0, 1, 5_999),
    "noon": time(12, 0, 0, 7_000), "tags": ["a"],
}  # fmt: skip


def converter(which: str = "value.converter", **settings: Any) -> Converter:
    named = {which + (f".{key}" if key != "kind" else ""): value for key, value in settings.items()}
    return make_converter(Properties.of({}), Properties.of(named), which, [])


def json_converter(schemas: bool, **more: Any) -> Converter:
    return converter(kind="org.apache.kafka.connect.json.JsonConverter", **{"schemas.enable": schemas}, **more)


def test_json_with_schemas_is_what_connect_writes() -> None:
    data = json_converter(True).to_bytes("t", ROW, VALUE)
    assert msgspec.json.decode(data or b"") == {
        "schema": {
            "type": "struct",
            "fields": [
                {"type": "int64", "optional": False, "field": "id"},
                {"type": "bytes", "optional": True, "name": DECIMAL, "version": 1, "parameters": {"scale": "2"},
                 "field": "total"},
                {"type": "int32", "optional": True, "name": DATE, "version": 1, "field": "day"},
                {"type": "int64", "optional": False, "name": TIMESTAMP, "version": 1, "field": "at"},
                {"type": "int32", "optional": False, "name": TIME, "version": 1, "field": "noon"},
                {"type": "array", "items": {"type": "string", "optional": False}, "optional": True, "field": "tags"},
            ],
            "optional": False,
            "name": "invoices",
        },
        "payload": {"id": 1, "total": "gA==", "day": 10, "at": 1_005, "noon": 43_200_007, "tags": ["a"]},
    }  # fmt: skip


def test_a_line_of_a_file_in_json() -> None:
    data = json_converter(True).to_bytes("t", STRING, "hello")
    assert data == b'{"schema":{"type":"string","optional":false},"payload":"hello"}'
    assert json_converter(False).to_bytes("t", STRING, "hello") == b'"hello"'


def test_json_without_schemas_is_for_people() -> None:
    assert converter().to_bytes("t", ROW, VALUE) == (
        b'{"id":1,"total":-1.28,"day":"1970-01-11","at":"1970-01-01T00:00:01.005999","noon":"12:00:00.007000","tags":["a"]}'
    )
    assert converter().to_bytes("t", None, None) is None


def test_decimals_as_numbers_beside_schemas() -> None:
    data = json_converter(True, **{"decimal.format": "NUMERIC"}).to_bytes("t", ROW, VALUE) or b""
    assert b'"total":-1.28' in data


@pytest.mark.parametrize(
    ("number", "data"),
    [
        ("0.00", b"\0"),
        ("1.27", b"\x7f"),
        ("1.28", b"\0\x80"),
        ("-1.28", b"\x80"),
        ("-1.29", b"\xff\x7f"),
        ("2.5", b"\0\xfa"),
    ],
)
def test_decimals_are_numbers_in_twos_complement(number: str, data: bytes) -> None:
    assert unscaled(Decimal(number), 2) == data
    assert int.from_bytes(data, "big", signed=True) == Decimal(number) * 100


def test_a_decimal_is_not_rounded() -> None:
    with pytest.raises(SerializationError, match="more than 2 digit"):
        json_converter(True).to_bytes("t", ROW, {**VALUE, "total": Decimal("1.005")})


@pytest.mark.parametrize("schemas", [True, False])
def test_json_is_read_again(schemas: bool) -> None:
    one = json_converter(schemas)
    data = one.to_bytes("t", None, {"a": [1, None], "b": "x"})
    assert one.from_bytes("t", data).value == {"a": [1, None], "b": "x"}
    assert one.from_bytes("t", None).value is None
    with pytest.raises(SerializationError, match="no JSON"):
        one.from_bytes("t", b"{")


@pytest.mark.parametrize("data", [b"\xff", b'"\xff"', b"[" * 5_000 + b"]" * 5_000])
@pytest.mark.parametrize("kind", ["json.JsonConverter", "storage.StringConverter"])
def test_a_record_that_cannot_be_read_is_its_own_fault(kind: str, data: bytes) -> None:
    """Any other error would end the sink, past errors.tolerance and its dead letters."""
    with suppress(SerializationError):
        converter(kind=f"org.apache.kafka.connect.{kind}").from_bytes("t", data)


def test_json_without_an_envelope_is_refused_where_one_is_due() -> None:
    with pytest.raises(SerializationError, match=r"schemas\.enable=false"):
        json_converter(True).from_bytes("t", b'{"a":1}')


@pytest.mark.parametrize(
    ("value", "data"),
    [("gr\udcfcn", b"gr\xfcn"), (b"\xff", b"\xff"), (5, b"5"), (True, b"true"), ({"a": 1}, b'{"a":1}'), (None, None)],
)
def test_text(value: Any, data: bytes | None) -> None:
    one = converter(kind="org.apache.kafka.connect.storage.StringConverter")
    assert one.to_bytes("t", None, value) == data


@pytest.mark.parametrize(("value", "data"), [("x", b"x"), (b"\xff", b"\xff"), (bytearray(b"a"), b"a"), (None, None)])
def test_bytes(value: Any, data: bytes | None) -> None:
    one = converter(kind="ByteArrayConverter")
    assert one.to_bytes("t", None, value) == data
    assert one.from_bytes("t", data).value == data
    with pytest.raises(SerializationError, match="takes bytes or text, not dict"):
        one.to_bytes("t", None, {})


@pytest.mark.parametrize("make", [lambda: {"a": object()}, lambda: "\udcfc", lambda: {1, 2}])
def test_what_has_no_json_is_refused(make: Callable[[], Any]) -> None:
    for schemas in (True, False):
        if schemas or not isinstance(make(), set):
            with pytest.raises(SerializationError):
                json_converter(schemas).to_bytes("t", None, make())


def test_schemas_of_values_without_one() -> None:
    assert schema_of({"a": 1, "b": [True], "c": datetime.now(UTC)}) == Schema(
        "struct", True, fields=(
            Field("a", Schema("int64", True)),
            Field("b", Schema("array", True, items=Schema("boolean", True))),
            Field("c", Schema("int64", True, TIMESTAMP)),
        ),
    )  # fmt: skip


def test_the_connectors_converter_goes_before_the_workers() -> None:
    worker = Properties.of({"value.converter": "JsonConverter", "value.converter.schemas.enable": "true"})
    assert make_converter(worker, Properties.of({}), "value.converter", []).to_bytes("t", STRING, "a") == (
        b'{"schema":{"type":"string","optional":false},"payload":"a"}'
    )
    own = Properties.of({"value.converter": "StringConverter"})
    assert make_converter(worker, own, "value.converter", []).to_bytes("t", STRING, "a") == b"a"
