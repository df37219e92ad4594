"""Iceberg tables: what every target promises, and what only Iceberg needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from sqlalchemy import Engine, event

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.files import Files, LocalFiles
from spark_sinks.targets.iceberg import log as iceberg_log
from spark_sinks.targets.iceberg.log import IcebergLog, Where
from spark_sinks.targets.iceberg.target import open_iceberg
from spark_sinks.targets.logged import TableLog
from spark_sinks.targets.target import Batch, NewTable, Target
from tests.spark.targets.kit import (
    NOW_MS,
    Conformance,
    MakeRig,
    Record,
    Rig,
    Row,
    Story,
    new_table,
    records,
    stage,
    table_columns,
)
from tests.spark.targets.steps import SteppingFiles, record_syncs, stepping_log

pytestmark = pytest.mark.system


class IcebergRig(Rig):
    every = 3

    def target(self) -> Target:
        def files(root: Path) -> Files:
            return SteppingFiles(LocalFiles(root), self.steps)

        def log(where: Where, compression: str) -> TableLog:
            return stepping_log(IcebergLog(where, compression), self.steps)

        return open_iceberg(str(self.directory), TargetOptions(), make_files=files, make_log=log)

    def edit_account(self, change: Callable[[str], str]) -> None:
        with lake(self.directory.parent) as catalog:
            table = catalog.load_table(f"default.{self.directory.name}")
            with table.transaction() as transaction:
                transaction.set_properties({"eventbus.account": change(table.properties["eventbus.account"])})

    def readers(self) -> Mapping[str, Callable[[], pa.Table]]:
        def scan() -> pa.Table:
            with lake(self.directory.parent) as catalog:
                return catalog.load_table(f"default.{self.directory.name}").scan().to_arrow()

        return {"pyiceberg": scan}

    def schema(self) -> pa.Schema:
        with lake(self.directory.parent) as catalog:
            return schema_to_pyarrow(catalog.load_table(f"default.{self.directory.name}").schema())

    def outside(self) -> list[Record]:
        with lake(self.directory.parent) as catalog:
            if not catalog.table_exists(f"default.{self.directory.name}"):
                return []
            table = catalog.load_table(f"default.{self.directory.name}").scan().to_arrow()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


def lake(directory: Path) -> SqlCatalog:
    """The catalog as its readers open it."""
    return SqlCatalog("default", uri=f"sqlite:///{directory}/catalog.db")


@pytest.fixture
def rigs(tmp_path: Path) -> MakeRig:
    return lambda name: IcebergRig(tmp_path / name)


class TestConformance(Conformance):
    @pytest.mark.slow  # make test does it with Parquet, Delta and SQLite
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("long", [False, True])
    def test_crash_before_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_crash_before_every_step(rigs, long)

    @pytest.mark.slow  # the quick tier crashes at every step, which are the same places
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("long", [False, True])
    def test_disk_full_at_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_disk_full_at_every_step(rigs, long)


@pytest.fixture
def rig(rigs: MakeRig) -> Rig:
    return rigs("orders")


def opened(rig: Rig) -> Target:
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    return target


def test_commit_of_somebody_else_comes_between(rig: Rig) -> None:
    story = Story(rig)
    target = opened(rig)
    target.commit(story.batch(target, 0), NOW_MS)
    batch = story.batch(target, 1)
    with lake(rig.directory.parent) as catalog:
        table = catalog.load_table("default.orders")
        table.append(table.scan(limit=1).to_arrow().set_column(2, "_partition", pa.array([7], pa.int32())))
        with table.transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})
    target.commit(batch, NOW_MS)
    target.close()
    assert [each for each in rig.records() if each[0] != 7] == story.expected(2)[0]


def test_table_of_somebody_else_is_refused(rig: Rig) -> None:
    with lake(rig.directory.parent) as catalog:
        catalog.create_namespace("default")
        location = rig.directory.as_uri()
        catalog.create_table("default.orders", pa.schema([("x", pa.int32())]), location=location)
    with pytest.raises(ConfigError, match="no landing made"):
        opened(rig)


def test_readers_skip_partitions_and_files(rig: Rig) -> None:
    target = opened(rig)
    columns = table_columns(target)
    for first in (0, 10):
        rows = [Row(0, first), Row(0, first + 1)]
        target.commit(Batch({0: first + 2}, stage(target, rows, columns), [], columns), NOW_MS)
    target.close()
    with lake(rig.directory.parent) as catalog:
        table = catalog.load_table("default.orders")
        assert len(list(table.scan().plan_files())) == 4
        assert len(list(table.scan("dt = '2024-02-29'").plan_files())) == 2
        assert len(list(table.scan("_offset >= 10").plan_files())) == 2
        assert len(list(table.scan("_timestamp > '2024-03-01T00:00:00+00:00'").plan_files())) == 2
        assert table.scan("dt = '2024-03-01' and _offset = 11").to_arrow().num_rows == 1


def test_upsert_is_refused(rig: Rig) -> None:
    target = rig.target()
    with pytest.raises(ConfigError, match="upsert= needs delta: or a database"):
        target.open(NewTable("orders", upsert=("_key",)), NOW_MS)


def test_looking_makes_nothing(rig: Rig) -> None:
    assert rig.state() is None
    assert list(rig.directory.parent.iterdir()) == []


def test_column_that_iceberg_has_no_type_for_is_refused(rig: Rig) -> None:
    target = rig.target()
    target.open(new_table(target, partition_by=()), NOW_MS)
    columns = pa.schema([("x", pa.timestamp("ns", "UTC")), *table_columns(target).remove(5)])
    with pytest.raises(ConfigError, match="Iceberg cannot take these columns"):
        target.commit(Batch({0: 1}, [], [], columns), NOW_MS)
    target.close()


@pytest.mark.parametrize("kind", [pa.uint64(), pa.map_(pa.string(), pa.list_(pa.uint32()))])
def test_unsigned_numbers_are_refused_before_one_is_too_large(rig: Rig, kind: pa.DataType) -> None:
    target = rig.target()
    target.open(new_table(target, partition_by=()), NOW_MS)
    columns = pa.schema([("x", kind), *table_columns(target).remove(5)])
    with pytest.raises(ConfigError, match=r"column 'x': Iceberg has no type for uint"):
        target.commit(Batch({0: 1}, [], [], columns), NOW_MS)
    target.close()


def test_configured_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def load(name: str, **properties: str) -> SqlCatalog:
        names.append(name)
        return SqlCatalog(name, uri=f"sqlite:///{tmp_path}/prod.db", warehouse=f"file://{tmp_path}/house", **properties)

    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", load)
    target = open_target("iceberg:prod.sales.eu.orders")
    target.open(new_table(target), NOW_MS)
    columns = table_columns(target)
    target.commit(Batch({0: 1}, stage(target, [Row(0, 0)], columns), [], columns), NOW_MS)
    target.close()
    assert records(target) == [(0, 0)]
    assert set(names) == {"prod"}
    with load("prod") as catalog:
        location = catalog.load_table("sales.eu.orders").location()
    assert location == (tmp_path / "house" / "sales.eu" / "orders").as_uri()


def test_metadata_is_on_disk_before_the_catalog_names_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog's database syncs its own commit: after a power cut it must not name what is gone."""
    synced = record_syncs(monkeypatch)
    commits: list[int] = []

    def committing(_: object) -> None:
        made = {path for path in (rig.directory / "metadata").glob("*") if path.is_file()}
        compacted = {path for path in (rig.directory / "data").rglob("compacted-*")}
        assert made | compacted <= synced
        assert {path.parent for path in made | compacted} <= synced
        commits.append(len(made))

    event.listen(Engine, "commit", committing)
    try:
        story = Story(rig)
        target = opened(rig)
        for number in range(2):
            target.commit(story.batch(target, number), NOW_MS)
        target.compact(before=None, min_files=2)
        target.close()
    finally:
        event.remove(Engine, "commit", committing)
    assert commits[-1] > 10


def test_old_snapshots_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each commit would take longer than the one before; what a tag names stays."""
    monkeypatch.setattr(iceberg_log, "_SNAPSHOTS", 3)
    story = Story(rig)
    target = opened(rig)
    target.commit(story.batch(target, 0), NOW_MS)
    with lake(rig.directory.parent) as catalog:
        table = catalog.load_table("default.orders")
        tagged = table.current_snapshot()
        assert tagged is not None
        table.manage_snapshots().create_tag(tagged.snapshot_id, "kept").commit()
        for number in range(1, 8):
            target.commit(story.batch(target, number), NOW_MS)
        snapshots = table.refresh().metadata.snapshots
        assert len(snapshots) == 5  # three, the tag's, and the one of the commit
        assert tagged.snapshot_id in {each.snapshot_id for each in snapshots}
        assert table.scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 7
    assert rig.records() == story.expected(8)[0]
    target.close()
