"""Retry entries and done marks as records: what is written, and what is made of bytes that anybody may have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.delays.retry_records import (
    NEVER_TRIED,
    Tried,
    attempts_of,
    done_mark,
    entry_behind,
    read_mark,
    read_root,
    retry_entry,
)
from eventbus.types import ConsumerRecord, Header, Record, TimestampType
from tests.dlq.waiting.retry_log import source_record

ROOT = b'["orders",3,128,1700000000128,1]'


def tried_again(record: ConsumerRecord, attempt: int = 3, error: str = "ValueError: no", outages: int = 0) -> Record:
    return retry_entry(record, attempt=attempt, due_ms=2000, first_failed_ms=1000, error=error, outages=outages)


def read_as(record: Record, offset: int = 128) -> ConsumerRecord:
    return source_record(offset, record.key, record.value, record.headers)


def test_an_entry_keeps_the_record_and_says_where_it_stood() -> None:
    entry = tried_again(source_record(128, headers=[("trace", b"1"), ("trace", None)]), outages=2)
    assert entry == Record(
        b"k",
        b"v",
        (
            ("trace", b"1"),
            ("trace", None),
            ("eb-retry-root", ROOT),
            ("eb-retry-attempt", b"3"),
            ("eb-retry-due", b"2000"),
            ("eb-retry-first-failed", b"1000"),
            ("eb-retry-error", b"ValueError: no"),
            ("eb-retry-outages", b"2"),
        ),
    )
    assert attempts_of(read_as(entry)) == Tried(3, 1000, 0, 2)


def test_an_entry_of_a_record_that_only_waits() -> None:
    entry = entry_behind(source_record(128, key=None, value=None))
    assert entry == Record(None, None, (("eb-retry-root", ROOT), ("eb-retry-attempt", b"0"), ("eb-retry-due", b"0")))
    assert attempts_of(read_as(entry)) == NEVER_TRIED


def test_what_an_earlier_entry_said_is_replaced_and_what_a_redrive_said_is_kept() -> None:
    first = tried_again(source_record(128, headers=[("eb-redrive-hops", b"2"), ("trace", b"1")]), outages=1)
    second = tried_again(read_as(first), attempt=4)
    names = [name for name, _ in second.headers]
    assert names[:2] == ["eb-redrive-hops", "trace"]
    assert len(names) == len(set(names))
    assert attempts_of(read_as(second)) == Tried(4, 1000, 2, 0)


def test_tries_of_another_record_are_not_believed() -> None:
    """Somebody copies a record's headers to one that he publishes; a mirror gives the record another place."""
    entry = tried_again(source_record(128, headers=[("eb-redrive-hops", b"1")]))
    assert attempts_of(read_as(entry, offset=129)) == Tried(0, None, 1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("eb-retry-attempt", b"", Tried(0, 1000, 0)),
        ("eb-retry-attempt", None, Tried(0, 1000, 0)),
        ("eb-retry-attempt", b"-1", Tried(0, 1000, 0)),
        ("eb-retry-attempt", b"1_0", Tried(0, 1000, 0)),
        ("eb-retry-attempt", "٣".encode(), Tried(0, 1000, 0)),
        ("eb-retry-attempt", b"2147483648", Tried(0, 1000, 0)),
        ("eb-retry-attempt", b"9" * 5000, Tried(0, 1000, 0)),
        ("eb-retry-first-failed", b"soon", Tried(3, None, 0)),
        ("eb-retry-outages", b"17", Tried(3, 1000, 0, 3)),
        ("eb-redrive-hops", b"\xff", Tried(3, 1000, 0)),
        ("eb-retry-root", b"[" * 100_000, NEVER_TRIED),
    ],
)
def test_numbers_that_are_none(name: str, value: bytes | None, expected: Tried) -> None:
    headers: list[Header] = [*tried_again(source_record(128)).headers, (name, value)]
    assert attempts_of(source_record(128, headers=headers)) == expected


def test_an_error_of_megabytes_is_cut_to_its_ends() -> None:
    entry = tried_again(source_record(128), error="KeyError: " + "é" * 3_000_000 + " the end")
    error = dict(entry.headers)["eb-retry-error"]
    assert error is not None and len(error) <= 1024
    assert error.startswith(b"KeyError: ") and error.endswith(b"the end")
    assert error.decode().count("[...]") == 1


@pytest.mark.parametrize(
    "data",
    [
        None, b"", b"{}", b"[]", b'["orders",3,128,0]', b'["orders",3,128,0,0,0]', b'["",3,128,0,0]',
        b'["' + b"o" * 250 + b'",3,128,0,0]', b'["orders",-1,128,0,0]', b'["orders",3,-1,0,0]',
        b'["orders",3,128,-2,0]',
        b'["orders",3,128,0,2]', b'["orders",2147483648,128,0,0]', b'["orders",3,9223372036854775808,0,0]',
        b'["orders",3,1e400,0,0]', b'["orders",3,1.5,0,0]', b'["orders",true,128,0,0]', b'["\xff",3,128,0,0]',
        b'["orders",3,' + b"9" * 10_000 + b",0,0]",
    ],
)  # fmt: skip
def test_what_is_no_place(data: bytes | None) -> None:
    assert read_root(data) is None


def test_the_place_with_the_largest_numbers() -> None:
    place = read_root(b'["%s",2147483647,9223372036854775807,9223372036854775807,0]' % (b"o" * 249))
    assert place is not None and TimestampType(place.timestamp_type) is TimestampType.CREATE_TIME


@pytest.mark.system
@given(st.sets(st.integers(0, 2**40) | st.integers(0, 30)))
def test_a_mark_tells_what_it_was_told(offsets: set[int]) -> None:
    mark = done_mark(sorted(offsets))
    assert (mark.key, [name for name, _ in mark.headers]) == (None, ["eb-retry-done"])
    told = read_mark(mark.value)
    assert told is not None and [offset for run in told for offset in run] == sorted(offsets)


def test_a_mark_is_small() -> None:
    """All that may wait in a partition finishes at once, every second one of them: far below 1 MiB."""
    mark = done_mark(range(10**9, 10**9 + 400_000, 2))
    assert len(mark.value or b"") < 450_000
    assert len(done_mark(range(10**9, 10**9 + 200_000)).value or b"") < 16


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda data: b"\x01" + data))
def test_any_bytes_as_a_mark(data: bytes) -> None:
    told = read_mark(data)
    assert told is None or all(run.start <= run.stop for run in told)


@pytest.mark.parametrize(
    "data",
    [None, b"", b"\x01", b"\x02\x90", b"\x01\x91\x05", b"\x01\x92\xff\x01", b"\x01\x92\x01\xff", b"\x01\x92\xa1a\x01"],
)
def test_what_is_no_mark(data: bytes | None) -> None:
    """Nothing, a later version, an odd count, numbers below 0, texts."""
    assert read_mark(data) is None
