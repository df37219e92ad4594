"""The commit protocol of Parquet tables against power cuts: whatever was not synced may be lost, or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.files import Files
from spark_sinks.targets.parquet.target import ParquetTarget
from spark_sinks.targets.target import Batch, NewTable, StagedFile
from tests.spark.targets.disk import FakeDisk, FakeFiles
from tests.spark.targets.kit import Crash, Record
from tests.tiers import quick

pytestmark = pytest.mark.system

PARTITIONS = 2
RECORDS = 12  # per partition
PER_BATCH = 6
EVERYTHING = sorted((p, offset) for p in range(PARTITIONS) for offset in range(RECORDS) if offset % 5 != 4)
REFUSED = sorted((p, offset) for p in range(PARTITIONS) for offset in range(RECORDS) if offset % 5 == 4)
COLUMNS = pa.schema([("_offset", pa.int64()), ("m", pa.int32())])


def land_all(disk: FakeDisk, root: Path, months: int = 3, *, compact: bool = True) -> None:
    """A landing from where it is to its end. A run after a crash may be cut into other files."""

    def files(directory: Path) -> Files:
        return FakeFiles(disk, directory)

    (root / "_eventbus").mkdir(exist_ok=True, parents=True)  # where the lock is, which needs a real disk
    target = ParquetTarget(root, TargetOptions(), make_files=files, rewrite=disk.rewrite)
    try:
        state = target.open(NewTable("t", ("m",)), 1)
        while min(state.offsets.get(p, 0) for p in range(PARTITIONS)) < RECORDS:
            start = state.offsets.get(0, 0)
            fresh = [(p, o) for p in range(PARTITIONS) for o in range(start, start + PER_BATCH)]
            stage = target.stage_directory()
            staged: list[StagedFile] = []
            for month in range(1, months + 1):
                part = [r for r in fresh if r[1] % months + 1 == month and r not in REFUSED]
                disk.write(f"{stage}/{month}.staged", part)
                staged.append(StagedFile(f"{stage}/{month}.staged", f"m={month}", len(part), 10))
            refused = [r for r in fresh if r in REFUSED]
            disk.write(f"{stage}/refused", refused)
            bad = [StagedFile(f"{stage}/refused", "", len(refused), 10)]
            end = start + PER_BATCH
            state = target.commit(Batch(dict.fromkeys(range(PARTITIONS), end), staged, bad, COLUMNS), 1)
        if compact:
            target.compact(before="3", min_files=2)
    finally:
        target.close()


def visible(disk: FakeDisk, directory: Path) -> list[Record]:
    """What a reader of plain directories sees."""
    files = FakeFiles(disk, directory)
    paths = [path for path in files.files_below("") if path.endswith(".parquet")]
    return sorted(tuple(record) for path in paths for record in msgspec.json.decode(files.read(path)))


def check(disk: FakeDisk, root: Path) -> None:
    assert visible(disk, root) == EVERYTHING
    assert visible(disk, root.with_name(root.name + "__quarantine")) == REFUSED
    left = [path for path in disk.live if "/stage/" in path or "__compaction/" in path]
    assert not left


def crashed_at(disk: FakeDisk, root: Path, step: int) -> FakeDisk:
    disk.crash_at = step
    with pytest.raises(Crash):
        land_all(disk, root)
    return disk


@pytest.fixture
def steps(tmp_path: Path) -> int:
    disk = FakeDisk()
    land_all(disk, tmp_path / "counted")
    check(disk, tmp_path / "counted")
    return disk.steps


@pytest.mark.parametrize(
    "survivor", quick([FakeDisk.after_kill, *(lambda d, s=s: d.after_power_cut(s) for s in range(6))], 3)
)
def test_crash_before_every_step_then_run_again(
    tmp_path: Path, steps: int, survivor: Callable[[FakeDisk], FakeDisk]
) -> None:
    root = tmp_path / "t"
    for step in range(steps):
        disk = survivor(crashed_at(FakeDisk(), root, step))
        seen = visible(disk, root)
        assert len(seen) == len(set(seen)), f"a reader sees records twice after step {step}"
        land_all(disk, root, months=2 if step % 2 else 3)
        check(disk, root)


@pytest.mark.parametrize("every", quick([10, 3], 1))
def test_crash_of_the_recovery_from_a_crash(tmp_path: Path, steps: int, every: int) -> None:
    root = tmp_path / "t"
    for first in range(0, steps, every):
        base = crashed_at(FakeDisk(), root, first).after_power_cut(first).live
        second = 0
        while True:
            disk = FakeDisk(base)
            disk.crash_at = second
            try:
                land_all(disk, root, months=2, compact=False)
            except Crash:
                again = disk.after_power_cut(second)
                land_all(again, root)
                check(again, root)
                second += 4
                continue
            break


def test_second_run_adds_no_files_but_its_entry(tmp_path: Path) -> None:
    disk = FakeDisk()
    land_all(disk, tmp_path)
    before = dict(disk.live)
    land_all(disk, tmp_path)
    assert {name.rpartition("/")[0] for name in {*disk.live} - {*before}} == {f"{tmp_path.as_posix()}/_eventbus/ledger"}
    assert all(disk.live[name] == data for name, data in before.items())
