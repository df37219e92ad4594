"""The comparison finds whatever is planted, and calls nothing a difference that retention or compaction took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from eventbus.backends.base import Backend
from eventbus.backends.urls import open_backend
from eventbus.mirror import Mirror, PartitionCheck
from eventbus.types import FetchedRecords, TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.logs import PATIENCE_SECONDS, create, opened, write

ORDERS = TopicPartition("orders", 0)
Change = Callable[[FetchedRecords], None]


class Tampered:
    """A log whose readers get something else than what is there."""

    def __init__(self, inner: Backend, change: Change) -> None:
        self._inner: Any = inner
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def consumer(self, config: Any) -> Any:
        consumer: Any = self._inner.consumer(config)
        fetch = consumer.fetch

        async def tampered(max_wait_ms: int | None = None) -> list[FetchedRecords]:
            fetched = await fetch(max_wait_ms)
            for records in fetched:
                if records.topic == "orders":
                    self._change(records)
            return fetched

        consumer.fetch = tampered
        return consumer


def changed_value(records: FetchedRecords) -> None:
    records.values[3] = b"other"


def changed_time(records: FetchedRecords) -> None:
    records.timestamps_ms[3] += 1


def without_header(records: FetchedRecords) -> None:
    records.headers = [(("a", b"1"),), *[()] * (len(records) - 1)]


def empty_for_null(records: FetchedRecords) -> None:
    records.keys[3] = b""


def swapped(records: FetchedRecords) -> None:
    records.values[3], records.values[4] = records.values[4], records.values[3]


def missing(records: FetchedRecords) -> None:
    for column in (records.offsets, records.timestamps_ms, records.keys, records.values):
        del column[3]


def missing_at_the_end(records: FetchedRecords) -> None:
    for column in (records.offsets, records.timestamps_ms, records.keys, records.values):
        del column[-1]


async def verified(here: str, there: str, change: Change, *, at_source: bool = False) -> PartitionCheck:
    sides: list[Any] = [open_backend(here, {}), open_backend(there, {})]
    sides[not at_source] = Tampered(sides[not at_source], change)
    async with Mirror(sides[0], sides[1], name="m") as mirror:
        [check] = await mirror.verify()
    return check


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed_value, "offset 3 is not the record of offset 3: other value"),
        (changed_time, "offset 3 is not the record of offset 3: other timestamp_ms"),
        (without_header, "offset 0 is not the record of offset 0: other headers"),
        (empty_for_null, "offset 3 is not the record of offset 3: other key"),
        (swapped, "offset 3 is not the record of offset 3: other value"),
        (missing, "offset 3 is missing"),
        (missing_at_the_end, "offset 9 is missing"),
    ],
)
async def test_a_difference_is_found_and_named(new_log: NewLog, change: Change, said: str) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders")
        await write(source, ORDERS, *[b"%d" % number for number in range(10)])
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        good = await verified(here, there, lambda _: None)
        bad = await verified(here, there, change)
    assert (good.ok, good.records, good.source_digest == good.destination_digest) == (True, 10, True)
    assert bad.differences[0] == said
    assert (bad.ok, bad.source_digest == bad.destination_digest) == (False, False)
    assert bad.records == 10 - bad.difference_count


async def test_a_record_that_was_never_copied_is_found(new_log: NewLog) -> None:
    """As if the mirror had passed over it: the journal knows nothing of it, and the source does."""
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders")
        await write(source, ORDERS, *[b"%d" % number for number in range(10)])
        async with Mirror(Tampered(open_backend(here, {}), missing), there, name="m") as mirror:  # pyright: ignore[reportArgumentType]
            await mirror.copy()
        check = await verified(here, there, lambda _: None)
    assert check.differences == ["the source's offset 3 was never copied"]
    assert check.source_digest != check.destination_digest


async def test_a_record_doubled_or_of_somebody_else_is_found(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        for value in (b"1", b"2"):
            await write(source, ORDERS, value)
            async with Mirror(here, there, name="m") as mirror:
                await mirror.copy()
            await write(destination, ORDERS, value)
        check = await verified(here, there, lambda _: None)
    assert check.differences == ["offset 2 is not a copy: another client wrote it"]
    assert (check.records, check.newer) == (2, 1)  # what comes behind the last copy may well be others'


@pytest.mark.system
@pytest.mark.parametrize("side", ["source", "destination"])
async def test_what_retention_took_is_told_and_no_difference(side: str, new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, *[b"%d" % number for number in range(10)])
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        await (source if side == "source" else destination).delete_records({ORDERS: 4})
        check = await verified(here, there, lambda _: None)
    assert (check.ok, check.records) == (True, 6)
    assert (check.gone_at_source, check.gone_at_destination) == ((4, 0) if side == "source" else (0, 4))


@pytest.mark.parametrize("at_source", [True, False])
async def test_what_compaction_took_is_told_and_no_difference(at_source: bool, new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders", cleanup_policy="compact")
        await write(source, ORDERS, *[b"%d" % number for number in range(10)], key=b"k")
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        check = await verified(here, there, missing, at_source=at_source)
    assert (check.ok, check.records) == (True, 9)
    assert (check.gone_at_source, check.gone_at_destination) == ((1, 0) if at_source else (0, 1))


async def test_a_latest_value_that_is_gone_is_no_compaction(new_log: NewLog) -> None:
    """Compaction takes a record for a later one of its key: a table that lacks its last values is not whole."""
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders", cleanup_policy="compact")
        await write(source, ORDERS, *[b"%d" % number for number in range(10)], key=b"k")
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        check = await verified(here, there, missing_at_the_end)
    assert check.differences == ["offset 9 is missing"]
    assert (check.ok, check.records, check.source_digest == check.destination_digest) == (False, 9, False)


async def test_a_source_made_anew_is_a_difference_and_is_not_read_for_ever(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders")
        await create(source, "gone")
        await write(source, ORDERS, b"1", b"2", b"3")
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        await source.delete_topics(["orders", "gone"])
        await create(source, "orders")
        await write(source, ORDERS, b"new")
        async with Mirror(here, there, name="m") as mirror:
            with anyio.fail_after(PATIENCE_SECONDS):
                anew, gone = await mirror.verify()
    assert "deleted and created again" in anew.differences[0]
    assert gone.differences == ["topic 'gone' is gone at the source"]


async def test_what_was_never_mirrored_is_a_difference_and_what_is_not_mirrored_yet_is_told(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there):
        await create(source, "orders")
        await create(source, "empty")
        await write(source, ORDERS, b"1")
        async with Mirror(here, there, name="m") as mirror:
            [check] = await mirror.verify()
            assert check.differences == ["the mirror 'm' has never copied it"]
            await mirror.copy()
            await write(source, ORDERS, b"2", b"3")
            empty, orders = await mirror.verify()
    assert (empty.ok, empty.behind) == (True, 0)
    assert (orders.ok, orders.records, orders.behind) == (True, 1, 2)
