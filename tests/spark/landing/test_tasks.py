"""What Spark's tasks do with records: rows and rejected ones to staged files, each once. No JVM."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from eventbus.errors import ConfigError, OffsetOutOfRange, SerializationError
from eventbus.types import TopicPartition
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.unite import Columns
from spark_sinks.decoding.values import Decoded, RowDecoder, ValueSettings
from spark_sinks.partitions import NULL_DIRECTORY, directory_name
from spark_sinks.refusals import unfit_records, without_unfit
from spark_sinks.shape import TOMBSTONE, quarantine_schema
from spark_sinks.source.offsets import OffsetRange
from spark_sinks.stage import Layout, StageWriter, joined, split_by_directory
from spark_sinks.targets.choose import open_target
from spark_sinks.targets.sql.limits import SqlLimits
from spark_sinks.targets.sql.postgresql import PostgresDialect
from spark_sinks.tasks import (
    FIT,
    REJECTED,
    ROWS,
    UNFIT,
    UNKNOWN,
    Decoding,
    FusedTask,
    Report,
    WriteTask,
    above,
    first_refusal,
)
from tests.spark.decoding.batches import source_batch
from tests.spark.upkeep.conftest import GappyLog

pytestmark = pytest.mark.system

DAY = dt.datetime(2024, 2, 29, 23, 59, 59, 999000, tzinfo=dt.UTC)


class Stop(msgspec.Struct):
    name: str
    minutes: int | None = None


def decoding(landed: dict[int, int] | None = None, upsert: tuple[str, ...] = (), schema: Any = Stop) -> Decoding:
    settings = ValueSettings("t", schema=schema, tombstones=bool(upsert))
    return Decoding(open_values(settings, url="unused").plan(None), landed or {}, upsert)


def reports_of(task: WriteTask, batches: Sequence[pa.RecordBatch]) -> list[Report]:
    return [Report(*row.values()) for answer in task(iter(batches)) for row in answer.to_pylist()]


def rows_in(report: Report) -> list[dict[str, Any]]:
    return pq.read_table(pa.BufferReader(Path(report.path).read_bytes())).to_pylist()


def why_of(rejected: pa.RecordBatch, offset: int) -> str:
    return next(row["error"] for row in rejected.to_pylist() if row["_offset"] == offset)


def stops(first: int, count: int) -> list[bytes | None]:
    return [b'{"name": "%d", "minutes": %d}' % (n, n % 2) for n in range(first, first + count)]


def test_records_that_are_landed_are_dropped() -> None:
    batch = source_batch([b"a", b"b", b"c", b"d"], partition=3, first=10)
    assert above(batch, {3: 12, 0: 99}).column("offset").to_pylist() == [12, 13]
    assert above(batch, {5: 99}).num_rows == 4
    assert above(batch, {3: 10}) is batch
    assert above(batch, {3: 14}).num_rows == 0
    assert above(batch, {}) is batch


def test_rows_are_split_by_directory_in_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"m": pa.array([2, 1, None, 2], pa.int64()), "o": ["a/b", "x", "x", "a/b"], "v": [1, 2, 3, 4]}
    )
    parts = {directory: rows.to_pydict() for directory, rows in split_by_directory(batch, Layout(("m", "o")))}
    assert parts == {
        "m=2/o=a%2Fb": {"v": [1, 4]},
        "m=1/o=x": {"v": [2]},
        f"m={NULL_DIRECTORY}/o=x": {"v": [3]},
    }
    assert split_by_directory(batch.slice(0, 0), Layout(("m",))) == []
    assert split_by_directory(batch, Layout()) == [("", batch)]


@pytest.mark.parametrize(
    ("when", "directory"),
    [(DAY, "dt=2024-02-29"), (dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC), "dt=1969-12-31")],
)
def test_default_directory_is_the_day_in_utc(when: dt.datetime, directory: str) -> None:
    rows = decoding(schema=None)(source_batch([b"x"], day=when)).rows
    assert [name for name, _ in split_by_directory(rows, Layout(("dt",)))] == [directory]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("ms", "America/New_York"), dt.datetime(2024, 3, 1, 0, 30, tzinfo=dt.UTC)),
        (pa.timestamp("us"), dt.datetime(2024, 3, 1, 23, 30)),
        (pa.date32(), dt.date(2024, 3, 1)),
    ],
)
def test_the_day_may_be_that_of_another_column(kind: pa.DataType, value: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"at": pa.array([value, None], kind), "_timestamp": [DAY, DAY]})
    parts = split_by_directory(batch, Layout(("dt",), date_of="at"))
    assert [name for name, _ in parts] == ["dt=2024-03-01", f"dt={NULL_DIRECTORY}"]


def test_a_time_beyond_the_year_9999_is_null_and_has_no_day() -> None:
    """Microseconds that were sent as milliseconds: no table but Parquet's holds them, and no directory is called so."""
    micros = pa.array([1_709_251_199_000_000_000, 253_402_300_799_999_999, None], pa.int64())
    batch = source_batch([b"x", b"y", b"z"])
    batch = batch.set_column(5, "timestamp", micros.cast(pa.timestamp("us", "UTC")))
    rows = decoding(schema=None)(batch).rows
    assert rows.column("_timestamp").is_valid().to_pylist() == [False, True, False]
    parts = {name: part.column("_offset").to_pylist() for name, part in split_by_directory(rows, Layout(("dt",)))}
    assert parts == {"dt=9999-12-31": [1], f"dt={NULL_DIRECTORY}": [0, 2]}
    payload = pa.RecordBatch.from_pydict({"at": micros.cast(pa.timestamp("us"))})
    assert {name for name, _ in split_by_directory(payload, Layout(("dt",), "at"))} == set(parts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NULL_DIRECTORY),
        ("", ""),
        (NULL_DIRECTORY, "%5F_HIVE_DEFAULT_PARTITION__"),
        (True, "true"),
        (3, "3"),
        (Decimal("0E-10"), "0.0000000000"),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), "0001-01-01T00%3A00%3A00.000000Z"),
        ("a=b", "a%3Db"),
        ("é x\x01", "é x%01"),
    ],
)
def test_each_value_has_a_directory_of_its_own(value: Any, text: str) -> None:
    assert directory_name("p", value) == f"p={text}"


