"""What only tables in plain directories need: the ledger's files, leftovers, compaction by exchange, other readers."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventbus.errors import ConfigError, CorruptRecord, LogLocked, StorageError, StorageFull
from spark_sinks.shape import coordinate_fields
from spark_sinks.targets import files as files_module
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.files import DirectoryLock, LocalFiles
from spark_sinks.targets.parquet.ledger import entry_path, newest
from spark_sinks.targets.parquet.target import ParquetTarget
from spark_sinks.targets.parts import Part
from spark_sinks.targets.side_files import ReadLock
from spark_sinks.targets.target import Batch, NewTable, StagedFile
from tests.spark.targets.kit import NOW_MS, Crash, Record, Row, Story, new_table, records, refused, stage, table_columns
from tests.spark.targets.test_parquet import ParquetRig, plain_records

pytestmark = pytest.mark.system


@pytest.fixture
def rig(tmp_path: Path) -> ParquetRig:
    return ParquetRig(tmp_path / "orders")


@pytest.fixture
def landed(rig: ParquetRig) -> ParquetRig:
    """Three batches of the story."""
    Story(rig, long=False).run()
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    target.commit(Story(rig).batch(target, 2), NOW_MS)
    target.close()
    return rig


def reopen(rig: ParquetRig) -> None:
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    target.close()


def ledger_of(rig: ParquetRig) -> list[Path]:
    return sorted((rig.directory / "_eventbus" / "ledger").iterdir())


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_files_without_their_ledger_are_never_deleted(landed: ParquetRig) -> None:
    for path in ledger_of(landed):
        path.unlink()
    before = sorted(landed.directory.rglob("*.parquet"))
    with pytest.raises(CorruptRecord, match="restore the directory _eventbus"):
        reopen(landed)
    assert sorted(landed.directory.rglob("*.parquet")) == before
    assert ledger_of(landed) == []


def test_older_copy_of_the_ledger_is_refused(landed: ParquetRig) -> None:
    for path in ledger_of(landed)[2:]:
        path.unlink()
    with pytest.raises(CorruptRecord, match="not here any more"):
        reopen(landed)


def test_gap_damage_and_another_version_are_named(landed: ParquetRig) -> None:
    first, *_, last = ledger_of(landed)
    data = last.read_bytes()
    last.write_bytes(data[:20])
    with pytest.raises(CorruptRecord, match=rf"{last.name} is damaged"):
        reopen(landed)
    last.write_bytes(data.replace(b'"version": 2', b'"version": 3'))
    with pytest.raises(CorruptRecord, match="has version 3, this release knows 2"):
        reopen(landed)
    last.write_bytes(data)
    first.unlink()
    with pytest.raises(CorruptRecord, match="entry 0 is missing"):
        reopen(landed)


def test_opening_reads_the_newest_entry_only(landed: ParquetRig) -> None:
    entry = newest(LocalFiles(landed.directory))
    assert entry is not None
    for number in range(entry.number + 1, 10_000):
        data = b"never read"
        if number == 9_999:
            data = msgspec.json.encode(msgspec.structs.replace(entry, number=number))
        (landed.directory / entry_path(number)).write_bytes(data)
    target = landed.target()
    begin = time.process_time()
    state = target.open(new_table(target), NOW_MS)
    seconds = time.process_time() - begin
    target.close()
    assert state.epoch == entry.state.epoch + 1
    assert seconds < 1  # 0.05 when this was written


# -- leftovers --------------------------------------------------------------------------------------------------------


def test_a_directory_with_foreign_files_is_refused(rig: ParquetRig) -> None:
    foreign = rig.directory / "old" / "part-0.parquet"
    foreign.parent.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), foreign)
    target = rig.target()
    with pytest.raises(ConfigError, match=r"contains old/part-0.parquet, which no landing wrote"):
        target.open(new_table(target), NOW_MS)
    assert [path for path in rig.directory.rglob("*") if path.is_file()] == [foreign]


def test_foreign_files_are_left_alone(rig: ParquetRig) -> None:
    foreign = rig.directory / "dt=2024-02-29" / "part-00000-abc.c000.snappy.parquet"
    Story(rig, long=False).run()
    (rig.directory / "notes.txt").write_text("mine")
    pq.write_table(pa.table({"x": [1]}), foreign)
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    target.close()
    assert foreign.exists()
    assert (rig.directory / "notes.txt").exists()
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    with pytest.raises(ConfigError, match=r"part-00000-abc.c000.snappy.parquet was not landed here: move it away"):
        target.compact(before=None, min_files=2)
    target.close()


@pytest.mark.parametrize("second_commits", [False, True])
def test_files_of_a_landing_that_died_after_it_lost_its_table(rig: ParquetRig, second_commits: bool) -> None:
    """It had moved its files when it was stopped, and another landing had opened the table: never counted, and gone."""
    story = Story(rig)
    first = rig.target()
    first.open(new_table(first), NOW_MS)
    first.commit(story.batch(first, 0), NOW_MS)
    moved = {path: path.read_bytes() for path in rig.directory.rglob("dt=*/*.parquet")}
    batch = story.batch(first, 1)
    rig.steps.fail_at(-1)
    first.commit(batch, NOW_MS)  # to see what it would have moved
    late = {path: path.read_bytes() for path in rig.directory.rglob("dt=*/*.parquet") if path not in moved}
    assert late
    ledger_of(rig)[-1].unlink()  # it never came to the ledger
    for path in late:
        path.unlink()
    rig.abandon(first)
    first.close()
    second = rig.target()
    second.open(new_table(second), NOW_MS)
    if second_commits:
        second.commit(Batch({0: 8, 1: 8}, [], [], table_columns(second)), NOW_MS)  # offsets only: no files of its own
    for path, data in late.items():
        path.write_bytes(data)
    assert not set(records(second)) & set(story.records_in(1)), "files of a commit that never was are counted"
    second.close()
    reopen(rig)
    assert not any(path.exists() for path in late)
    assert all(path.exists() for path in moved)


def test_stage_elsewhere_is_cleared_of_our_own_files_only(tmp_path: Path) -> None:
    options = TargetOptions(stage=str(tmp_path / "stage"))
    target = open_target(str(tmp_path / "orders"), options=options)
    target.open(new_table(target), NOW_MS)
    (tmp_path / "stage" / "other").mkdir(parents=True)
    (tmp_path / "stage" / "other" / "file").write_bytes(b"not ours")
    columns = table_columns(target)
    staged = stage(target, [Row(0, 0)], columns)
    assert staged[0].path.startswith(str(tmp_path / "stage"))
    left = Path(target.stage_directory()) / "attempt"
    left.write_bytes(b"")
    target.close()
    target.open(new_table(target), NOW_MS)
    assert not left.exists()
    assert (tmp_path / "stage" / "other" / "file").exists()
    target.commit(Batch({0: 1}, stage(target, [Row(0, 0)], columns), [], columns), NOW_MS)
    target.close()
    assert records(target) == [(0, 0)]
    assert [path.name for path in (tmp_path / "stage").iterdir()] == ["other"]


def test_commit_clears_what_failed_attempts_of_tasks_staged(rig: ParquetRig) -> None:
    target = rig.target()
    target.open(new_table(target), NOW_MS)
    left = Path(target.stage_directory()) / "failed-attempt"
    left.write_bytes(b"half a fi")
    target.commit(Story(rig).batch(target, 0), NOW_MS)
    target.close()
    assert not left.parent.exists()


# -- other readers ----------------------------------------------------------------------------------------------------


def duckdb_records(directory: Path) -> list[Record]:
    query = f"SELECT _partition, _offset FROM read_parquet('{directory}/**/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        return sorted(connection.execute(query).fetchall())


def test_duckdb_reads_the_directory(landed: ParquetRig) -> None:
    rows, bad = Story.expected(3)
    assert duckdb_records(landed.directory) == plain_records(landed.directory) == rows
    assert duckdb_records(landed.directory.with_name("orders__quarantine")) == bad == refused(landed.target())


def test_crash_of_compaction_leaves_duckdb_the_rows_once(tmp_path: Path) -> None:
    """At once, not only after the next opening."""
    rows = Story.expected(3)[0]
    step = 0
    while True:
        rig = ParquetRig(tmp_path / str(step))
        rig.steps.fail_at(-1)
        Story(rig).run()
        target = rig.target()
        target.open(new_table(target), NOW_MS)
        target.commit(Story(rig).batch(target, 2), NOW_MS)
        rig.steps.fail_at(step)
        try:
            target.compact(before=None, min_files=2)
        except Crash:
            rig.abandon(target)
            target.close()
            assert duckdb_records(rig.directory) == rows
            reopen(rig)
            assert duckdb_records(rig.directory) == rows
            step += 1
            continue
        assert duckdb_records(rig.directory) == rows
        assert len(list(rig.directory.rglob("dt=*/*.parquet"))) == 2
        target.close()
        return


# -- compaction -------------------------------------------------------------------------------------------------------


def test_compaction_needs_partitions(tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "t"))
    target.open(NewTable("orders"), NOW_MS)
    with pytest.raises(ConfigError, match="no partitions"):
        target.compact(before=None, min_files=2)
    target.close()


def test_compaction_leaves_what_a_lost_landing_wrote_behind(landed: ParquetRig) -> None:
    """Its files are in the place where directories are made; they must not get into the table with one."""
    target = landed.target()
    state = target.open(new_table(target), NOW_MS)
    target.commit(Story(landed).batch(target, 3), NOW_MS)
    left = landed.directory.with_name("orders__compaction") / "dt=2024-02-29"
    left.mkdir(parents=True)
    file = next((landed.directory / "dt=2024-02-29").glob("*.parquet"))
    shutil.copy(file, left / Part(state.id, state.sequence, state.epoch - 1, 0).name)
    target.compact(before=None, min_files=2)
    target.close()
    seen = landed.outside()
    assert len(seen) == len(set(seen))


def test_compaction_waits_for_nobody_who_reads(landed: ParquetRig) -> None:
    target = landed.target()
    target.open(new_table(target), NOW_MS)
    reading = landed.target().read(["_offset"])
    next(reading)
    with pytest.raises(LogLocked, match="is being read"):
        target.compact(before=None, min_files=2)
    reading.close()  # pyright: ignore[reportAttributeAccessIssue] - it is a generator
    target.open(new_table(target), NOW_MS)
    assert target.compact(before=None, min_files=2).files_after == 2
    target.close()
    assert landed.records() == Story.expected(3)[0]


@pytest.mark.parametrize("crash_at", [None, 0, 1, 2])
def test_exchange_without_linux(landed: ParquetRig, monkeypatch: pytest.MonkeyPatch, crash_at: int | None) -> None:
    """Three renames, each of which may be the last before a crash."""
    monkeypatch.setattr(files_module, "_exchange", lambda one, other: False)
    target = landed.target()
    target.open(new_table(target), NOW_MS)
    rename, renames = Path.rename, iter(range(100))

    def crashing(self: Path, to: Path) -> Path:
        if next(renames) == crash_at:
            raise Crash
        return rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crashing)
        if crash_at is None:
            target.compact(before="2024-03-01", min_files=2)
        else:
            with pytest.raises(Crash):
                target.compact(before="2024-03-01", min_files=2)
    target.close()
    reopen(landed)
    assert plain_records(landed.directory) == Story.expected(3)[0]
    assert len(list(landed.directory.rglob("dt=2024-02-29/*.parquet"))) == 1
    assert not landed.directory.with_name("orders__compaction").exists()


def test_nested_and_odd_partitions_compact(tmp_path: Path) -> None:
    columns = pa.schema([("x", pa.int32()), *coordinate_fields(), ("n", pa.int32()), ("who", pa.string())])
    target = open_target(str(tmp_path / "t"))
    target.open(NewTable("orders", ("n", "who")), NOW_MS)
    directories = ["n=9/who=a%2Fb", "n=10/who=__HIVE_DEFAULT_PARTITION__"]
    for number in range(2):
        files: list[StagedFile] = []
        for index, directory in enumerate(directories):
            path = Path(target.stage_directory()) / str(index)
            row = {"x": number, "_topic": "orders", "_partition": index, "_offset": number, "_timestamp": None}
            pq.write_table(pa.Table.from_pylist([row], pa.schema(list(columns)[:-2])), path)
            files.append(StagedFile(str(path), directory, 1, path.stat().st_size))
        target.commit(Batch({0: number + 1, 1: number + 1}, files, [], columns), NOW_MS)
    assert target.compact(before="10", min_files=2).files_before == 2, "9 sorts below 10"
    assert target.compact(before=None, min_files=2).files_before == 2
    read = [row for batch in target.read(["_partition", "_offset", "n", "who"]) for row in batch.to_pylist()]
    assert sorted((r["_partition"], r["_offset"], r["n"], r["who"]) for r in read if r["who"]) == [
        (0, 0, 9, "a/b"),
        (0, 1, 9, "a/b"),
    ]
    assert [(r["n"], r["who"]) for r in read if not r["who"]] == [(10, None)] * 2
    target.close()


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["makedirs", "create", "rename", "sync_dir"])
def test_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = LocalFiles(tmp_path)
    (tmp_path / "a").write_bytes(b"")
    for name in ("mkdir", "open", "rename"):
        monkeypatch.setattr(Path, name, full)
    monkeypatch.setattr(os, "fsync", full)
    calls = {
        "makedirs": lambda: files.makedirs("x/y"),
        "create": lambda: files.create("x", b"x"),
        "rename": lambda: files.rename("a", "b"),
        "sync_dir": lambda: files.sync_dir(""),
    }
    with pytest.raises(StorageFull, match="No space left"):
        calls[call]()


def test_rename_to_another_disk_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(tmp_path)
    (tmp_path / "a").write_bytes(b"content")
    rename = Path.rename

    def across(self: Path, to: Path) -> Path:
        if self.name == "a":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", across)
    files.rename("a", "b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"content"}


def test_local_files(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "table")
    files.makedirs("_eventbus/ledger")
    assert files.create("_eventbus/ledger/a.json", b"one")
    assert not files.create("_eventbus/ledger/a.json", b"two")
    assert files.read("_eventbus/ledger/a.json") == b"one"
    assert files.size("_eventbus/ledger/a.json") == 3
    files.makedirs("m=1")
    files.create("m=1/x", b"x")
    files.rename("m=1/x", "y")
    assert files.files_below("") == ["y"]
    assert files.files_below("", hidden=True) == ["_eventbus/ledger/a.json", "y"]
    files.remove("y")
    files.remove("y")
    files.sync_dir("")
    assert not files.exists("y")
    with pytest.raises(StorageError, match=r"cannot read .*nothing: No such file"):
        files.read("nothing")


def test_directory_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a table whose ledger cannot be read for a moment would be founded anew, or miss files."""

    def refused(path: object) -> Iterator[os.DirEntry[str]]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(StorageError, match=r"cannot list .*: Permission denied"):
        LocalFiles(tmp_path).files_below("")


def test_lock_names_its_holder_and_falls_with_it(tmp_path: Path) -> None:
    (tmp_path / "_eventbus").mkdir()
    path = tmp_path / "_eventbus" / "lock"
    with DirectoryLock(path), pytest.raises(LogLocked, match=rf"{tmp_path.name} is being landed by process \d+ on"):
        DirectoryLock(path).__enter__()
    with DirectoryLock(path):
        pass


def test_directory_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    with ReadLock(tmp_path / "missing").shared():
        pass


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    yield


def test_upsert_is_refused(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path / "t", TargetOptions())
    with pytest.raises(ConfigError, match="upsert= needs delta: or a database"):
        target.open(NewTable("orders", upsert=("_key",)), NOW_MS)
    assert not (tmp_path / "t").exists()
