"""Let readers in other processes read a log that this process has open."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.backends.shared_reader import readable_outside
from eventbus.errors import ConfigError, StorageFull
from eventbus.log.memory import MemoryStorage
from eventbus.log.reader import LogReader
from eventbus.records import fetched_records
from eventbus.testing import FakeClock
from eventbus.testing.storage import disk_full

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda test: anyio.run(test, backend=request.param)


def declared(url: str, **config: Any) -> EventBus:
    bus = EventBus(url, **config)
    bus.topic("orders", partitions=1)
    return bus


def values(directory: str) -> list[bytes | None]:
    reader = LogReader(directory)
    first, end = reader.offsets("orders")[0]
    chunks = reader.read("orders", 0, first, end)
    return [record.value for chunk in chunks for record in fetched_records(chunk, "orders", 0, first)]


def test_a_log_in_memory_is_a_directory_for_as_long_as_it_is_read(run: Run) -> None:
    async def test() -> None:
        async with declared("memory://shop") as bus:
            await bus.send("orders", b"1")
            with readable_outside("memory://shop") as directory:
                assert values(directory) == [b"1"]
                assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
                assert "-shop-" in directory
            assert not Path(directory).exists()

    run(test)


def test_it_grows_with_the_log_and_tells_nothing_that_is_not_committed(run: Run) -> None:
    async def test() -> None:
        clock = FakeClock()
        bus = declared("memory://", clock=clock)

        def land() -> str:
            """Read in a thread, like all slow work."""
            with readable_outside("memory://") as directory:
                assert values(directory) == [b"1", b"2"]
                anyio.from_thread.run(go_on)
                assert values(directory) == [b"1", b"2", b"3", b"5"]
                return directory

        async def go_on() -> None:
            await bus.send("orders", b"3")
            with pytest.raises(KeyError):
                async with bus.transaction("a") as tx:
                    tx.send_nowait("orders", b"4")
                    raise KeyError
            await bus.send("orders", b"5")
            await clock.advance(seconds=1)

        async with bus:
            await bus.send_many("orders", [b"1", b"2"])
            directory = await anyio.to_thread.run_sync(land)
            await bus.send("orders", b"6")
            await clock.advance(seconds=1)
        assert not Path(directory).exists()

    run(test)


def test_a_directory_that_is_written_here_says_at_once_how_far_it_goes(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        clock = FakeClock()  # it stands: nothing is published by time
        async with declared(f"file://{tmp_path}/a%20log", clock=clock) as bus:
            for number, url in enumerate((f"file://{tmp_path}/a%20log", f"{tmp_path}/a log")):
                await bus.send("orders", b"%d" % number)
                with readable_outside(url) as readable:
                    assert readable == url
                assert len(values(f"{tmp_path}/a log")) == number + 1

    run(test)


@pytest.mark.parametrize("url", ["./data", "file:///nowhere", "kafka://broker:9092"])
def test_what_nobody_has_open_here_is_read_where_it_is(url: str) -> None:
    with readable_outside(url) as readable:
        assert readable == url


def test_a_log_in_memory_without_a_name_is_meant_where_there_is_but_one() -> None:
    with declared("memory://").blocking() as b:
        b.send("orders", b"1")
        with readable_outside("memory://") as directory:
            assert values(directory) == [b"1"]
        with (
            EventBus("memory://").blocking(),
            pytest.raises(ConfigError, match=r"2 buses of this process have a memory:// of their own: give .* a name"),
            readable_outside("memory://"),
        ):
            pass


def test_a_log_in_memory_that_is_not_open_here_is_told_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError, match=r"memory://shop is not open in this process .no log in memory is.: such a log"
    ):
        readable_outside("memory://shop").__enter__()
    with (
        EventBus("memory://bank").blocking(),
        pytest.raises(ConfigError, match=r"memory://shop is not open in this process \(open are memory://bank\)"),
    ):
        readable_outside("memory://shop").__enter__()


def test_a_bus_that_closes_meanwhile_leaves_its_records_to_who_reads_them() -> None:
    with declared("memory://shop").blocking() as b:
        b.send("orders", b"1")
        reading = readable_outside("memory://shop")
        directory = reading.__enter__()
    assert values(directory) == [b"1"]
    reading.__exit__(None, None, None)
    assert not Path(directory).exists()


def test_no_room_for_a_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryStorage, to: object) -> None:
        raise disk_full()

    monkeypatch.setattr(MemoryStorage, "copy_to", full)
    with (
        EventBus("memory://shop").blocking(),
        pytest.raises(StorageFull, match=r"copying memory://shop to .*disk is full"),
    ):
        readable_outside("memory://shop").__enter__()
