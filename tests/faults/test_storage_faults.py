"""The disk fails under a running bus: what was acknowledged stays, what was not is said, and work goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from eventbus import EventBus, TopicPartition
from eventbus.errors import (
    ConfigError,
    CorruptRecord,
    LogLocked,
    LogPoisoned,
    PartitionOffline,
    StorageError,
    StorageFull,
)
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full, io_error
from tests.support import values_of

T0 = TopicPartition("t", 0)


async def test_a_full_disk_is_said_and_heals_without_a_restart() -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with bus_on(storage) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"before")
        storage.fail_at = storage.calls_count + 1
        with pytest.raises(StorageFull, match="t-0"):
            await bus.send("t", b"lost 1")
        batch = bus.send_nowait("t", b"lost 2")
        with pytest.raises(StorageFull):
            await batch
        with pytest.raises(StorageFull):
            await bus.send_many("t", [b"lost 3"] * 10)
        assert await values_of(bus, "t") == [b"before"]  # reading goes on meanwhile
        storage.heal()
        assert (await bus.send("t", b"after")).offset == 1
        assert await values_of(bus, "t") == [b"before", b"after"]


async def test_a_failed_flush_is_never_acknowledged_nor_tried_again() -> None:
    disk = CrashStorage()
    storage = FaultyStorage(disk, error=io_error, only=("sync",))
    bus = bus_on(storage)
    async with bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"safe")
        storage.fail_at = storage.calls_count + 1
        with pytest.raises(StorageError):
            await bus.send("t", b"unknown")
        storage.heal()  # the next fsync would report success: it must not be asked
        for _ in range(3):
            with pytest.raises(LogPoisoned, match="open it again"):
                await bus.send("t", b"refused")
        assert await values_of(bus, "t") == [b"safe"]
    for seed in range(20):
        async with bus_on(disk.crash(Random(seed))) as reopened:
            assert (await values_of(reopened, "t"))[:1] == [b"safe"]
            await reopened.send("t", b"goes on")


@pytest.mark.system
@pytest.mark.parametrize("name", ["append", "sync", "open", "sync_dir"])
async def test_every_call_of_a_session_fails_once(name: str) -> None:
    """The n-th call fails, for every n: nothing acknowledged is lost, no error escapes that is not ours."""
    for fail_at in range(1, 200):
        disk = CrashStorage()
        storage = FaultyStorage(disk, fail_at=fail_at, error=io_error, only=(name,))
        acknowledged: list[bytes] = []
        try:
            async with bus_on(storage) as bus:
                await bus.admin.create_topic("t", configs={"internal.segment.bytes": 500})
                for number in range(12):
                    try:
                        await bus.send("t", b"%d" % number * 20)
                        acknowledged.append(b"%d" % number * 20)
                    except StorageError:
                        continue
                async with bus.new_consumer("t", group="g") as consumer:
                    await consumer.poll(timeout_ms=0)
                    await consumer.commit()
        except StorageError:
            pass
        failed = storage.failures_count
        storage.heal()
        async with bus_on(disk.crash(Random(fail_at))) as reopened:
            if acknowledged:
                found = await values_of(reopened, "t")
                missing = [value for value in acknowledged if found.count(value) != 1]
                assert not missing, (name, fail_at, missing)
        if not failed:
            return
    pytest.fail("the session never got through")


@pytest.mark.system
async def test_a_directory_held_by_another_process_names_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    holder = (
        "import anyio, sys\n"
        "from eventbus import EventBus\n"
        "async def main():\n"
        f"    async with EventBus({url!r}):\n"
        "        print('held', flush=True)\n"
        "        await anyio.to_thread.run_sync(sys.stdin.read)\n"
        "anyio.run(main)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(LogLocked, match=rf"{process.pid}.*eventbus serve"):
            async with EventBus(url):
                pass
        assert process.stdin is not None
        process.stdin.close()
    async with EventBus(url) as bus:  # free again
        await bus.admin.create_topic("t")


async def test_a_read_only_place_that_even_root_cannot_write() -> None:
    with pytest.raises(ConfigError, match=r"/proc/eventbus cannot be used as a log.*may write to"):
        async with EventBus("file:///proc/eventbus"):
            pass


@pytest.mark.system
async def test_a_flipped_byte_below_the_watermark_is_an_error_never_silence(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url) as bus:
        await bus.admin.create_topic("t")
        for number in range(5):
            await bus.send("t", b"value %d" % number)
    segment = tmp_path / "log" / "t-0" / f"{0:020d}.log"
    whole = segment.read_bytes()
    size = len(whole) // 5
    for position in range(size, 2 * size):  # every byte of the second batch
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        segment.write_bytes(damaged)
        try:
            async with EventBus(url) as bus:
                values = await values_of(bus, "t")
        except (CorruptRecord, PartitionOffline) as error:
            assert "t-0" in str(error)
            continue
        # Only the leader epoch (bytes 12 to 15 of a batch) means nothing here.
        assert 12 <= position - size < 16 and values == [b"value %d" % n for n in range(5)]
    segment.write_bytes(whole)
    async with EventBus(url) as bus:
        assert len(await values_of(bus, "t")) == 5


async def test_a_torn_tail_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url, fsync="os") as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"whole")
    root = tmp_path / "log"
    (root / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (root / name).unlink(missing_ok=True)
    segment = root / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:40])
    async with EventBus(url) as bus:
        assert await values_of(bus, "t") == [b"whole"]
        assert (await bus.send("t", b"next")).offset == 1
    assert "t-0" in caplog.text and "cut" in caplog.text


async def test_lost_indexes_are_rebuilt(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url) as bus:
        await bus.admin.create_topic("t", configs={"index.interval.bytes": 100, "retention.ms": -1})  # records of 1970
        for number in range(50):
            await bus.send("t", b"x" * 50, timestamp_ms=1000 + number)
    for index in (tmp_path / "log" / "t-0").glob("*index"):
        index.write_bytes(os.urandom(len(index.read_bytes()) or 24))
    async with EventBus(url) as bus:
        found = await bus.admin.list_offsets({T0: 1033})
        assert found[T0] == (33, 1033)
        assert len(await values_of(bus, "t")) == 50


async def test_a_damaged_partition_makes_health_degraded_and_stops_nobody_else(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    async with EventBus(url) as bus:
        for topic in ("t", "u"):
            await bus.admin.create_topic(topic)
            await bus.send(topic, b"x")
    segment = tmp_path / "log" / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1] + b"\xee")
    async with EventBus(url) as bus:
        health = await bus.health()
        assert health.status == "degraded"
        assert "t-0 is damaged" in health.reason
        assert "eventbus log repair" in health.reason
        with pytest.raises(PartitionOffline):
            await bus.send("t", b"y")
        with pytest.raises(PartitionOffline):
            await values_of(bus, "t")
        await bus.send("u", b"y")
        async with bus.new_consumer("u") as consumer:
            assert [record.value async for record in consumer.until_end()] == [b"x", b"y"]
        await bus.admin.delete_topics(["t"])
        assert (await bus.health()).status == "ok"
