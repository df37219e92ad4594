"""Jobs that run for a moment keep a directory as small as a server does."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus import EventBus
from eventbus.errors import InvalidTimestamp
from eventbus.testing import FakeClock
from eventbus.types import TopicPartition

DAY_MS = 86_400_000
STATE = TopicPartition("state", 0)
SHORT = {"segment.ms": DAY_MS, "retention.ms": DAY_MS}


def size_bytes(directory: Path, topic: str) -> int:
    return sum(file.stat().st_size for file in (directory / f"{topic}-0").glob("*.log"))


async def test_jobs_of_a_moment_delete_compact_and_expire_what_is_due(tmp_path: Path) -> None:
    """Records, keys, groups, transactional ids and producers do not accumulate."""
    clock, url = FakeClock(), f"file://{tmp_path}?fsync=os&transactional_id_expiration_ms={DAY_MS}"
    sizes: list[int] = []
    for run in range(6):
        bus = EventBus(f"{url}&offsets_retention_ms={DAY_MS}", clock=clock)
        bus.topic("old", configs=SHORT)
        bus.topic("state", configs={"cleanup.policy": "compact", "segment.ms": DAY_MS})
        async with bus:
            for number in range(20):
                bus.send_nowait("old", "v" * 1_000, timestamp_ms=clock() - (40 - 2 * run) * DAY_MS + number)
                bus.send_nowait("state", "v" * 1_000, key="one")
            async with bus.transaction(f"job-{run}"):
                await bus.send("state", "last", key="one")
            await bus.admin.alter_group_offsets(f"group-{run}", {STATE: 1})
            await clock.advance(seconds=5)
            # Of this run, and of the one before it: its close expired what the runs before that had left.
            assert len(await bus.admin.list_groups()) <= 2
            assert len(await bus.admin.list_transactions()) <= 2
            producers = await bus.admin.describe_producers([STATE])
            assert len(producers[STATE]) <= 4
        assert size_bytes(tmp_path, "old") == 0
        sizes.append(size_bytes(tmp_path, "state"))
        await clock.jump(seconds=2 * DAY_MS / 1_000)
    assert sizes[-1] < 3 * sizes[0], sizes


async def test_a_job_deletes_the_old_records_of_many_partitions(tmp_path: Path) -> None:
    """Retention deletes a few segments at a time; the close of the log goes on until all that are due are deleted."""
    clock = FakeClock()
    bus = EventBus(f"file://{tmp_path}?fsync=os", clock=clock)
    bus.topic("old", partitions=40, configs=SHORT)
    async with bus:
        for partition in range(40):
            await bus.send("old", "v", partition=partition, timestamp_ms=clock() - 2 * DAY_MS)
    assert {file.stat().st_size for file in tmp_path.glob("old-*/*.log")} == {0}


@pytest.mark.parametrize("ahead_seconds", [7_200, -7_200, 315_360_000, -315_360_000])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
async def test_fresh_records_stay_when_the_clock_was_wrong_at_opening(
    tmp_path: Path, ahead_seconds: int, kind: str
) -> None:
    """Neither the records' timestamps nor their age depend on the clock at the opening."""
    clock = FakeClock()
    clock.set_wall(seconds=ahead_seconds)
    bus = EventBus(f"file://{tmp_path}?fsync=os&log_retention_check_interval_ms=500", clock=clock)
    bus.topic("orders", configs={"retention.ms": 3_600_000, "message.timestamp.type": kind})
    async with bus:
        clock.set_wall(seconds=-ahead_seconds)
        for number in range(5):
            await bus.send("orders", f"o-{number}")
        await clock.advance(seconds=3)
        async with bus.new_consumer("orders") as consumer:
            assert [record.value async for record in consumer.until_end()] == [b"o-0", b"o-1", b"o-2", b"o-3", b"o-4"]
        await clock.jump(seconds=2 * 3_600)
        first = await bus.admin.list_offsets({TopicPartition("orders", 0): -2})
        assert [found.offset for found in first.values()] == [5]


async def test_a_timestamp_in_microseconds_is_refused_by_send() -> None:
    """The error names the unit. A LogAppendTime topic takes the time of the log, not the one given."""
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders")
    bus.topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    async with bus:
        with pytest.raises(InvalidTimestamp, match="Is it in microseconds"):
            await bus.send("orders", "bad", timestamp_ms=clock() * 1_000)
        await bus.send("orders", "good")
        assert (await bus.send("stamped", "x", timestamp_ms=1)).timestamp_ms == clock()