def test_a_directory_that_would_have_too_long_a_name_is_hashed() -> None:
    names = {directory_name("p", f"{'é' * 130}{end}") for end in "ab"}
    assert len(names) == 2
    assert max(len(name) for name in names) <= 255


@pytest.mark.parametrize(
    ("value", "why", "fits_files"),
    [
        ("", "its 'p' is '', which readers of partition directories take for null", True),
        (NULL_DIRECTORY, "readers of partition directories take for null", True),
        ("é" * 60, "its 'p' makes a directory name of 362 bytes, and at most 255 are possible", True),
        (dt.date(9999, 12, 31), "its 'p' is outside of the years 1 to 9999", False),
        (dt.datetime(9999, 12, 31, 23, 59, tzinfo=dt.UTC), "its 'p' is outside of the years 1 to 9999", False),
    ],
)
def test_a_record_that_no_partition_can_hold_is_rejected(value: Any, why: str, fits_files: bool) -> None:
    values = pa.array([None, value, value])
    if not isinstance(value, str):  # Python has no such date
        number = values.cast(pa.int32() if values.type == pa.date32() else pa.int64())
        more = pa.scalar(1 if values.type == pa.date32() else 86_400_000_000, number.type)
        values = pc.add(number, more).cast(values.type)
    source = source_batch([b"1", b"2", b"3"])
    decoded = decoding(schema=None)(source)
    rows = decoded.rows.append_column("p", values)
    for in_files in (False, True):
        layout = Layout(("p",), in_files=in_files)
        fit, rejected, _ = without_unfit(Decoded(rows), source, (), layout)
        if in_files and fits_files:
            assert rejected is None
            continue
        assert rejected is not None
        assert fit.column("_offset").to_pylist() == [0]
        assert [(row["_offset"], row["value"]) for row in rejected.to_pylist()] == [(1, b"2"), (2, b"3")]
        assert why in rejected.column("error")[0].as_py()
        assert unfit_records(rows, (), layout) == {(0, offset): why_of(rejected, offset) for offset in (1, 2)}
        with pytest.raises(SerializationError, match=r"A row cannot be landed: its 'p'.* Keep _partition and _offset"):
            unfit_records(rows.select(["p"]), (), layout)


def test_a_record_that_the_table_cannot_hold_is_rejected_by_the_task(tmp_path: Path) -> None:
    layout = Layout(limits=SqlLimits(PostgresDialect, ()))
    decode = Decoding(open_values(ValueSettings("t", schema=Stop), url="unused").plan(None), {}, (), layout)
    write = pickle.loads(pickle.dumps(WriteTask(str(tmp_path), layout, decode)))
    rows, rejected = reports_of(write, [source_batch([b'{"name": "a"}', b'{"name": "a\\u0000b"}'])])
    assert (rows.kind, rows.rows) == (ROWS, 1)
    assert (rejected.kind, rejected.offset) == (REJECTED, 1)
    assert rejected.reason == "its 'name' is a text with the character U+0000, which PostgreSQL cannot hold"


