"""What happens to a log whose files are removed or changed by hand: docs/internals/corrupting-a-log.md describes it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from eventbus import EventBus, errors

RECORDS = 300


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, closed cleanly."""
    import anyio

    folder = tmp_path_factory.mktemp("lab") / "log"

    async def write() -> None:
        async with EventBus(f"file://{folder}", fsync="os") as bus:
            await bus.admin.create_topic("orders", configs={"internal.segment.bytes": 4096})
            for number in range(RECORDS):
                await bus.send("orders", f"order {number}".ljust(60))
            async with bus.new_consumer("orders", group="billing") as consumer:
                await consumer.poll(max_records=100)
                await consumer.commit()

    anyio.run(write)
    return folder


@pytest.fixture
def copy(lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lab, tmp_path / "copy"))


async def records_in(log: Path) -> int:
    async with EventBus(f"file://{log}", fsync="os") as bus, bus.new_consumer("orders") as consumer:
        return len([record async for record in consumer.until_end()])


def remove(log: Path, *patterns: str) -> None:
    paths = [path for pattern in patterns for path in log.glob(pattern)]
    assert paths
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def change_a_byte(log: Path, segment: int) -> None:
    path = sorted(log.glob("orders-0/*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)


async def test_indexes_and_marks_are_made_again(copy: Path) -> None:
    remove(copy, "orders-0/*.index", "orders-0/*.timeindex", ".lock", ".full-disk-reserve")
    assert await records_in(copy) == RECORDS


async def test_a_removed_first_segment_is_warned_about(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove(copy, "orders-0/00000000000000000000.log")
    with caplog.at_level(logging.WARNING, "eventbus"):
        assert 0 < await records_in(copy) < RECORDS
    assert "orders-0" in caplog.text


@pytest.mark.parametrize(
    ("removed", "error"),
    [
        ("orders-0", errors.PartitionOffline),
        ("__consumer_offsets-*", errors.CorruptRecord),  # groups would start again
        ("__cluster_metadata-0", errors.CorruptRecord),
    ],
)
async def test_a_removed_directory_is_not_taken_for_an_empty_one(
    copy: Path, removed: str, error: type[Exception]
) -> None:
    remove(copy, removed)
    with pytest.raises(error):
        await records_in(copy)


@pytest.mark.parametrize(
    ("segment", "error"),
    [(-1, errors.PartitionOffline), (3, errors.CorruptRecord)],
    ids=["the last segment is read at opening", "a closed one when a consumer gets there"],
)
async def test_a_changed_byte_is_never_cut(copy: Path, segment: int, error: type[Exception]) -> None:
    change_a_byte(copy, segment)
    with pytest.raises(error):
        await records_in(copy)


async def test_without_its_checkpoint_damage_at_the_end_is_taken_for_a_torn_write(copy: Path) -> None:
    """The hazard that the page warns of: an acknowledged record is lost."""
    remove(copy, "recovery-point-offset-checkpoint", ".kafka_cleanshutdown")
    change_a_byte(copy, -1)
    assert await records_in(copy) == RECORDS - 1
