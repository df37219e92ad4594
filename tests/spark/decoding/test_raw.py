"""Values that stay bytes, or become text; and settings that do not go together."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from eventbus.errors import ConfigError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import ValueSettings
from tests.spark.decoding.batches import source_batch

pytestmark = pytest.mark.system

COORDINATES = ["_topic", "_partition", "_offset", "_timestamp"]


class One(msgspec.Struct):
    n: int


def plan_of(table: pa.Schema | None = None, **settings: Any) -> Any:
    return open_values(ValueSettings("t", **settings), url="file:///nowhere").plan(table)


def test_bytes_stay_bytes_and_null_is_not_empty() -> None:
    plan = plan_of()
    decoded = pickle.loads(pickle.dumps(plan)).decoder().rows(source_batch([None, b"", b"\x00\xff"]))
    assert plan.columns.names == ["key", "value", *COORDINATES]
    assert decoded.rows.schema == plan.columns
    assert decoded.rows.column("value").to_pylist() == [None, b"", b"\x00\xff"]
    assert decoded.rejected is None


def test_text_that_is_none_is_refused() -> None:
    plan = plan_of(value="text", key="text", tombstones=True)
    values = ["ä".encode(), b"a\xff", None, b"x"]
    decoded = plan.decoder().rows(source_batch(values, keys=[b"1", b"2", b"3", b"\xe4"]))
    assert decoded.rows.schema == plan.columns
    rows = decoded.rows.to_pylist()
    assert [(row["key"], row["value"], row["_tombstone"]) for row in rows] == [("1", "ä", False), ("3", None, True)]
    assert decoded.rejected is not None
    assert [(row["_offset"], row["value"], row["error"]) for row in decoded.rejected.to_pylist()] == [
        (1, b"a\xff", "the value is no UTF-8: invalid start byte at its byte 1"),
        (3, b"x", "the key is no UTF-8: unexpected end of data at its byte 0"),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value": "json"}, "value='json' needs the columns"),
        ({"value": "bytes", "schema": One}, "schema= is of JSON values"),
        ({"value": "text", "schema": One}, "schema= is of JSON values"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(**settings)


def test_a_table_of_another_kind_of_values_is_refused() -> None:
    raw, fields = plan_of().columns, plan_of(schema=One).columns
    with pytest.raises(ConfigError, match="made of decoded values"):
        plan_of(fields)
    with pytest.raises(ConfigError, match="made with value='bytes' or 'text'"):
        plan_of(raw, schema=One)
    with pytest.raises(ConfigError, match="column value is binary: go on with what it was made with"):
        plan_of(raw, value="text")
    with pytest.raises(ConfigError, match="column key is string"):
        plan_of(plan_of(key="text", value="text").columns, key="bytes", value="text")
    assert plan_of(raw).columns == raw
    assert plan_of(raw.append(pa.field("month", pa.string()))).columns == raw
    assert plan_of(fields, schema=One).columns == fields
