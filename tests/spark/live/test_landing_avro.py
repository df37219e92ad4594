"""Avro from a log with a registry of its own: every type, two versions in turn, damage, into every kind of table."""

from __future__ import annotations

import datetime as dt
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus import EventBus
from eventbus.errors import SerializationError
from eventbus.types import Record
from schema_registry import Registry
from schema_registry.entities import SchemaRequest
from serdes.avro.codec.varint import long_bytes
from spark_sinks import land
from spark_sinks.targets.choose import open_target
from tests.spark.conftest import TestLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

DAY_MS = 86_400_000
WHEN = dt.datetime(2024, 2, 29, 23, 59, 59, 500_000, dt.UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


FIELDS: list[tuple[str, Any, bytes, Any]] = [
    ("a", "int", long_bytes(-5), -5),
    ("b", ["null", "string"], b"\2" + sized("ä".encode()), "ä"),
    ("day", logical("int", "date"), long_bytes(1), dt.date(1970, 1, 2)),
    ("moment", logical("long", "timestamp-millis"), long_bytes(WHEN_MS), WHEN),
    ("fine", logical("long", "timestamp-nanos"), long_bytes(WHEN_MS * 1_000_000), WHEN),
    ("time", logical("int", "time-millis"), long_bytes(DAY_MS - 1), dt.time(23, 59, 59, 999_000)),
    ("price", logical("bytes", "decimal", precision=9, scale=2), sized(b"\x00\xfe"), "2.54"),
    ("ratio", "double", struct.pack("<d", 1.5), 1.5),
    ("yes", "boolean", b"\1", True),
    ("raw", {"type": "fixed", "name": "F", "size": 2}, b"\xff\0", b"\xff\0"),
    ("kind", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b"\2", "Y"),
    ("many", {"type": "array", "items": "string"}, b"\4" + sized(b"p") + sized(b"q") + b"\0", ["p", "q"]),
    ("inner", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "long"}]}, b"\6", {"x": 3}),
    ("_offset", "int", b"\2", 1),
]
NAMES = [name if name != "_offset" else "_offset__value" for name, *_ in FIELDS]


def schema(*more: dict[str, Any]) -> SchemaRequest:
    members = [{"name": name, "type": kind} for name, kind, _, _ in FIELDS]
    return SchemaRequest(schema=json.dumps({"type": "record", "name": "R", "fields": [*members, *more]}))


async def register(log: TestLog, *requests: SchemaRequest) -> list[int]:
    async with EventBus(f"file://{log.path}") as bus, Registry(bus) as registry:
        return [(await registry.register("t-value", request)).id for request in requests]


def framed(schema_id: int, tail: bytes = b"") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"".join(data for _, _, data, _ in FIELDS) + tail


def plain(cell: Any) -> Any:
    """A cell as every kind of table gives it back."""
    match cell:
        case dt.time():
            return cell.isoformat(timespec="microseconds")
        case int() if cell == (DAY_MS - 1) * 1000:
            return "23:59:59.999000"  # microseconds, where there are no times
        case dt.datetime():
            return cell.replace(tzinfo=None).isoformat(timespec="microseconds")
        case str() if cell.startswith(("[", "{")):
            return json.loads(cell)
        case _:
            return str(cell) if type(cell).__name__ == "Decimal" else cell


LONG_TIER = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("delta", "iceberg", "sqlite")]


@pytest.mark.parametrize("kind", ["parquet", "transform", *LONG_TIER])
async def test_every_type_and_two_versions_in_turn(
    kind: str, log: TestLog, tmp_path: Path, spark: SparkSession
) -> None:
    to = {"delta": f"delta:{tmp_path}/t", "iceberg": f"iceberg:{tmp_path}/t", "sqlite": f"sqlite:///{tmp_path}/t.db#t"}
    where = to.get(kind, str(tmp_path / "table"))
    first, second = await register(log, schema(), schema({"name": "new", "type": ["null", "int"], "default": None}))
    values = [framed(first), framed(second, b"\2\x0e"), None, framed(first)[:-1], framed(999), framed(second, b"\0")]
    log.write("t", [Record(b"k%d" % n, value, (), WHEN_MS) for n, value in enumerate(values)])
    transform = (lambda frame: frame) if kind == "transform" else None
    report = land(f"file://{log.path}", "t", where, quarantine_limit=0.5, transform=transform, spark=spark)
    assert (report.rows, report.rejected) == (4, 2)
    rows = [row for batch in open_target(where).read([*NAMES, "new", "_offset"]) for row in batch.to_pylist()]
    rows.sort(key=lambda row: row["_offset"])
    assert [(row["_offset"], row["new"]) for row in rows] == [(0, None), (1, 7), (2, None), (5, None)]
    full = [plain(cell) for _, _, _, cell in FIELDS]
    for row in rows:
        assert [plain(row[name]) for name in NAMES] == (full if row["_offset"] != 2 else [None] * len(NAMES))


async def test_a_version_that_comes_later_widens_the_table_and_one_that_does_not_fit_stops_the_landing(
    log: TestLog, tmp_path: Path, spark: SparkSession
) -> None:
    def versioned(kind: str) -> SchemaRequest:
        return SchemaRequest(
            schema=json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})
        )

    def write(schema_id: int, data: bytes) -> None:
        log.write("t", [Record(b"k", b"\0" + schema_id.to_bytes(4, "big") + data, (), WHEN_MS)])

    url, table = f"file://{log.path}", str(tmp_path / "table")
    (first,) = await register(log, versioned("int"))
    write(first, b"\2")
    land(url, "t", table, spark=spark)
    (second,) = await register(log, versioned("long"))
    write(second, long_bytes(1 << 40))
    write(first, b"\4")
    assert land(url, "t", table, spark=spark).rows == 2
    for merges in (True, False):
        found = spark.read.option("mergeSchema", merges).parquet(table).select("n").collect()
        assert sorted(row.n for row in found) == [1, 2, 1 << 40]
    async with EventBus(url) as bus, Registry(bus) as registry:
        from schema_registry.entities import ConfigUpdate

        await registry.update_config("t-value", ConfigUpdate(compatibility="NONE"))
    (third,) = await register(log, versioned("string"))
    write(third, sized(b"x"))
    with pytest.raises(SerializationError, match="field n: the column n is int64, and the schema says string"):
        land(url, "t", table, spark=spark)
    assert land(url, "t", table, spark=spark, on_incompatible="new_column").rows == 1
    rows = [row for batch in open_target(table).read(["_offset", "n", "n__string"]) for row in batch.to_pylist()]
    assert sorted((row["_offset"], row["n"], row["n__string"]) for row in rows) == [
        (0, 1, None), (1, 1 << 40, None), (2, 2, None), (3, None, "x"),
    ]  # fmt: skip
