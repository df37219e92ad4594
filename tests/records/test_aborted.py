"""Leaving out aborted transactions: on every path the same, and the same as Kafka's consumer does it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.records import (
    BatchBuilder,
    ControlType,
    EndTransactionMarker,
    RecordBatch,
    build_marker,
    decode,
    fetched_records,
    iter_batches,
    marker_of,
    patch_offsets,
    read_header,
    stamp_log_append_time,
)
from eventbus.records.aborted import AbortedRanges, committed_batches
from eventbus.records.columnar import record_arrays
from eventbus.types import AbortedTransaction, Compression

from .conftest import VECTORS, load

pytestmark = pytest.mark.system


class Step(NamedTuple):
    """What one producer does next: send (codec, transactional or not), or end its transaction."""

    producer_id: int
    transactional: bool
    codec: Compression
    count: int
    marker: ControlType | None


steps = st.builds(
    Step,
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(Compression),
    st.integers(1, 5),
    st.sampled_from([None, None, *ControlType]),
)


def build_log(some: list[Step]) -> tuple[bytes, list[AbortedTransaction], list[int]]:
    """The log's bytes, its aborted transactions, and the offsets of what was committed or never in a transaction.

    At the end every open transaction is aborted.
    """
    data, offset = bytearray(), 0
    aborted: list[AbortedTransaction] = []
    committed: list[int] = []
    open_since: dict[int, list[int]] = {}

    def end(producer_id: int, kind: ControlType) -> None:
        nonlocal offset
        marker = build_marker(EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1)
        patch_offsets(marker, offset, 0)
        data.extend(marker)
        offsets = open_since.pop(producer_id, [])
        if kind is ControlType.COMMIT:
            committed.extend(offsets)
        elif offsets:
            aborted.append(AbortedTransaction(producer_id, offsets[0], offset))
        offset += 1

    for step in some:
        if step.marker is not None:
            end(step.producer_id, step.marker)
            continue
        builder = BatchBuilder(step.codec)
        for number in range(step.count):
            builder.append(b"k", b"%d" % (offset + number), (), 1)
        # Without a transaction it is another producer's: one producer does not do both at once.
        producer_id = step.producer_id + (0 if step.transactional else 10)
        batch = builder.build(
            producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=step.transactional
        )
        patch_offsets(batch, offset, 0)
        data.extend(batch)
        offsets = range(offset, offset + step.count)
        if step.transactional:
            open_since.setdefault(step.producer_id, []).extend(offsets)
        else:
            committed.extend(offsets)
        offset += step.count
    for producer_id in sorted(open_since):
        end(producer_id, ControlType.ABORT)
    return bytes(data), aborted, sorted(committed)


def as_kafkas_consumer(data: bytes, aborted: list[AbortedTransaction], start: int) -> list[int]:
    """``CompletedFetch.nextFetchedRecord``: a set of producers, entered at the first offset, left at the marker."""
    left_out: set[int] = set()
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    found: list[int] = []
    for batch in iter_batches(data):
        header = batch.header
        if header.next_offset <= start:
            continue
        while waiting and waiting[0].first_offset <= header.last_offset:
            left_out.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = marker_of(batch)
            assert marker is not None
            if marker.control_type is ControlType.ABORT:
                left_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in left_out):
            found += [offset for offset in batch.columns().offsets if offset >= start]
    return found


@given(st.lists(steps, min_size=1, max_size=25), st.data())
def test_every_path_leaves_out_what_kafkas_consumer_does(some: list[Step], draws: st.DataObject) -> None:
    data, aborted, committed = build_log(some)
    end = max(header.header.next_offset for header in iter_batches(data))
    start = draws.draw(st.integers(0, end))
    told = [each for each in aborted if each.last_offset >= start]
    wanted = [offset for offset in committed if offset >= start]
    assert as_kafkas_consumer(data, told, start) == wanted
    for shuffled in (told, draws.draw(st.permutations(told))):
        pure = decode._decode(data, "topic", 0, start, True, shuffled)
        assert pure.offsets == wanted
        assert pure.values == [b"%d" % offset for offset in wanted]
        assert pure.next_offset == max(start, end)
        assert decode._decode_with_numpy(data, "topic", 0, start, True, shuffled) == pure
        assert fetched_records(data, "topic", 0, start, aborted=shuffled) == pure
        arrays = record_arrays(data, start, aborted=shuffled)
        assert (arrays.offsets.tolist(), arrays.next_offset) == (wanted, max(start, end))
    assert fetched_records(committed_batches(data, AbortedRanges(told)), "topic", 0, start).offsets == wanted


def test_all_of_a_fetch_may_be_aborted() -> None:
    data, aborted, _ = build_log([Step(1, True, Compression.NONE, 3, None)])
    for path in (decode._decode, decode._decode_with_numpy):
        fetched = path(data, "topic", 0, 0, True, aborted)
        assert fetched is not None
        assert (len(fetched), fetched.next_offset) == (0, 4)
    assert committed_batches(data, AbortedRanges(aborted)) == b""


def test_ranges() -> None:
    covers = AbortedRanges(
        [AbortedTransaction(5, 20, 30), AbortedTransaction(5, 2, 9), AbortedTransaction(6, 0, 3)]
    ).covers
    assert [offset for offset in range(40) if covers(5, offset)] == [*range(2, 10), *range(20, 31)]
    assert [offset for offset in range(40) if covers(6, offset)] == [0, 1, 2, 3]
    assert not covers(7, 2)


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(VECTORS.glob("*.json")) if "trans" in path.stem or "control" in path.stem]
)
def test_transactions_of_other_clients(name: str) -> None:
    vector = load(VECTORS / f"{name}.json")
    header = read_header(vector.data)
    assert header.is_transactional
    if header.is_control:
        marker = marker_of(RecordBatch(vector.data))
        assert marker is not None
        assert marker.control_type.name.lower() == vector.header["marker"]
        return
    for batch in (vector.data, _stamped(vector.data)):
        mine = AbortedTransaction(header.producer_id, 0, header.last_offset + 1)
        assert len(fetched_records(batch, "topic", 0, 0, aborted=[mine])) == 0
        others = [mine._replace(producer_id=header.producer_id + 1), mine._replace(first_offset=header.last_offset + 1)]
        assert len(fetched_records(batch, "topic", 0, 0, aborted=others)) == len(vector.records)


def _stamped(data: bytes) -> bytes:
    batch = bytearray(data)
    stamp_log_append_time(batch, 5)
    return bytes(batch)