def test_a_row_of_a_transform_that_cannot_be_landed_is_reported_instead_of_files(tmp_path: Path) -> None:
    """A text that is not UTF-8 would be refused by the driver's commit, or by each reader."""
    texts = pa.array([b"a", b"\xff", b"c", b"d"]).cast(pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_pydict(
        {"note": texts, "id": [1, 2, None, 4], "_key": [b"k"] * 4, "_partition": [0, 0, 0, 1], "_offset": [0, 1, 2, 0]}
    )
    task = pickle.loads(pickle.dumps(WriteTask(str(tmp_path), Layout(), None, upsert=("id",))))
    reports = reports_of(task, [rows.slice(0, 1), rows.slice(1), rows.slice(0, 1)])
    assert [(each.kind, each.partition, each.offset, each.reason) for each in reports] == [
        (UNFIT, 0, 1, "its 'note' is a text that is not UTF-8"),
        (UNFIT, 0, 2, "the table is upserted by id, and the record has none"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_a_transform_made_unfit_is_rejected_when_the_batch_is_done_again() -> None:
    values = open_values(ValueSettings("t", schema=Stop), url="unused").plan(None)
    decode = pickle.loads(pickle.dumps(Decoding(values, {}, refused={(0, 1): "no", (1, 0): "other"})))
    rows, rejected, _ = decode(source_batch(stops(0, 3)))
    assert rows.column("_offset").to_pylist() == [0, 2]
    assert [(row["_offset"], row["error"]) for row in rejected.to_pylist()] == [(1, "no")]


def test_staged_files_hold_each_row_once_and_have_no_parquet_name(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), Layout(("minutes",)), decoding({0: 2}))
    reports = reports_of(task, [source_batch(stops(low, 5), first=low) for low in (0, 5)])
    assert [(each.kind, each.directory, each.rows) for each in reports] == [
        (ROWS, "minutes=0", 4),
        (ROWS, "minutes=1", 4),
    ]
    rows = [row for each in reports for row in rows_in(each)]
    assert sorted(row["_offset"] for row in rows) == list(range(2, 10))
    assert sorted(row["name"] for row in rows) == [str(n) for n in range(2, 10)]
    assert "minutes" not in rows[0]
    assert {path.suffix for path in tmp_path.iterdir()} == {".staged"}
    assert [each.size_bytes for each in reports] == [Path(each.path).stat().st_size for each in reports]
    assert [each.path for each in reports] == [str(path) for path in sorted(tmp_path.iterdir())]


def test_what_does_not_fit_is_rejected_and_the_rest_is_landed(tmp_path: Path) -> None:
    good, bad = b'{"name": "x"}', b'{"name": 0}'
    batches = [source_batch([good]), source_batch([good, bad, bad], first=1), source_batch([bad], first=4)]
    rows, rejected = reports_of(WriteTask(str(tmp_path), Layout(), decoding()), batches)
    assert (rows.kind, rows.rows, [row["_offset"] for row in rows_in(rows)]) == (ROWS, 2, [0, 1])
    assert (rejected.kind, rejected.rows, rejected.partition, rejected.offset) == (REJECTED, 3, 0, 2)
    assert [(row["_offset"], row["key"], row["value"]) for row in rows_in(rejected)] == [
        (offset, b"k", bad) for offset in (2, 3, 4)
    ]
    assert first_refusal([rejected], "t").startswith("3 records do not fit, the first in t-0 at offset 2: Expected")


def test_rejected_records_alone_for_the_second_pass(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), Layout(), decoding(), keep_rows=False)
    rejected, fit = reports_of(task, [source_batch([b'{"name": "x"}', b"{"])])
    assert (rejected.kind, rejected.rows, rejected.offset) == (REJECTED, 1, 1)
    assert (fit.kind, fit.rows) == (FIT, 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_task_without_rows_reports_nothing(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), Layout(("dt",)), decoding({0: 5}, schema=None))
    assert reports_of(task, [source_batch([b"x"])]) == []
    assert list(tmp_path.iterdir()) == []


class TwoSchemas:
    """A plan that knows no schema whose id is a value; and tells it."""

    columns = pa.schema([("_offset", pa.int64())])

    def decoder(self) -> RowDecoder:
        return self

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        ids = {int(value) for value in batch.column("value").to_pylist()}
        return Decoded(pa.RecordBatch.from_arrays([batch.column("offset")], names=["_offset"]), None, frozenset(ids))


def test_a_schema_nobody_knew_of_is_told_instead_of_files(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), Layout(), Decoding(TwoSchemas(), {}))
    reports = reports_of(task, [source_batch([b"7", b"9"]), source_batch([b"9"], first=2)])
    assert reports == [Report(UNKNOWN, rows=7), Report(UNKNOWN, rows=9)]
    assert list(tmp_path.iterdir()) == []


