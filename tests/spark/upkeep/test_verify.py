"""`verify` against logs with every kind of gap, and tables with every kind of fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventbus.errors import ConfigError
from spark_sinks.upkeep.report import VerifyReport
from spark_sinks.upkeep.topic_contents import ABORTED, MARKER, NOTHING, RECORD, LogContents
from spark_sinks.upkeep.verify import verify

from .conftest import GappyLog, Table

pytestmark = pytest.mark.system


def account(*offsets: int, **more: Any) -> dict[str, Any]:
    """That of a table landed from the beginning to these offsets."""
    return {"started": dict.fromkeys(range(len(offsets)), 0), "offsets": dict(enumerate(offsets)), **more}


@pytest.fixture
def check(show: Any, directory: Path) -> Any:
    def run(table: Table, **options: Any) -> VerifyReport:
        show(table)
        return verify(str(directory), None, "somewhere", **options)

    return run


def test_what_is_at_each_offset(directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b")  # 0 1
    log.commit(b"c")  # 2, its end 3
    log.send(b"d", b"e", aborts=True)  # 4 5, its end 6
    log.send(b"f")  # 7
    truth = LogContents(log.path, "orders")
    expected = [RECORD, RECORD, RECORD, MARKER, ABORTED, ABORTED, MARKER, RECORD]
    assert truth.bounds() == {0: (0, 8)}
    assert truth.kinds(0, 0, 8).tolist() == expected
    for start in range(8):
        for end in range(start, 9):
            assert truth.kinds(0, start, end).tolist() == expected[start:end]
    assert [o for batch in truth.records(0, 1, 8) for o in batch.column("offset").to_pylist()] == [1, 2, 7]


def test_compaction_leaves_gaps_within_batches_and_between_them(directory: Path) -> None:
    log = GappyLog(directory, **{"cleanup.policy": "compact", "internal.segment.bytes": "200"})
    for number in range(12):
        log.send(b"%d" % number, b"x", key=b"k%d" % (number % 2))
    log.compact()
    kinds = LogContents(log.path, "orders").kinds(0, 0, 24).tolist()
    kept = [
        o for batch in LogContents(log.path, "orders").records(0, 0, 24) for o in batch.column("offset").to_pylist()
    ]
    assert NOTHING in kinds
    assert [offset for offset, kind in enumerate(kinds) if kind == RECORD] == kept
    assert kept[-1] == 23


def test_a_table_that_holds_all_of_it_is_good_and_every_gap_has_a_word(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b")
    log.commit(b"c")
    log.send(b"d", b"e", aborts=True)
    log.send(b"f")
    report = check(Table(**account(8)).hold(7, 0, 2).reject(1))
    assert report.ok, report.problems
    assert report.explained == {"markers": 2, "aborted": 2}
    [partition] = report.partitions
    assert (partition.records, partition.rows, partition.rejected) == (4, 3, 1)
    assert report.checked == ["each committed record is in the table or in the quarantine, once"]


@pytest.mark.parametrize(
    ("table", "missing", "doubled", "foreign"),
    [
        (Table(**account(8)).hold(0, 2, 7), "1", "", ""),
        (Table(**account(8)).hold(7), "0..2", "", ""),
        (Table(**account(8)).hold(0, 1, 2, 7).hold(1), "", "1", ""),
        (Table(**account(8)).hold(0, 0, 1, 1, 2, 7), "", "0..1", ""),
        (Table(**account(8)).hold(0, 1, 2, 7).reject(7), "", "7", ""),
        (Table(**account(8)).hold(0, 1, 2).reject(7).reject(7), "", "7", ""),
        (Table(**account(8)).hold(0, 1, 2, 7, 3), "", "", "3"),  # a marker
        (Table(**account(8)).hold(0, 1, 2, 7, 4, 5), "", "", "4..5"),  # aborted
        (Table(**account(8)).hold(0, 1, 2, 7).reject(5), "", "", "5"),
        (Table(**account(2)).hold(0, 1, 7), "", "", "7"),  # beyond what the account says
        (Table(**account(8)).hold(0, 1, 2, 7, 3_000_000), "", "", "3,000,000"),
        (Table(started={0: 2}, offsets={0: 8}).hold(1, 2, 7), "", "", "1"),
    ],
)
def test_a_fault_is_found_and_named(
    check: Any, directory: Path, table: Table, missing: str, doubled: str, foreign: str
) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b")
    log.commit(b"c")
    log.send(b"d", b"e", aborts=True)
    log.send(b"f")
    report = check(table)
    assert not report.ok
    [partition] = report.partitions
    assert [str(each) for each in (partition.missing, partition.doubled, partition.foreign)] == [
        missing,
        doubled,
        foreign,
    ]
    assert len(report.problems) == 1
    assert "orders-0: " in report.problems[0]


def test_rows_of_another_topic_or_of_nowhere_are_strangers(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a")
    report = check(Table(**account(1)).hold(0).hold(5, topic="payments").hold(6, topic=None))
    assert report.problems == ["2 rows are of another topic, or do not say where they are from"]


def test_rows_of_nowhere_do_not_hide_what_is_wrong_with_values(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a", b"b", b"c")
    table = Table(**account(3)).hold(0, 1, 2, key=pa.nulls(3, pa.binary()), value=[b"a", b"b", b"z"])
    table.hold(1, topic="other", key=pa.nulls(1, pa.binary()), value=[b"y"])
    table.rows.append(table.rows[0].slice(0, 1))
    at = table.columns.get_field_index("_offset")
    table.rows[-1] = table.rows[-1].set_column(at, "_offset", pa.nulls(1, pa.int64()))
    columns = [name for name in table.columns.names if name != "_timestamp"]  # the log's is that of now
    table.rows = [batch.select(columns) for batch in table.rows]
    table.columns = pa.schema([table.columns.field(name) for name in columns])
    report = check(table, values=True)
    assert [str(each.differing) for each in report.partitions] == ["2"]
    assert "2 rows are of another topic, or do not say where they are from" in report.problems


def test_what_retention_took_after_landing_is_said_to_be_unchecked(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b", b"c", b"d")
    log.delete_before(3)
    report = check(Table(**account(4)).hold(0, 1, 3))
    assert report.ok
    assert report.explained == {"unchecked": 2, "gone": 1}
    assert not check(Table(**account(4)).hold(0, 1, 3).hold(0)).ok  # once it must be there all the same


def test_what_compaction_took_after_landing_may_stay_in_a_table_of_all_records(check: Any, directory: Path) -> None:
    log = GappyLog(directory, **{"cleanup.policy": "compact", "internal.segment.bytes": "200"})
    for number in range(10):
        log.send(b"%d" % number, key=b"k")
    log.compact()
    kinds = LogContents(log.path, "orders").kinds(0, 0, 10).tolist()
    assert kinds.count(NOTHING) > 5
    assert check(Table(**account(10)).hold(*range(10))).explained == {"unchecked": kinds.count(NOTHING)}
    only_kept = Table(**account(10)).hold(*(o for o, kind in enumerate(kinds) if kind == RECORD))
    assert check(only_kept).explained == {"compacted": kinds.count(NOTHING)}


def test_a_log_that_ends_before_the_table_is_another_log(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a", b"b")
    report = check(Table(**account(5)).hold(0, 1, 2, 3, 4))
    [problem] = report.problems
    assert "the table goes to offset 5, and the log ends at 2" in problem


def test_partitions_that_one_side_does_not_know(check: Any, directory: Path) -> None:
    GappyLog(directory, partitions=2).send(b"a", partition=1)
    assert check(Table(started={0: 0}, offsets={0: 0, 1: 1}).hold(0, partition=1)).ok
    report = check(Table(started={0: 0}, offsets={0: 0, 1: 1}).hold(0, partition=1).hold(3, partition=7))
    assert [str(each.foreign) for each in report.partitions] == ["", "", "3"]


def test_rows_that_come_while_the_table_is_read_are_no_fault(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a", b"b", b"c")

    class Growing(Table):
        def read(self, columns: Any) -> Any:
            self.account["offsets"] = {0: 3}
            self.account["sequence"] += 1
            yield from super().read(columns)

    table = Growing(**account(2)).hold(0, 1, 2)
    report = check(table)
    assert report.ok, report.problems
    assert report.partitions[0].end == 2


def test_a_table_without_rows(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", aborts=True)
    assert check(Table(**account(2))).ok
    log.send(b"b")
    assert str(check(Table(**account(3))).partitions[0].missing) == "2"


# -- tables that are upserted ------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(directory: Path) -> GappyLog:
    log = GappyLog(directory)
    log.send(b"a1", b"a2", key=b"a")  # 0 1
    log.send(b"b1", key=b"b")  # 2
    log.send(None, key=b"b")  # 3
    log.send(b"c1", b"c2", key=b"c")  # 4 5
    return log


def test_the_newest_of_each_key_must_be_there(check: Any, keyed: GappyLog) -> None:
    keys = {"_key": pa.array([b"a", b"c"])}
    report = check(Table(upsert=("_key",), **account(6)).hold(1, 5, **keys))
    assert report.ok, report.problems
    assert report.explained == {"superseded": 3, "deleted": 1}


@pytest.mark.parametrize(
    ("offsets", "missing", "foreign"),
    [((5,), "1", ""), ((0, 5), "1", "0"), ((1, 5, 2), "", "2"), ((1, 5, 3), "", "3"), ((1, 4, 5), "", "4")],
)
def test_an_older_or_a_deleted_one_must_not(
    check: Any, keyed: GappyLog, offsets: tuple[int, ...], missing: str, foreign: str
) -> None:
    table = Table(upsert=("_key",), **account(6)).hold(*offsets, _key=pa.nulls(len(offsets), pa.binary()))
    [partition] = check(table).partitions
    assert (str(partition.missing), str(partition.foreign)) == (missing, foreign)


def test_a_refused_record_does_not_replace_one_that_was_not(check: Any, keyed: GappyLog) -> None:
    table = Table(upsert=("_key",), **account(6)).hold(1, 4, _key=pa.array([b"a", b"c"])).reject(5)
    assert check(table).ok
    table = Table(upsert=("_key",), **account(6)).hold(1, 5, _key=pa.array([b"a", b"c"])).reject(4)
    assert check(table).ok


def test_a_key_in_several_partitions_may_show_either(check: Any, directory: Path) -> None:
    log = GappyLog(directory, partitions=2)
    log.send(b"1", b"2", key=b"k", partition=0)
    log.send(b"3", key=b"k", partition=1)
    table = Table(upsert=("_key",), **account(2, 1)).hold(1, _key=pa.array([b"k"]))
    report = check(table)
    assert report.ok, report.problems
    assert report.explained == {"superseded": 1, "either": 1}


def test_rows_told_apart_by_columns_of_the_value(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b'{"id": 1}', b'{"id": 2}', b'{"id": 1}', key=b"x")  # 0 1 2
    log.send(b'{"id": 7}', b"not JSON", key=b"y")  # 3 4
    log.send(None, key=b"y")  # 5
    log.send(b'{"id": 8}', key=b"y")  # 6
    schema = pa.schema([("id", pa.int64())])
    keys = {"id": pa.array([2, 1, 8]), "_key": pa.array([b"x", b"x", b"y"])}
    table = Table(upsert=("id",), **account(7)).hold(1, 2, 6, **keys).reject(4)
    report = check(table, value="json", schema=schema)
    assert report.ok, report.problems
    assert report.explained == {"superseded": 2, "deleted": 1}


# -- tables that were transformed --------------------------------------------------------------------------------------


def test_rows_of_a_transform_need_not_be_records(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b", b"c")
    report = check(Table(transformed=True, **account(3)).hold(0, 0, 2))
    assert report.ok
    assert report.explained == {"dropped": 1, "several": 1}
    assert report.checked == ["each row is of a committed record that was landed"]
    assert not check(Table(transformed=True, **account(3)).hold(0, 9)).ok


def test_an_upserted_table_of_a_transform_may_have_fewer_rows_than_were_landed(check: Any, directory: Path) -> None:
    """Its rows replace one another, so their number proves nothing; what was not checked is reported."""
    GappyLog(directory).send(b"0", b"1", b"2", key=b"k")
    report = check(Table(transformed=True, upsert=("id",), **account(3)).hold(0, 2))
    assert report.ok, report.problems
    assert any("not checked: whether the table has the newest row of each id" in each for each in report.remarks)


def test_rows_that_do_not_say_where_they_are_from_are_counted(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a", b"b")
    table = Table(transformed=True, **account(2))
    table.rows.append(pa.record_batch({"hour": [1, 2, 3]}))
    table.columns = table.rows[0].schema
    report = check(table)
    assert report.ok, report.problems
    assert report.checked == ["the table's offsets are within the log"]
    assert "no _topic, _partition, _offset, _timestamp" in report.remarks[0]
    table.account["rows"] = 4
    assert "3 rows, and its account counts 4" in check(table).problems[0]


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_are_compared_when_asked_for(check: Any, directory: Path) -> None:
    log = GappyLog(directory)
    log.send(b"a", b"b", None, key=b"k")
    truth = next(LogContents(log.path, "orders").records(0, 0, 3))
    good = {"key": truth.column("key"), "value": truth.column("value")}
    table = Table(**account(3)).hold(0, 1, 2, **good)
    table.rows[0] = table.rows[0].set_column(3, "_timestamp", truth.column("timestamp"))
    report = check(table, values=True)
    assert report.ok, report.problems
    assert "3 rows have the values that the log has, in 6 columns" in report.checked
    bad = pa.array([b"a", b"B", b""], pa.binary())
    table.rows[0] = table.rows[0].set_column(table.rows[0].schema.get_field_index("value"), "value", bad)
    report = check(table, values=True)
    assert str(report.partitions[0].differing) == "1..2"
    assert check(table).ok


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_what_cannot_be_checked_is_said(check: Any, show: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a")
    show(Table(**account(1)).hold(0))
    with pytest.raises(ConfigError, match="is the table of topic 'orders', not of 'payments'"):
        verify(str(directory), "payments", "somewhere")
    with pytest.raises(ConfigError, match="values of a table that was transformed"):
        check(Table(transformed=True, **account(1)).hold(0), values=True)
    nothing = Table()
    nothing.state = lambda: None
    show(nothing)
    with pytest.raises(ConfigError, match="there is no table at a table"):
        verify(str(directory), None, "somewhere")


def test_progress_goes_up_to_the_end(check: Any, directory: Path) -> None:
    GappyLog(directory).send(b"a", b"b")
    told: list[Any] = []
    check(Table(**account(2)).hold(0, 1), progress=told.append)
    assert [(each.doing, each.done, each.total) for each in told] == [
        ("reading the table", 2, 2),
        ("comparing with the log", 2, 2),
    ]


def test_a_cluster_is_read_by_its_origin(show: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the log's files there are records and gaps, and no reason for a gap."""
    log = GappyLog(directory)
    log.send(b"a", b"b", key=b"k")
    log.send(b"d", aborts=True)
    log.send(b"f", key=b"l")

    class Frame:
        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def select(self, *names: str) -> Frame:
            return Frame(self.table.select(names))

        def sort(self, name: str) -> Frame:
            return Frame(self.table.sort_by(name))

        def toArrow(self) -> pa.Table:
            return self.table

    class Cluster:
        topic, directory = "orders", None

        def bounds(self) -> Any:
            return LogContents(log.path, "orders").bounds()

        def batch(self, spark: Any, start: Any, end: Any) -> Frame:
            [partition] = end
            batches = list(LogContents(log.path, "orders").records(partition, start[partition], end[partition]))
            return Frame(pa.Table.from_batches(batches))

        def session_conf(self) -> dict[str, str]:
            return {}

        def check_session(self, spark: Any) -> None:
            pass

    monkeypatch.setattr("spark_sinks.upkeep.tables.open_origin", lambda url, topic: Cluster())
    spark: Any = object()
    show(Table(**account(5)).hold(0, 1, 4))
    report = verify("kafka://x:1", None, "somewhere", spark=spark)
    assert report.ok, report.problems
    assert report.explained == {"unseen": 2}
    show(Table(**account(5)).hold(0, 4))
    assert str(verify("kafka://x:1", None, "somewhere", spark=spark).partitions[0].missing) == "1"
    show(Table(upsert=("_key",), **account(5)).hold(1, 4, _key=pa.array([b"k", b"l"])))
    assert verify("kafka://x:1", None, "somewhere", spark=spark).ok
