"""Looking after a real table of files, without a JVM: how far it is, its quarantine again, few files of many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from eventbus.errors import ConfigError, CorruptRecord, LogLocked
from spark_sinks.shape import LEFT_IN_LOG
from spark_sinks.targets.choose import open_target
from spark_sinks.targets.parquet.target import ParquetTarget
from spark_sinks.targets.target import NewTable
from spark_sinks.upkeep.compact import compact
from spark_sinks.upkeep.replay import replay_quarantine
from spark_sinks.upkeep.status import status
from spark_sinks.upkeep.verify import verify

from .conftest import NOW_MS, GappyLog, land_here

pytestmark = pytest.mark.system


class Order(msgspec.Struct):
    id: int


class Loose(msgspec.Struct):
    id: int | str


class Wider(msgspec.Struct):
    id: int
    note: str | None = None


@pytest.fixture
def log(directory: Path) -> GappyLog:
    log = GappyLog(directory)
    log.send(b'{"id": 1}', b'{"id": "two"}', b"no JSON", b'{"id": 4}', key=b"k")
    return log


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse" / "orders")


def rows_of(to: str) -> list[dict[str, Any]]:
    found = [row for batch in open_target(to).read(["id", "_offset"]) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["_offset"])


# -- status ------------------------------------------------------------------------------------------------------------


def test_status_tells_how_far_a_table_is(log: GappyLog, to: str) -> None:
    land_here(log.path, to, upto=3, schema=Order)
    found = status(log.path, None, to)
    assert (found.rows, found.rejected, found.quarantined, found.sequence, found.epoch) == (1, 2, 2, 1, 1)
    assert (found.lag, found.files) == (1, 1)
    assert found.lag_seconds is not None and found.lag_seconds < 600
    [partition] = found.partitions
    assert (partition.landed, partition.log_end, partition.lag, partition.lost) == (3, 4, 1, 0)
    assert found.columns["id"] == "int64"
    land_here(log.path, to, schema=Order)
    found = status(log.path, "orders", to)
    assert (found.lag, found.lag_seconds, found.rows) == (0, 0.0, 2)


def test_status_tells_what_retention_took_before_it_was_landed(log: GappyLog, to: str) -> None:
    land_here(log.path, to, upto=1, schema=Order)
    log.delete_before(3)
    [partition] = status(log.path, None, to).partitions
    assert (partition.lag, partition.lost) == (3, 2)


def test_a_table_that_is_not_there(directory: Path, log: GappyLog, to: str) -> None:
    for ask in (lambda: status(log.path, None, to), lambda: verify(log.path, None, to), lambda: compact(to)):
        with pytest.raises(ConfigError, match=r"there is no table at .*orders: `eventbus spark land` makes it"):
            ask()
    assert not Path(to).exists()


# -- verify ------------------------------------------------------------------------------------------------------------


def test_a_table_of_files_is_verified_and_its_values_too(log: GappyLog, to: str) -> None:
    land_here(log.path, to, schema=Order)
    report = verify(log.path, "orders", to, values=True, schema=Order)
    assert report.ok, report.problems
    assert (report.records, report.rows, report.rejected) == (4, 2, 2)
    assert "2 rows have the values that the log has, in 6 columns" in report.checked
    assert verify(log.path, "orders", to, values=True, value="json").ok  # the table's own columns
    [file] = Path(to).rglob("part-*.parquet")
    file.unlink()
    assert [str(each.missing) for each in verify(log.path, None, to).partitions] == ["0, 3"]


def test_values_that_are_not_those_of_the_log(log: GappyLog, to: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    land_here(log.path, to, schema=Order)
    [file] = Path(to).rglob("part-*.parquet")
    table = pq.ParquetFile(file).read()
    pq.write_table(table.set_column(0, "id", pa.array([1, 5], pa.int64())), file)
    report = verify(log.path, None, to, values=True, schema=Order)
    assert [str(each.differing) for each in report.partitions] == ["3"]
    assert verify(log.path, None, to).ok


def test_a_torn_file_is_told_as_such(log: GappyLog, to: str) -> None:
    land_here(log.path, to, schema=Order)
    [file] = Path(to).rglob("part-*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CorruptRecord, match=r"orders cannot be read \(.*part-.*restore it from a copy"):
        verify(log.path, None, to)


def test_files_of_others_among_those_of_the_table_are_told(log: GappyLog, to: str) -> None:
    land_here(log.path, to, schema=Order)
    [file] = Path(to).rglob("part-*.parquet")
    (file.parent / "mine.parquet").write_bytes(file.read_bytes())
    (file.parent / "_SUCCESS").touch()
    [problem] = verify(log.path, None, to).problems
    assert "/mine.parquet in " in problem and "no landing wrote it" in problem
    land_here(log.path, to, schema=Order)  # it is told, and left alone
    assert (file.parent / "mine.parquet").exists()


# -- the quarantine ----------------------------------------------------------------------------------------------------


def test_what_can_be_decoded_now_moves_into_the_table(log: GappyLog, to: str) -> None:
    land_here(log.path, to, value="json", schema=Order)
    log.send(b'{"id": 5}')
    report = replay_quarantine(log.path, None, to, schema=Order)
    assert (report.waiting, report.landed, report.left, report.committed) == (2, 0, 2, False)
    assert status(log.path, None, to).epoch == 1  # nobody was fenced for nothing


def test_what_is_good_now_is_landed_once_and_the_rest_stays(directory: Path, to: str) -> None:
    log = GappyLog(directory)
    log.send(b'{"id": 1}', b'{"id": 300}', b"no JSON", b'{"id": 4, "note": "x"}')
    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]))
    assert status(log.path, None, to).quarantined == 2
    dry = replay_quarantine(log.path, None, to, schema=Wider, dry_run=True)
    assert (dry.waiting, dry.landed, dry.committed) == (2, 1, False)
    told: list[int] = []
    report = replay_quarantine(log.path, "orders", to, schema=Wider, progress=told.append)
    assert (report.waiting, report.landed, report.left, report.committed) == (2, 1, 1, True)
    [(reason, (count, where))] = report.reasons.items()
    assert "malformed" in reason
    assert (count, where) == (1, "orders-0 at offset 2")
    assert told[-1] == 2
    assert [(row["_offset"], row["id"]) for row in rows_of(to)] == [(0, 1), (1, 300), (3, 4)]
    assert verify(log.path, None, to).ok
    found = status(log.path, None, to)
    assert (found.rows, found.quarantined) == (3, 1)
    assert not replay_quarantine(log.path, None, to, schema=Wider).committed


@pytest.mark.parametrize("kind", ["", "delta:", "iceberg:"])
def test_a_column_that_a_replay_adds_has_a_type_that_the_table_has(directory: Path, tmp_path: Path, kind: str) -> None:
    """As a landing makes it: Spark and pandas cannot read int next to long in Parquet, and the others have no ns."""
    log, to = GappyLog(directory), f"{kind}{tmp_path}/t"
    log.send(b'{"id": 1, "at": "2024-02-29T12:00:00"}')
    land_here(log.path, to, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    assert status(log.path, None, to).quarantined == 1
    schema = pa.schema([("x", pa.int64()), ("id", pa.int32()), ("at", pa.timestamp("ns"))])
    assert replay_quarantine(log.path, "orders", to, schema=schema).landed == 1
    state = open_target(to).state()
    columns = None if state is None else state.columns()
    assert columns is not None
    assert columns.field("id").type == (pa.int64() if kind == "" else pa.int32())
    assert columns.field("at").type == pa.timestamp("ns" if kind == "" else "us")


def test_an_empty_quarantine_is_no_work(directory: Path, to: str) -> None:
    log = GappyLog(directory)
    log.send(b'{"id": 1}')
    land_here(log.path, to, schema=Order)
    report = replay_quarantine(log.path, None, to, schema=Order)
    assert (report.waiting, report.committed) == (0, False)


def test_a_table_that_is_being_landed_is_not_replayed(directory: Path, to: str) -> None:
    log = GappyLog(directory)
    log.send(b'{"id": 300}')
    import pyarrow as pa

    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]))
    target = open_target(to)
    target.open(NewTable("orders", ("dt",)), NOW_MS)
    try:
        with pytest.raises(LogLocked):
            replay_quarantine(log.path, None, to, schema=Order)
    finally:
        target.close()
    assert replay_quarantine(log.path, None, to, schema=Order).committed


# -- other kinds of tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta:{}/lake", "iceberg:{}/ice", "sqlite:///{}/shop.db#orders"])
def test_each_kind_of_table_is_looked_after(log: GappyLog, tmp_path: Path, kind: str) -> None:
    to = kind.format(tmp_path)
    land_here(log.path, to, upto=2, schema=Order)
    log.send(b'{"id": 5}')
    land_here(log.path, to, schema=Order)
    report = verify(log.path, "orders", to, values=True, schema=Order)
    assert report.ok, report.problems
    assert (report.rows, report.rejected) == (3, 2)
    found = status(log.path, None, to)
    assert (found.rows, found.quarantined, found.lag) == (3, 2, 0)
    assert (found.files is None) == kind.startswith("sqlite")
    replayed = replay_quarantine(log.path, None, to, schema=Order)
    assert (replayed.waiting, replayed.committed) == (2, False)


@pytest.mark.parametrize("kind", ["delta:{}/lake", "sqlite:///{}/shop.db#orders"])
@pytest.mark.parametrize("upsert", [("_key",), ("id",)])
def test_tables_of_the_newest_show_no_other(directory: Path, tmp_path: Path, kind: str, upsert: tuple[str]) -> None:
    to = kind.format(tmp_path)
    log = GappyLog(directory)
    for number in range(12):
        log.send(b'{"id": %d}' % (number % 3), key=b"k%d" % (number % 3))
    log.send(None, key=b"k1")
    land_here(log.path, to, upto=5, schema=Order, upsert=upsert)
    assert verify(log.path, None, to, schema=Order).ok
    land_here(log.path, to, schema=Order, upsert=upsert)
    report = verify(log.path, None, to, values=True, schema=Order)
    assert report.ok, report.problems
    assert (report.rows, report.records) == (2, 2)


def test_a_replayed_record_does_not_replace_a_newer_one(directory: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    log, to = GappyLog(directory), f"sqlite:///{tmp_path}/shop.db#orders"
    log.send(b'{"id": 300}', b'{"id": 1}', key=b"a")
    log.send(b'{"id": 300}', key=b"b")
    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]), upsert=("_key",))
    report = replay_quarantine(log.path, None, to, schema=Order)
    assert (report.waiting, report.left, report.committed) == (2, 0, True)
    assert sorted(row["_offset"] for row in rows_of(to)) == [1, 2]
    assert verify(log.path, None, to, schema=Order).ok


@pytest.mark.parametrize("kind", ["delta:{}/lake", "sqlite:///{}/shop.db#orders"])
@pytest.mark.parametrize("upsert", [("_key",), ("id",)])
def test_a_replayed_record_does_not_bring_back_what_was_deleted(
    directory: Path, tmp_path: Path, kind: str, upsert: tuple[str]
) -> None:
    import pyarrow as pa

    log, to = GappyLog(directory), kind.format(tmp_path)
    log.send(b'{"id": 300}', None, key=b"a")
    log.send(None, b'{"id": 301}', key=b"b")
    log.send(b'{"id": 1}', key=b"c")
    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]), upsert=upsert)
    report = replay_quarantine(log.path, None, to, schema=Order)
    assert (report.left, report.committed) == (0, True)
    assert [(row["_offset"], row["id"]) for row in rows_of(to)] == [(3, 301), (4, 1)]
    assert verify(log.path, None, to, schema=Order).ok


# -- compaction --------------------------------------------------------------------------------------------------------


def test_closed_days_are_made_one_file_and_nothing_is_lost(directory: Path, to: str) -> None:
    log = GappyLog(directory)
    for number in range(4):
        log.send(json.dumps({"id": number}).encode())
        land_here(log.path, to, schema=Order)
    assert status(log.path, None, to).files == 4
    today = compact(to)
    assert today.compacted.files_before == 0  # the records are of today
    done = compact(to, everything=True)
    assert (done.compacted.files_before, done.compacted.files_after) == (4, 1)
    report = verify(log.path, None, to, values=True, schema=Order)
    assert report.ok, report.problems
    assert [row["id"] for row in rows_of(to)] == [0, 1, 2, 3]
    log.send(b'{"id": 4}')
    land_here(log.path, to, schema=Order)
    assert verify(log.path, None, to).ok
    with pytest.raises(ConfigError, match="write 2 or more"):
        compact(to, min_files=1)


def test_a_record_whose_bytes_are_in_the_log_alone_stays_as_it_is(
    log: GappyLog, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its empty bytes would be a row of text, or another reason."""
    import pyarrow as pa

    read = ParquetTarget.read_quarantine

    def left(self: ParquetTarget) -> Any:
        for batch in read(self):
            reasons = [
                f"{reason.removesuffix(LEFT_IN_LOG)}{LEFT_IN_LOG}" for reason in batch.column("error").to_pylist()
            ]
            yield batch.set_column(batch.schema.get_field_index("error"), "error", pa.array(reasons))

    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]))
    log.send(b'{"id": 300}')
    land_here(log.path, to, schema=pa.schema([("id", pa.int8())]))
    monkeypatch.setattr(ParquetTarget, "read_quarantine", left)
    report = replay_quarantine(log.path, None, to, schema=Wider)
    assert (report.landed, report.committed) == (0, False)
    assert report.waiting == report.left > 0
    assert all(reason.endswith(LEFT_IN_LOG) for reason in report.reasons)
