"""The commit protocol of a table, with the crash put after every single step of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from eventbus.errors import ConfigError, CorruptRecord, LogLocked
from spark_sinks.targets.files import DirectoryLock, LocalFiles
from spark_sinks.targets.ledger import META, Ledger, StagedFile, entries

Record = tuple[int, int]  # partition, offset
PARTITIONS = 2
RECORDS = 20  # per partition
PER_BATCH = 8


class Crash(Exception):
    """The process is gone."""


class FakeFiles:
    """Files whose directory entries are durable only after `sync_dir`; it dies before the n-th step."""

    def __init__(self, durable: dict[str, bytes] | None = None) -> None:
        self.durable = dict(durable or {})
        self.live = dict(self.durable)
        self.steps_left = 10**9

    def step(self) -> None:
        if self.steps_left == 0:
            raise Crash
        self.steps_left -= 1

    def exists(self, path: str) -> bool:
        return path in self.live

    def read(self, path: str) -> bytes:
        return self.live[path]

    def files_below(self, path: str, *, hidden: bool = False) -> list[str]:
        prefix = f"{path}/" if path else ""
        names = [name for name in self.live if name.startswith(prefix)]
        below = [PurePosixPath(name[len(prefix) :]).parts[:-1] for name in names]
        return sorted(
            name
            for name, parts in zip(names, below, strict=True)
            if hidden or not any(part.startswith(("_", ".")) for part in parts)
        )

    def makedirs(self, path: str) -> None:
        self.step()

    def create(self, path: str, data: bytes) -> bool:
        directory, name = path.rsplit("/", 1)
        temporary = f"{directory}/.{name}.1"
        self.step()
        self.live[temporary] = data
        self.step()
        if path in self.live:
            return False
        self.live[path] = data
        self.step()
        del self.live[temporary]
        self.sync_dir(directory)
        return True

    def rename(self, source: str, target: str) -> None:
        self.step()
        self.live[target] = self.live.pop(source)

    def remove(self, path: str) -> None:
        self.step()
        del self.live[path]

    def sync_dir(self, path: str) -> None:
        self.step()
        for name in {*self.live, *self.durable}:
            if name.rpartition("/")[0] == path:
                _set(self.durable, name, self.live.get(name))

    def write_staged(self, path: str, records: list[Record]) -> None:
        """What a task does: the content is synced, the entry of its directory is not."""
        self.step()
        self.live[path] = msgspec.json.encode(records)

    def after_kill(self) -> FakeFiles:
        """What is there after the death of the process alone: everything."""
        return FakeFiles(self.live)

    def after_power_cut(self, seed: int) -> FakeFiles:
        """What is there after a power cut: any mixture of old and new among the entries not synced."""
        choose = random.Random(seed)
        left = dict(self.durable)
        for name in sorted({*self.live, *self.durable}):
            if self.live.get(name) != self.durable.get(name) and choose.random() < 0.5:
                _set(left, name, self.live.get(name))
        return FakeFiles(left)


def _set(entries: dict[str, bytes], name: str, data: bytes | None) -> None:
    if data is None:
        entries.pop(name, None)
    else:
        entries[name] = data


def land_all(files: FakeFiles, months: int = 3) -> None:
    """A landing from the start to its end, as `land` does it but without Spark.

    A run after a crash may be cut into other files, so that it does not write over what the crash left.
    """
    ledger = Ledger.open(files, topic="t", partition_by=["m"], new_id="0a0b0c0d")
    while min(ledger.offsets.get(p, 0) for p in range(PARTITIONS)) < RECORDS:
        stage = ledger.stage_directory()
        start = {p: ledger.offsets.get(p, 0) for p in range(PARTITIONS)}
        end = {p: min(RECORDS, start[p] + PER_BATCH) for p in start}
        records = [(p, offset) for p in start for offset in range(start[p], end[p])]
        staged: list[StagedFile] = []
        for month in range(1, months + 1):
            part = [record for record in records if record[1] % months + 1 == month]
            path = f"{stage}/attempt-{month}.staged"
            files.write_staged(path, part)
            staged.append(StagedFile(path, f"m={month}", len(part), 10))
        ledger.commit(end, staged)


def visible(files: FakeFiles) -> list[Record]:
    """What a reader of plain directories sees."""
    paths = [path for path in files.files_below("") if path.endswith(".parquet")]
    return sorted(tuple(record) for path in paths for record in msgspec.json.decode(files.read(path)))


EVERYTHING = sorted((p, offset) for p in range(PARTITIONS) for offset in range(RECORDS))


def steps_of_a_run() -> int:
    files = FakeFiles()
    land_all(files)
    assert visible(files) == EVERYTHING
    return 10**9 - files.steps_left


def crashed_at(files: FakeFiles, step: int) -> FakeFiles:
    files.steps_left = step
    with pytest.raises(Crash):
        land_all(files)
    return files


def check(files: FakeFiles) -> None:
    """Finished: each record once, and the ledger names exactly the files there are."""
    assert visible(files) == EVERYTHING
    landed = entries(files)
    assert sorted(file.path for entry in landed for file in entry.files) == [
        path for path in files.files_below("") if path.endswith(".parquet")
    ]
    assert [entry.sequence for entry in landed] == list(range(len(landed)))
    assert not files.files_below(f"{META}/stage", hidden=True)
    assert sum(entry.rows for entry in landed) == len(EVERYTHING)


@pytest.mark.parametrize("survivor", [FakeFiles.after_kill, *(lambda f, s=s: f.after_power_cut(s) for s in range(6))])
def test_crash_before_every_step_then_run_again(survivor: Callable[[FakeFiles], FakeFiles]) -> None:
    for step in range(steps_of_a_run()):
        files = survivor(crashed_at(FakeFiles(), step))
        land_all(files, months=1)
        check(files)


def test_reader_never_sees_a_record_twice_at_the_moment_of_a_kill() -> None:
    for step in range(steps_of_a_run()):
        seen = visible(crashed_at(FakeFiles(), step).after_kill())
        assert len(seen) == len(set(seen))


def test_crash_of_the_recovery_from_a_crash() -> None:
    for first in range(0, steps_of_a_run(), 2):
        base = crashed_at(FakeFiles(), first).after_power_cut(first).live
        second = 0
        while True:
            files = FakeFiles(base)
            files.steps_left = second
            try:
                land_all(files, months=2)
            except Crash:
                again = files.after_power_cut(second)
                land_all(again, months=1)
                check(again)
                second += 1
                continue
            check(files)
            break


def test_second_run_adds_nothing() -> None:
    files = FakeFiles()
    land_all(files)
    before = dict(files.live)
    land_all(files)
    assert files.live == before


def test_two_writers_of_one_batch_cannot_both_commit() -> None:
    files = FakeFiles()
    one = Ledger.open(files, topic="t", partition_by=[], new_id="0a0b0c0d")
    other = Ledger.open(files, topic="t", partition_by=[], new_id="ffffffff")
    assert other.table.id == "0a0b0c0d"
    one.commit({0: 5}, [])
    with pytest.raises(LogLocked, match="batch 0"):
        other.commit({0: 5}, [])


def test_offsets_of_partitions_not_in_a_batch_stay() -> None:
    files = FakeFiles()
    ledger = Ledger.open(files, topic="t", partition_by=[], new_id="0a0b0c0d")
    ledger.commit({0: 5, 1: 7}, [])
    ledger.commit({1: 9}, [])
    assert Ledger.open(files, topic="t", partition_by=[], new_id="0a0b0c0d").offsets == {0: 5, 1: 9}


@pytest.mark.parametrize(
    ("topic", "partition_by", "text"),
    [("u", ["m"], "holds topic 't', not 'u'"), ("t", ["dt"], r"partitioned by \['m'\], not by \['dt'\]")],
)
def test_table_of_another_landing_is_refused(topic: str, partition_by: list[str], text: str) -> None:
    files = FakeFiles()
    land_all(files)
    with pytest.raises(ConfigError, match=text):
        Ledger.open(files, topic=topic, partition_by=partition_by, new_id="0a0b0c0d")


def test_files_without_their_ledger_are_never_deleted() -> None:
    files = FakeFiles()
    land_all(files)
    for path in files.files_below(META):
        del files.live[path]
    before = dict(files.live)
    with pytest.raises(CorruptRecord, match="restore the directory _eventbus"):
        Ledger.open(files, topic="t", partition_by=["m"], new_id="12345678")
    assert all(files.live[path] == data for path, data in before.items())


def test_older_copy_of_the_ledger_is_refused() -> None:
    files = FakeFiles()
    land_all(files)
    for path in files.files_below(f"{META}/ledger")[1:]:
        del files.live[path]
    with pytest.raises(CorruptRecord, match="not here any more"):
        Ledger.open(files, topic="t", partition_by=["m"], new_id="0a0b0c0d")


def test_gap_and_damage_in_the_ledger_are_named() -> None:
    files = FakeFiles()
    land_all(files)
    first, *_, last = files.files_below(f"{META}/ledger")
    damaged = FakeFiles(files.live)
    damaged.live[last] = files.live[last][:20]
    with pytest.raises(CorruptRecord, match=rf"{last} is damaged"):
        Ledger.open(damaged, topic="t", partition_by=["m"], new_id="0a0b0c0d")
    del files.live[first]
    with pytest.raises(CorruptRecord, match="entry 0 is missing"):
        Ledger.open(files, topic="t", partition_by=["m"], new_id="0a0b0c0d")


def test_foreign_files_in_the_table_are_left_alone() -> None:
    files = FakeFiles({"m=1/part-00000-abc.c000.snappy.parquet": b"[]", "notes.txt": b"[]"})
    land_all(files)
    assert "notes.txt" in files.live
    assert "m=1/part-00000-abc.c000.snappy.parquet" in files.live


def test_local_files_do_what_the_fake_does(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "table")
    files.makedirs("_eventbus/ledger")
    assert files.create("_eventbus/ledger/a.json", b"one")
    assert not files.create("_eventbus/ledger/a.json", b"two")
    assert files.read("_eventbus/ledger/a.json") == b"one"
    files.makedirs("m=1")
    files.create("m=1/x", b"x")
    files.rename("m=1/x", "y")
    assert files.files_below("") == ["y"]
    assert files.files_below("", hidden=True) == ["_eventbus/ledger/a.json", "y"]
    files.remove("y")
    files.remove("y")
    files.sync_dir("")
    assert not files.exists("y")
    with pytest.raises(Exception, match=r"cannot read .*nothing: No such file"):
        files.read("nothing")


def test_lock_names_its_holder_and_falls_with_it(tmp_path: Path) -> None:
    (tmp_path / META).mkdir()
    path = tmp_path / META / "lock"
    with DirectoryLock(path), pytest.raises(LogLocked, match=rf"{tmp_path.name} is being landed by process \d+ on"):
        DirectoryLock(path).__enter__()
    with DirectoryLock(path):
        pass
