"""What waiting entries take in memory, and that they give it back."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Generator

import pytest

from eventbus.delays.retry_partition import RetryPartition
from eventbus.delays.retry_records import retry_entry
from eventbus.types import Headers, Record, TopicPartition
from tests.dlq.waiting.retry_log import fetched, source_record

pytestmark = pytest.mark.system

ENTRIES = 1_000


@pytest.fixture(autouse=True)
def tracing() -> Generator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def entry(number: int, partition: int = 3) -> Record:
    """Whose bytes nobody else refers to; two of a key."""
    record = source_record(number, b"key-%d" % (number // 2), b"v" * 200, [("trace", b"t" * 20)])
    record.partition = partition
    written = retry_entry(record, attempt=3, due_ms=10**12 + number, first_failed_ms=10**12 + number, error="Error: no")
    headers: Headers = tuple((name, bytes(bytearray(value or b""))) for name, value in written.headers)
    return Record(written.key, bytes(bytearray(written.value or b"")), headers)


def taken() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def filled() -> RetryPartition:
    waiting = RetryPartition("key")
    for start in range(0, ENTRIES, 500):
        waiting.add(fetched([(offset, entry(offset)) for offset in range(start, start + 500)]))
    return waiting


def test_an_entry_takes_half_a_kilobyte_beside_its_bytes() -> None:
    before = taken()
    waiting = filled()
    sample = entry(ENTRIES - 1)
    names = sum(len(name) + len(value or b"") for name, value in sample.headers)
    own = len(sample.key or b"") + len(sample.value or b"") + names
    assert len(waiting) == ENTRIES
    assert (taken() - before) / ENTRIES - own < 500


def test_what_is_let_go_of_is_freed() -> None:
    """Entries are none of the garbage collector's: a circle of theirs would stay for good."""
    filled()
    before = taken()
    waiting = filled()
    held = taken() - before
    (first, *_) = waiting.take(2 * 10**12, 10)
    waiting.hold(first.record)
    waiting.finish(first)
    del waiting, first, _
    assert taken() - before < held / 10  # other threads of the process allocate too


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.slow), 10**9])
def test_keys_and_partitions_that_waited_once_are_forgotten(partitions: int) -> None:
    waiting = RetryPartition("key")
    waiting.holds(TopicPartition("orders", 0))
    sizes: list[int] = []
    for start in range(0, ENTRIES, 200):
        offsets = range(start, start + 200)
        waiting.add(fetched([(offset, entry(offset, offset // 2 % partitions)) for offset in offsets]))
        assert len(waiting) == 200
        for _ in range(2):
            for one in waiting.take(2 * 10**12, 200):
                waiting.finish(one)
        plan = waiting.plan()
        assert plan is not None and plan.next_offset == start + 200
        waiting.stored(plan)
        sizes.append(taken())
    assert sizes[-1] - sizes[3] < 50_000
