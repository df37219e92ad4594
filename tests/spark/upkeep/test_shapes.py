"""`verify` of tables that are right, of every shape in every kind of table: it reports no problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from eventbus import EventBus
from serdes import Avro
from spark_sinks.upkeep.verify import verify

from .conftest import GappyLog, land_here

pytestmark = pytest.mark.system

VALUES = [
    {"id": 1, "text": "", "price": "0.00", "ratio": 1.5, "day": "2024-02-29", "at": "2024-02-29T12:00:00Z", "ok": True},
    {"id": 2, "text": "01234", "price": "-7.25", "ratio": -0.0, "day": "0999-01-01", "ok": False},
    {"id": 3, "text": "é" * 60, "price": "12.00"},
    {"id": 1, "text": "a/b=c %", "price": "12.00", "day": "2024-02-29"},
]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ok", pa.bool_()),
    ]
)
SHAPES: Mapping[str, dict[str, Any]] = {
    "by day": {},
    "by text": {"partition_by": ("text",)},
    "by decimal": {"partition_by": ("price",)},
    "by date and time": {"partition_by": ("day", "at")},
    "by boolean": {"partition_by": ("ok",)},
    "nothing landed": {"upto": 0},
    "upserted by key": {"upsert": ("_key",), "partition_by": ()},
    "upserted by column": {"upsert": ("id",), "partition_by": ("ok",)},
}
TARGETS = {"parquet": "table", "delta": "delta:table", "iceberg": "iceberg:table", "sqlite": "sqlite:///table.db#t"}
IMPOSSIBLE = {("by decimal", "delta")} | {
    (shape, target) for shape in SHAPES if "upserted" in shape for target in ("parquet", "iceberg")
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_table_that_is_right_is_good(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, target: str
) -> None:
    if (shape, target) in IMPOSSIBLE:
        pytest.skip("this kind of table has no such shape")
    monkeypatch.chdir(tmp_path)
    log = GappyLog(directory)
    for value in VALUES:
        log.send(msgspec.json.encode(value), key=b"k%d" % value["id"])
    log.send(b"no JSON", key=b"k9")
    log.send(None, key=b"k2")
    landed = land_here(str(directory), TARGETS[target], schema=SCHEMA, **SHAPES[shape])
    assert landed.rows or "upto" in SHAPES[shape]
    for values in (False, True):
        report = verify(str(directory), "orders", TARGETS[target], schema=SCHEMA, values=values)
        assert report.problems == []
        assert report.rejected == landed.rejected


@pytest.mark.parametrize("target", TARGETS)
def test_a_value_that_the_table_has_no_form_of_is_no_difference(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = {
        "type": "record",
        "name": "Ratio",
        "fields": [
            {"name": "ratio", "type": "double"},
            {"name": "ratios", "type": {"type": "array", "items": "double"}},
        ],
    }
    bus = EventBus(f"file://{directory}", serde=Avro("log", schema=schema))
    bus.topic("orders", partitions=1)
    with bus.blocking() as blocking:
        blocking.send("orders", {"ratio": float("nan"), "ratios": [1.5, float("nan")]})
        blocking.send("orders", {"ratio": -0.0, "ratios": [-0.0, float("inf"), float("-inf")]})
    assert land_here(str(directory), TARGETS[target], registry="log").rows == 2
    assert verify(str(directory), "orders", TARGETS[target], registry="log", values=True).problems == []
