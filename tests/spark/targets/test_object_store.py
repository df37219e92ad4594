"""Tables in an object store, against a server of the S3 protocol: what every target promises, and what fails there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pyiceberg.catalog
import pytest
from deltalake import DeltaTable
from obstore.exceptions import GenericError
from pyiceberg.utils.config import Config

from eventbus.errors import ConfigError, EventBusError, StorageError
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.files import disk_errors
from spark_sinks.targets.objects import ObjectFiles
from spark_sinks.targets.place import ObjectPath
from spark_sinks.targets.storage import parquet_file
from spark_sinks.targets.target import Target
from tests.object_store import Faults, ObjectStore
from tests.spark.targets.kit import (
    NOW_MS,
    PARTITIONS,
    Conformance,
    MakeRig,
    Record,
    Rig,
    Story,
    UpsertConformance,
    new_table,
)

pytestmark = pytest.mark.system


class StoreRig(Rig):
    """A table in a bucket. A stop of the client takes the place of a crash."""

    locks = False

    def __init__(self, store: ObjectStore, name: str) -> None:
        super().__init__(Path(name))
        self.store = store
        self.place = ObjectPath.parse(self.url)

    @property
    def url(self) -> str:
        return self.store.url(self.directory.name)


class ParquetRig(StoreRig):
    compacts = False

    def target(self) -> Target:
        return open_target(self.url, options=TargetOptions())

    def edit_account(self, change: Callable[[str], str]) -> None:
        files = ObjectFiles(self.place)
        newest = files.files_below("_eventbus/ledger")[-1]
        obstore.put(files._store, f"{self.place.key}/{newest}", change(files.read(newest).decode()).encode())

    def outside(self) -> list[Record]:
        found: list[Record] = []
        for path in ObjectFiles(self.place).files_below(""):
            with parquet_file(self.place / path) as file:
                rows = file.read(["_partition", "_offset"]).to_pylist()
            found += [(row["_partition"], row["_offset"]) for row in rows]
        return sorted(found)


class DeltaRig(StoreRig):
    upserts = True
    refused_partitions = ("fraction",)

    def target(self) -> Target:
        return open_target(f"delta:{self.url}", options=TargetOptions())

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.place), storage_options=self.store.options())

    def edit_account(self, change: Callable[[str], str]) -> None:
        table = self.table()
        new_table = table.metadata().configuration["eventbus.new_table"]
        table.alter.set_table_properties({"eventbus.new_table": change(new_table)}, raise_if_not_exists=False)

    def outside(self) -> list[Record]:
        if not DeltaTable.is_deltatable(str(self.place), self.store.options()):
            return []
        table = self.table().to_pyarrow_table()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


class IcebergRig(StoreRig):
    """The table ``sales.<name>`` of a configured catalog whose warehouse is the bucket."""

    def target(self) -> Target:
        return open_target(f"iceberg:prod.sales.{self.directory.name}")

    def edit_account(self, change: Callable[[str], str]) -> None:
        with pyiceberg.catalog.load_catalog("prod") as catalog:
            table = catalog.load_table(f"sales.{self.directory.name}")
            with table.transaction() as transaction:
                transaction.set_properties({"eventbus.account": change(table.properties["eventbus.account"])})

    def outside(self) -> list[Record]:
        with pyiceberg.catalog.load_catalog("prod") as catalog:
            if not catalog.table_exists(f"sales.{self.directory.name}"):
                return []
            table = catalog.load_table(f"sales.{self.directory.name}").scan().to_arrow()
        if "_offset" not in table.column_names:
            return []
        return sorted((row["_partition"], row["_offset"]) for row in table.to_pylist())


class InStore(Conformance):
    """`Conformance` where each request is a step."""

    every = 11
    """The quick tier stops at every n-th request."""

    @pytest.mark.parametrize("long", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
    def test_crash_before_every_step(self, rigs: MakeRig, long: bool) -> None:
        """The client stops at each request: before the store does it, and after that without an answer."""
        counted = rigs("counted")
        with counted.store.failing(Faults()):
            Story(counted, long=long).run()
        requests = len(counted.store.requests)
        assert requests > 20
        for number in range(0, requests, 1 if long else self.every):
            for applied in (False, True) if long else (number % 2 == 0,):
                rig = rigs(f"orders{number}{applied}")
                story = Story(rig, long=long)
                with rig.store.failing(Faults(stopped_at=number, applied=applied)), contextlib.suppress(EventBusError):
                    story.run()
                story.check(outside=False)
                story.run()
                story.check(outside=True)
                state = rig.state()
                assert state is not None
                assert Story.batches_done(state) == story.batches

    @pytest.mark.parametrize(
        "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
    )
    def test_errors_now_and_then_are_no_errors(self, rigs: MakeRig, seed: int) -> None:
        """The clients try again. A conditional put whose answer was lost must not lose against itself."""
        rig = rigs("orders")
        story = Story(rig, long=True)
        with rig.store.failing(Faults(share=0.05, seed=seed)):
            story.run()
        story.check(outside=True)

    @pytest.mark.slow  # on a disk it is a system test, and the paths are the same
    @pytest.mark.parametrize("name", PARTITIONS)
    def test_each_value_of_a_partition_column_is_kept(self, rigs: MakeRig, name: str) -> None:
        super().test_each_value_of_a_partition_column_is_kept(rigs, name)

    @pytest.mark.skip("each request is a step")
    def test_crash_of_the_recovery(self) -> None: ...
    @pytest.mark.skip("a bucket is never full")
    def test_disk_full_at_every_step(self) -> None: ...

    def test_target_goes_on_after_an_error_when_opened_again(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        target.commit(story.batch(target, 0), NOW_MS)
        batch = story.batch(target, 1)
        with rig.store.failing(Faults(stopped_at=0)), pytest.raises(EventBusError):
            target.commit(batch, NOW_MS)
        with pytest.raises(ConfigError, match="not open"):
            target.commit(batch, NOW_MS)
        story.check(outside=True)
        assert Story.batches_done(target.open(new_table(target), NOW_MS)) == 1
        target.commit(story.batch(target, 1), NOW_MS)
        target.close()
        story.check(outside=True)


class TestParquet(InStore):
    every = 5

    @pytest.fixture
    def rigs(self, store: ObjectStore) -> MakeRig:
        return lambda name: ParquetRig(store, _plain(name))


@pytest.mark.slow  # live/test_object_store.py lands such a table in the system tier
class TestDelta(InStore):
    @pytest.fixture
    def rigs(self, store: ObjectStore) -> MakeRig:
        return lambda name: DeltaRig(store, _plain(name))


@pytest.mark.slow
class TestDeltaUpserts(UpsertConformance):
    @pytest.fixture
    def rigs(self, store: ObjectStore) -> MakeRig:
        return lambda name: DeltaRig(store, _plain(name))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", PARTITIONS)
    def test_rows_are_upserted_by_each_value_of_a_partition_column(self, rig: Rig, name: str) -> None:
        super().test_rows_are_upserted_by_each_value_of_a_partition_column(rig, name)

    @pytest.mark.skip("each request is a step")
    def test_crash_before_every_step_of_an_upsert(self) -> None: ...


@pytest.mark.slow
class TestIceberg(InStore):
    every = 17

    @pytest.fixture
    def rigs(self, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRig:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{store.bucket}/warehouse",
            "s3.endpoint": store.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
        }
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name.upper().replace('.', '__').replace('-', '_')}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which is read at the import
        return lambda name: IcebergRig(store, _plain(name))


def test_a_request_that_is_never_answered_is_repeated(store: ObjectStore) -> None:
    """Each lasting request of a commit in turn. It had its effect or not; the landing does not notice."""
    for applied in (False, True):
        target = open_target(store.url(f"orders{applied}", timeout="700ms"))
        story = Story(ParquetRig(store, f"orders{applied}"))
        state = target.open(new_table(target), NOW_MS)
        for number, silent_at in enumerate((0, 4, 5, 7, 9)):  # a staged file, copies, the entry of the ledger, the end
            with store.failing(Faults(silent_at=silent_at, applied=applied)):
                state = target.commit(story.batch(target, number), NOW_MS)
            assert len(store.requests) > 10, "it was repeated"
        target.close()
        assert Story.batches_done(state) == 5
        story.check(outside=True)


def test_a_store_that_ignores_conditions_is_refused(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def unconditional(*args: Any, mode: str = "overwrite", **options: Any) -> object:
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", unconditional)
    target = ParquetRig(store, "orders").target()
    with pytest.raises(ConfigError, match=r"s3://lake-\w+/orders cannot hold a table. Its store ignores the condition"):
        target.open(new_table(target), NOW_MS)
    assert target.state() is None


def test_missing_credentials_are_named() -> None:
    error = GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 7ms\nDebug source: ...")
    found = pytest.raises(StorageError, match=r"^cannot read s3://b/t: Error .* in 7ms. No credentials were found")
    with found, disk_errors("s3://b/t", "read"):
        raise error


def test_parquet_files_in_a_store_are_not_compacted(store: ObjectStore) -> None:
    target = ParquetRig(store, "orders").target()
    target.open(new_table(target), NOW_MS)
    with pytest.raises(ConfigError, match=r"cannot be compacted\. An object store cannot replace"):
        target.compact(before=None, min_files=2)
    target.close()


def test_files_are_staged_in_the_bucket_of_the_table(store: ObjectStore, tmp_path: Path) -> None:
    for stage in (str(tmp_path), "s3://other/stage"):
        with pytest.raises(ConfigError, match="is not in the store of s3://"):
            open_target(store.url("orders"), options=TargetOptions(stage=stage))


def _plain(name: str) -> str:
    return "".join(letter for letter in name if letter.isascii() and letter.isalnum())
