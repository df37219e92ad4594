"""Ready-made middleware, around handlers of one record and of batches, by the clock of the bus."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.client.handling.middleware import CallNext
from eventbus.errors import ConfigError, HandlerError
from eventbus.middleware import ClaimCheck, ClaimError, Deduplication, Directory, Logging, RateLimit
from eventbus.testing import TestBus
from tests.client.fakes import on_both


async def test_logging_tells_where_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "eventbus.handled")
    bus = TestBus(auto_create_topics=True, middleware=[Logging(starts=True)])

    @bus.consumer("t", group="one", on_error="skip")
    async def one(value: str) -> None:
        if value == "bad":
            raise ValueError(value)
        await bus.clock.sleep(0.25)

    async with bus:
        await bus.send("t", "good")
        await bus.clock.advance(seconds=1)
        await bus.send("t", "bad")
        await bus.log.drain()
    told = [record for record in caplog.records if record.name == "eventbus.handled"]
    assert [record.getMessage() for record in told] == [
        "t-0 offset 0 begins",
        "t-0 offset 0 in 250.0 ms",
        "t-0 offset 1 begins",
        "t-0 offset 1 failed in 0.0 ms: ValueError('bad')",
    ]
    assert (told[1].__dict__["topic"], told[1].__dict__["offset"], told[1].__dict__["duration_ms"]) == ("t", 0, 250.0)


async def test_logging_takes_samples_and_batches(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.handled")
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("t", group="all", batch=True, middleware=[Logging()])
    async def batch(values: list[int]) -> None: ...

    @bus.consumer("t", group="some", middleware=[Logging(every=2, logger="eventbus.handled.some")])
    def some(value: int) -> None: ...

    async with bus:
        await bus.send_many("t", [1, 2, 3, 4, 5])
        await bus.log.drain()
    names = [record.name for record in caplog.records if record.name.startswith("eventbus.handled")]
    assert names.count("eventbus.handled.some") == 2
    assert "t-0 offset 0 to 4 (5 records) in" in caplog.text


@on_both
async def test_a_duplicate_is_passed_over_by_each_handler_for_itself() -> None:
    seen: list[tuple[str, str]] = []
    once = Deduplication("id", window=60)
    bus = TestBus(auto_create_topics=True, middleware=[once])

    @bus.consumer("t", group="one")
    async def one(value: str) -> None:
        seen.append(("one", value))

    @bus.consumer("t", group="many", batch=True)
    def many(values: list[str]) -> None:
        seen.extend(("many", value) for value in values)

    async with bus:
        for value, number in (("a", "1"), ("again", "1"), ("b", "2")):
            await bus.send("t", value, headers={"id": number})
            await bus.log.drain()  # for the batch handler a fetch each
        await bus.send("t", "without")
        await bus.send("t", "without")
        await bus.log.drain()
        for name in ("one", "many"):
            assert [value for who, value in seen if who == name] == ["a", "b", "without", "without"]
        await bus.clock.advance(seconds=61)
        await bus.send("t", "late", headers={"id": "1"})
        await bus.log.drain()
        assert ("one", "late") in seen
    assert once.passed_over == 2


async def test_a_request_that_is_sent_twice_gets_the_same_reply() -> None:
    bus, charged = TestBus(auto_create_topics=True), list[int]()

    @bus.consumer("charge", group="g", replies=True, middleware=[Deduplication("id")])
    async def charge(cents: int) -> str:
        charged.append(cents)
        return f"receipt {len(charged)}"

    async with bus:
        for number, receipt in (("1", "receipt 1"), ("1", "receipt 1"), ("2", "receipt 2")):
            assert await bus.request("charge", 5, returns=str, headers={"id": number}) == receipt
    assert charged == [5, 5]


async def test_what_failed_is_no_duplicate_and_neither_is_the_record_itself() -> None:
    tries: list[int] = []
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("t", group="g", retry=1, middleware=[Deduplication(lambda record: record.key, count=1)])
    async def handle(value: int) -> None:
        tries.append(value)
        if len(tries) == 1:
            raise ValueError

    async with bus:
        await bus.send("t", 1, key="k")
        await bus.send("t", 2, key="k")
        await bus.log.drain()
        bus.log.faults.redeliver("g", "t", offset=0)
        await bus.send("t", 3, key="other")  # takes the only place in the memory
        await bus.send("t", 4, key="k")
        await bus.log.drain()
    assert tries == [1, 1, 1, 3, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"exactly_once": True},
        {"order": "key", "concurrency": 4},
        {"delivery": "at-most-once"},
        {"exactly_once": True, "batch": 1},
        {"retry": 1, "batch": 2},
    ],
)
async def test_duplicates_are_known_however_the_handler_is_called(options: dict[str, Any]) -> None:
    seen: list[Any] = []
    bus = TestBus(auto_create_topics=True, middleware=[Deduplication("id")])

    if "batch" in options:

        @bus.consumer("t", group="g", **options)
        async def handle_batch(values: list[str]) -> None:
            seen.extend(values)

    else:

        @bus.consumer("t", group="g", **options)
        def handle(value: str) -> None:
            seen.append(value)

    async with bus:
        for value in ("a", "b", "again"):
            await bus.send("t", value, key="k", headers={"id": "2" if value == "b" else "1"})
        await bus.log.drain()
    assert seen == ["a", "b"]


@on_both
async def test_a_rate_limit_waits_by_the_clock_and_keeps_the_order() -> None:
    seen: list[tuple[float, int]] = []
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("t", group="g", middleware=[RateLimit(2, burst=2)])
    async def handle(value: int) -> None:
        seen.append((bus.clock.current_time() - began, value))

    async with bus:
        began = bus.clock.current_time()
        await bus.send_many("t", range(5))
        await bus.clock.advance(seconds=10)
        assert seen == [(0, 0), (0, 1), (0.5, 2), (1.0, 3), (1.5, 4)]
        await bus.send_many("t", range(3))
        await bus.clock.advance(seconds=10)
        assert [at for at, _ in seen[5:]] == [10, 10, 10.5]


async def test_a_rate_limit_counts_the_records_of_a_batch() -> None:
    seen: list[tuple[float, int]] = []
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("t", group="g", batch=2, middleware=[RateLimit(1, burst=2)])
    async def handle(values: list[int]) -> None:
        seen.append((bus.clock.current_time() - began, len(values)))

    async with bus:
        began = bus.clock.current_time()
        await bus.send_many("t", range(4))
        await bus.clock.advance(seconds=10)
        await bus.log.drain()
    assert seen == [(0, 2), (2, 2)]


@pytest.mark.parametrize("options", [{}, {"order": "key", "concurrency": 12}])
async def test_who_waits_for_the_rate_has_not_failed(options: dict[str, Any]) -> None:
    """What waited for longer than the timeout was tried again until its retries, and their budget, were used up."""
    seen: list[float] = []
    bus = TestBus(auto_create_topics=True)
    bus.topic("t", partitions=8)

    @bus.consumer("t", group="g", timeout=0.3, retry=Retry(immediate=3), middleware=[RateLimit(1)], **options)
    async def handle(value: int) -> None:
        seen.append(bus.clock.current_time() - began)

    async with bus:
        began = bus.clock.current_time()
        for number in range(12):
            await bus.send("t", number, key=b"%d" % number, partition=number % 8)
        await bus.clock.advance(seconds=12)
        assert seen == [*range(12)]


async def test_the_time_before_and_behind_a_wait_for_the_rate_counts() -> None:
    bus, slept = TestBus(auto_create_topics=True), list[int]()

    async def before(record: ConsumerRecord, call_next: CallNext) -> Any:
        await bus.clock.sleep(0.2)
        return await call_next(record)

    @bus.consumer("t", group="g", timeout=0.3, on_error="skip", middleware=[before, RateLimit(1)])
    async def handle(value: int) -> None:
        await bus.clock.sleep(value / 100)
        slept.append(value)

    async with bus:
        await bus.send_many("t", [5, 7, 20, 8])
        await bus.clock.advance(seconds=10)
    assert slept == [5, 7, 8]


class Video(msgspec.Struct):
    title: str
    frames: str


async def test_large_values_are_put_into_the_store_in_a_thread_and_overtake_nobody(tmp_path: Path) -> None:
    threads: list[threading.Thread] = []

    class Slow(Directory):
        def put(self, name: str, data: bytes) -> None:
            threads.append(threading.current_thread())
            super().put(name, data)

    bus = TestBus(auto_create_topics=True)
    bus.include(ClaimCheck(Slow(tmp_path), above_bytes=100))

    @bus.consumer("in", group="one")
    @bus.producer("out")
    async def enlarge(value: bytes) -> bytes:
        return value * 3

    async with bus:
        async with anyio.create_task_group() as tasks:
            for size in (500, 1, 400, 2):
                tasks.start_soon(bus.send, "in", b"x" * size)
        await bus.send_many("in", [b"y" * 300, b"y"])
        await bus.drain()
        sizes = [int(one.header("claim-check") or 0) or len(one.value or b"") for one in bus.log.records("in")]
        assert sizes == [500, 1, 400, 2, 300, 1]
        assert len(bus.log.records("out")) == 6
    assert len(threads) == 6 and threading.main_thread() not in threads


def claiming(folder: Path, got: list[Any]) -> TestBus:
    bus = TestBus(auto_create_topics=True)
    bus.include(ClaimCheck(Directory(folder), above_bytes=100))

    @bus.consumer("videos", group="one")
    async def one(video: Video) -> None:
        got.append(video)

    @bus.consumer("videos", group="many", batch=True, exactly_once=True)
    async def many(videos: list[Video]) -> None:
        got.extend(videos)

    return bus


@on_both
async def test_large_values_take_the_way_round_the_log(tmp_path: Path) -> None:
    got: list[Any] = []
    large, small = Video("large", "f" * 5_000), Video("small", "f")
    async with claiming(tmp_path, got) as bus:
        await bus.send("videos", large)
        await bus.send("videos", large)
        await bus.send("videos", small, headers={"own": b"1"})
        await bus.log.drain()
        records = bus.log.records("videos")
        assert [len(record.value or b"") for record in records] == [64, 64, len(msgspec.json.encode(small))]
        assert len(list(tmp_path.iterdir())) == 1
    assert got.count(large) >= 2
    assert small in got


def test_a_directory_stays_where_it_was_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Directory("claims")
    monkeypatch.chdir("/")
    name = "a" * 64
    store.put(name, b"x")
    assert store.get(name) == b"x" and repr(store) == "Directory('claims')"


async def test_a_claim_that_is_gone_or_damaged_is_said(tmp_path: Path) -> None:
    store = Directory(tmp_path)
    claims = ClaimCheck(store, above_bytes=10)
    bus = TestBus(auto_create_topics=True)
    bus.include(claims)

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None: ...

    async with bus:
        await bus.send("t", b"x" * 20)
        [record] = bus.log.records("t")
        assert (await claims.fetched(record)).value == b"x" * 20
        assert len(record.value) == 64
        [file] = tmp_path.iterdir()
        file.write_bytes(b"y" * 20)
        with pytest.raises(ClaimError, match=r"t-0 offset 0: its value of 20 bytes, .* is damaged"):
            await claims.fetched(record)
        assert store.delete_older(3_600) == 0
        store.delete(file.name)
        with pytest.raises(ClaimError, match=r"t-0 offset 0: .* is not in Directory"):
            await claims.fetched(record)
        record.value = b"../../etc/passwd"
        with pytest.raises(ClaimError, match="is not in"):
            await claims.fetched(record)


async def test_dead_letters_hold_the_reference(tmp_path: Path) -> None:
    bus = TestBus(auto_create_topics=True)
    bus.include(ClaimCheck(Directory(tmp_path), above_bytes=10))

    @bus.consumer("t", group="g", retry=1, dead_letter=True)
    async def handle(value: bytes) -> None:
        assert len(value) == 5_000
        raise ValueError

    async with bus:
        await bus.send("t", b"x" * 5_000)
        await bus.log.drain()
        [dead] = bus.log.records("dlq.g")
        assert (len(dead.value), dead.header("claim-check")) == (64, b"5000")


async def test_a_handler_meets_the_claim_error(tmp_path: Path) -> None:
    got: list[Any] = []
    bus = TestBus(auto_create_topics=True)
    bus.include(ClaimCheck(Directory(tmp_path), above_bytes=10))

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None:
        got.append(value)

    async with bus:
        await bus.send("t", b"0" * 64, headers={"claim-check": "70"})
        with pytest.raises(HandlerError, match="is not in Directory"):
            await bus.log.drain()
    assert got == []


wrong: Any = "claims"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Logging(every=0), r"Logging\(every=0\): a whole number"),
        (lambda: Logging(level=7), "level=7"),
        (lambda: Deduplication(""), "name of a header"),
        (lambda: Deduplication("id", count=0), "count=0"),
        (lambda: Deduplication("id", window="-1s"), "window='-1s'"),
        (lambda: RateLimit(0), "per_second=0"),
        (lambda: RateLimit(1, burst=0), "burst=0"),
        (lambda: ClaimCheck(wrong), "put, get and delete"),
    ],
)
def test_wrong_parameters_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_in_the_wrong_place(tmp_path: Path) -> None:
    """Included, a rate limit was around nothing, and nobody said so."""
    with pytest.raises(ConfigError, match=r"include\(.*RateLimit.*goes around handlers where it is said to"):
        EventBus("memory://").include(RateLimit(5))
    claims: Any = ClaimCheck(Directory(tmp_path))
    with pytest.raises(ConfigError, match=r"goes around more than handlers: bus\.include"):
        EventBus("memory://", middleware=[claims])