def test_rows_without_the_key_of_an_upserted_table_are_rejected() -> None:
    values = [b'{"name": "a", "minutes": 1}', b'{"name": "b"}', None, None, b"{"]
    batch = source_batch(values, keys=[b"a", b"b", b"a", None, b"c"], first=10)
    rows, rejected, _ = decoding(upsert=("minutes",))(batch)
    assert [(row["_offset"], row[TOMBSTONE]) for row in rows.to_pylist()] == [(10, False), (12, True)]
    assert rejected is not None and rejected.schema == quarantine_schema()
    told = {row["_offset"]: (row["key"], row["value"], row["error"]) for row in rejected.to_pylist()}
    reason = "the table is upserted by minutes, and the record has none"
    assert told.pop(14)[:2] == (b"c", b"{")
    assert told == {11: (b"b", b'{"name": "b"}', reason), 13: (None, None, reason)}


def test_tasks_travel_and_decode_there(tmp_path: Path) -> None:
    first = decoding()
    first(source_batch(stops(0, 1)))
    again = pickle.loads(pickle.dumps(WriteTask(str(tmp_path), Layout(), first)))
    (report,) = reports_of(again, [source_batch(stops(0, 3))])
    assert report.rows == 3


def test_too_many_directories_are_a_clear_error(tmp_path: Path) -> None:
    writer = StageWriter(str(tmp_path), Layout(("n",)))
    with pytest.raises(ConfigError, match=r"partition_by=\['n'\] makes more than 4000 directories"):
        writer.write(pa.RecordBatch.from_pydict({"n": list(range(4001)), "v": list(range(4001))}))


@pytest.mark.parametrize("skip_lost", [True, False])
def test_what_retention_takes_while_a_task_reads(tmp_path: Path, skip_lost: bool) -> None:
    (tmp_path / "data").mkdir()
    log = GappyLog(tmp_path / "data")
    log.send(*stops(0, 8))
    log.delete_before(3)
    write = WriteTask(str(tmp_path), Layout(), decoding())
    task = FusedTask(log.path, [OffsetRange(TopicPartition("orders", 0), 0, 8)], write, skip_lost=skip_lost)
    numbers = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    if skip_lost:
        [report] = [Report(*row.values()) for answer in task(numbers) for row in answer.to_pylist()]
        assert [row["_offset"] for row in rows_in(report)] == [3, 4, 5, 6, 7]
    else:
        with pytest.raises(OffsetOutOfRange):
            list(task(numbers))


def test_small_files_of_one_directory_are_joined(tmp_path: Path) -> None:
    """A backfill of a year by four tasks makes 366 files, not 1,464."""
    task = WriteTask(str(tmp_path), Layout(("minutes",)), decoding())
    values: list[bytes | None] = [b'{"name": "%d", "minutes": %d}' % (n, n % 40) for n in range(80)]
    files = [each.file() for _ in range(2) for each in reports_of(task, [source_batch(values)])]
    found = joined(files, "zstd")
    assert (len(files), len(found)) == (80, 40)
    assert {each.rows for each in found} == {4}
    assert sorted(row["name"] for each in found for row in rows_in(each)) == sorted(str(n) for n in [*range(80)] * 2)
    assert joined(files[:64], "zstd") == files[:64]


@pytest.mark.parametrize(
    ("to", "lacks"),
    [
        ("./w", {"narrow"}),
        ("file:///w", {"narrow"}),
        ("s3://b/w", {"narrow"}),
        ("delta:s3://b/w", {"time", "nanos"}),
        ("delta:./w", {"time", "nanos"}),
        ("iceberg:./w", {"nanos"}),
        ("sqlite:///x.db", {"nanos"}),
        ("postgresql+psycopg://h/x", {"nanos"}),
        ("console:", set()),
    ],
)
def test_numbers_in_parquet_are_wide_from_the_start(to: str, lacks: set[str]) -> None:
    target = open_target(to)
    assert target.lacks == lacks
    columns = Columns((), target.lacks)
    columns.add([("n", pa.int32()), ("x", pa.list_(pa.float32()))], new_column=False)
    wide = [pa.int64(), pa.list_(pa.field("item", pa.float64()))] if "narrow" in lacks else None
    assert [field.type for field in columns.fields()] == (wide or [pa.int32(), pa.list_(pa.float32())])
