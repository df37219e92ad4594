"""Delta tables: what every target promises, and what only Delta needs."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.delta.actions import add_action, delta_columns
from spark_sinks.targets.delta.log import DeltaLog
from spark_sinks.targets.delta.target import open_delta
from spark_sinks.targets.files import Files, LocalFiles
from spark_sinks.targets.logged import Placed, TableLog
from spark_sinks.targets.target import Batch, Target
from tests.spark.targets.kit import (
    NOW_MS,
    Conformance,
    MakeRig,
    Record,
    Rig,
    Row,
    Story,
    UpsertConformance,
    new_table,
    records,
    stage,
    table_columns,
)
from tests.spark.targets.steps import SteppingFiles, record_syncs, stepping_log

pytestmark = pytest.mark.system


class DeltaRig(Rig):
    every = 3
    upserts = True
    refused_partitions = ("fraction",)

    def target(self) -> Target:
        def files(root: Path) -> Files:
            return SteppingFiles(LocalFiles(root), self.steps)

        def log(path: Path, compression: str) -> TableLog:
            return stepping_log(DeltaLog(path, compression), self.steps)

        return open_delta(self.directory, TargetOptions(), make_files=files, make_log=log)

    def edit_account(self, change: Callable[[str], str]) -> None:
        table = DeltaTable(self.directory)
        new_table = table.metadata().configuration["eventbus.new_table"]
        table.alter.set_table_properties({"eventbus.new_table": change(new_table)}, raise_if_not_exists=False)

    def readers(self) -> Mapping[str, Callable[[], pa.Table]]:
        def query() -> pa.Table:
            builder = QueryBuilder().register("t", DeltaTable(self.directory))
            return pa.table(builder.execute("SELECT * FROM t").read_all())

        return {"deltalake": lambda: DeltaTable(self.directory).to_pyarrow_table(), "DataFusion": query}

    def schema(self) -> pa.Schema:
        return pa.schema(DeltaTable(self.directory).schema().to_arrow())

    def outside(self) -> list[Record]:
        if not DeltaTable.is_deltatable(str(self.directory)):
            return []
        table = DeltaTable(self.directory).to_pyarrow_table()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


@pytest.fixture
def rigs(tmp_path: Path) -> MakeRig:
    return lambda name: DeltaRig(tmp_path / name)


class TestConformance(Conformance):
    @pytest.mark.slow  # the quick tier crashes at every step, which are the same places
    @pytest.mark.parametrize("long", [False, True])
    def test_disk_full_at_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_disk_full_at_every_step(rigs, long)


class TestUpserts(UpsertConformance):
    @pytest.mark.slow  # make test crashes at every third step of a commit, and at every step of an upsert in SQLite
    def test_crash_before_every_step_of_an_upsert(self, rigs: MakeRig) -> None:
        super().test_crash_before_every_step_of_an_upsert(rigs)

    def test_what_deltalake_wrote_is_synced(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a power cut could take rows whose offsets are in the account."""
        synced = record_syncs(monkeypatch)
        target = self.open(rig)
        for offset in range(0, 6, 2):
            self.put(target, [Row(0, offset, b"a"), Row(0, offset + 1, b"b" * offset)])
            assert {Path(file) for file in DeltaTable(rig.directory).file_uris()} <= synced
        target.compact(before=None, min_files=2)
        target.close()
        assert {Path(file) for file in DeltaTable(rig.directory).file_uris()} <= synced
        assert set((rig.directory / "_delta_log").glob("*.json")) <= synced
        assert {rig.directory, rig.directory / "_delta_log"} <= synced


@pytest.fixture
def rig(rigs: MakeRig) -> Rig:
    return rigs("orders")


def opened(rig: Rig) -> Target:
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    return target


def test_commit_of_somebody_else_comes_between(rig: Rig) -> None:
    """A user's OPTIMIZE or a new property is no second landing: the commit is made on top of it."""
    story = Story(rig)
    target = opened(rig)
    for number in range(2):
        target.commit(story.batch(target, number), NOW_MS)
    batch = story.batch(target, 2)
    DeltaTable(rig.directory).optimize.compact()
    DeltaTable(rig.directory).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    target.commit(batch, NOW_MS)
    assert records(target) == story.expected(3)[0]
    target.close()


def test_account_survives_checkpoint_and_clean_up_of_the_log(rig: Rig) -> None:
    story = Story(rig)
    target = opened(rig)
    for number in range(3):
        state = target.commit(story.batch(target, number), NOW_MS)
    target.close()
    table = DeltaTable(rig.directory)
    table.create_checkpoint()
    log = rig.directory / "_delta_log"
    kept = log / f"{table.version():020d}.json"
    for entry in log.glob("*.json"):
        if entry != kept:
            entry.unlink()
    assert rig.state() == state
    target = opened(rig)
    target.commit(story.batch(target, 3), NOW_MS)
    target.close()
    assert rig.records() == story.expected(4)[0]


def test_table_of_somebody_else_is_refused(rig: Rig) -> None:
    deltalake.write_deltalake(rig.directory, pa.table({"x": [1]}))
    with pytest.raises(ConfigError, match="no landing made"):
        opened(rig)
    assert DeltaTable(rig.directory).to_pyarrow_table().num_rows == 1


def test_statistics_let_readers_skip_files(rig: Rig) -> None:
    target = opened(rig)
    columns = table_columns(target)
    rows = [Row(0, 2), Row(0, 4), Row(0, 6, tombstone=True)]
    target.commit(Batch({0: 7}, stage(target, rows, columns), [], columns), NOW_MS)
    target.close()
    action = pa.table(DeltaTable(rig.directory).get_add_actions(flatten=True)).to_pylist()[0]
    assert (action["num_records"], action["min._offset"], action["max._offset"]) == (3, 2, 6)
    assert (action["min.amount"], action["max.amount"], action["null_count.amount"]) == (2, 4, 1)
    assert action["max._timestamp"].isoformat() == "2024-02-29T12:00:00.000006+00:00"
    found = DeltaTable(rig.directory).to_pyarrow_table(filters=[("_timestamp", ">", action["min._timestamp"])])
    assert found.num_rows == 2


@pytest.mark.parametrize("kind", [pa.uint32(), pa.time64("us"), pa.timestamp("ms", "UTC")])
def test_columns_that_delta_would_change_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"column 'x': Delta .*transform="):
        delta_columns(pa.schema([("x", kind)]))


def test_compaction_leaves_the_account(rig: Rig) -> None:
    story = Story(rig)
    target = opened(rig)
    for number in range(2):
        state = target.commit(story.batch(target, number), NOW_MS)
    target.compact(before=None, min_files=2)
    assert rig.state() == state
    target.close()


def test_statistics_of_early_years(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    old = dt.datetime(999, 1, 2, tzinfo=dt.UTC)
    pq.write_table(pa.table({"old": [old]}, pa.schema([("old", pa.timestamp("us", "UTC"))])), path)
    stats = json.loads(add_action(tmp_path, Placed(path.name, "", 0), NOW_MS).stats)
    assert stats["minValues"]["old"] == "0999-01-02T00:00:00.000000Z"


@pytest.mark.slow
def test_thousand_commits(rig: Rig) -> None:
    """The log stays quick: deltalake writes a checkpoint every hundred commits."""
    target = opened(rig)
    for number in range(1_000):
        state = target.commit(Batch({0: number + 1}, [], [], pa.schema([])), NOW_MS)
    target.close()
    assert state.sequence == 1_000
    assert rig.state() == state
    assert list((rig.directory / "_delta_log").glob("*.checkpoint.parquet"))
