"""Repair gives up damaged bytes and nothing else: what is around them stays readable, at its offsets."""

from __future__ import annotations

import itertools

import pytest

from eventbus.log import checkpoints
from eventbus.log.inspect import verify
from eventbus.log.repair import KnownTransaction, execute, plan
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder, ControlType, EndTransactionMarker, build_marker, iter_batches, read_header
from eventbus.types import TopicPartition

ORDERS = TopicPartition("orders", 0)
P, Q = 7, 8


class Lab:
    """One partition, its batches, and damage to them."""

    def __init__(self, root: str, logs) -> None:
        self.storage = FileStorage(root)
        self.logs = logs
        self.log = logs.open(self.storage, segment_bytes=400)
        self.sequences: dict[int, itertools.count] = {}

    def put(self, producer_id: int = -1, value: bytes = b"v" * 40) -> int:
        builder = BatchBuilder()
        builder.append(None, value, (), 1000 + self.log.log_end_offset)
        how = {}
        if producer_id >= 0:
            sequence = next(self.sequences.setdefault(producer_id, itertools.count()))
            how = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True}
        batch = builder.build(**how)
        return self.log.append(batch, read_header(batch), 0).base_offset

    def end(self, producer_id: int, kind: ControlType) -> int:
        batch = build_marker(EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1)
        return self.log.append(batch, read_header(batch), 0).base_offset

    def commit(self, producer_id: int) -> int:
        return self.end(producer_id, ControlType.COMMIT)

    def abort(self, producer_id: int) -> int:
        return self.end(producer_id, ControlType.ABORT)

    def close(self) -> int:
        """Everything was on disk; returns the end offset."""
        self.log.close()
        end_offset = self.log.log_end_offset
        checkpoints.write_offsets(self.storage, checkpoints.RECOVERY_POINTS, {ORDERS: end_offset}, sync=False)
        checkpoints.write_offsets(self.storage, checkpoints.LOG_START_OFFSETS, {ORDERS: 0}, sync=False)
        return end_offset

    def place(self, offset: int) -> tuple[str, int, int]:
        """(path, position, size) of the batch at an offset."""
        for segment in reversed(self.log.segments):
            if segment.base_offset <= offset:
                data = segment_bytes(self.storage, segment.path)
                for batch in iter_batches(data):
                    if batch.header.base_offset == offset:
                        return segment.path, batch.position, batch.header.size_bytes
        raise AssertionError(offset)

    def damage(self, *offsets: int, header: bool = False) -> None:
        places = [self.place(offset) for offset in offsets]
        for path, position, size in places:
            file = self.storage.open(path)
            file.pwrite(position if header else position + size - 3, b"\xee" * (size if header else 3))
            file.close()

    def repair(self, transactions: dict[int, KnownTransaction] | None = None):
        """Plan, which changes nothing; then execute, after which there is no damage."""
        before = {path: segment_bytes(self.storage, path) for path in self.paths()}
        planned = plan(self.storage, transactions or {})
        assert {path: segment_bytes(self.storage, path) for path in self.paths()} == before
        done, self.side = execute(self.storage, transactions or {})
        assert done == planned
        assert verify(self.storage.root).ok
        assert plan(self.storage, transactions or {}).is_empty
        [partition] = done.partitions
        return partition

    def paths(self) -> list[str]:
        return [f"orders-0/{name}" for name in self.storage.listdir("orders-0") if name.endswith(".log")]

    def reopen(self, end_offset: int):
        log = self.logs.open(self.storage, recovery_point=end_offset, segment_bytes=400)
        log.check()
        assert log.log_end_offset == end_offset
        return log

    def readable(self, log) -> list[int]:
        """The offsets of the records that a read-committed reader sees."""
        found: list[int] = []
        offset = log.log_start_offset
        aborted = log.aborted_transactions(0, log.log_end_offset)
        while data := log.read(offset, 1 << 20, max_offset=log.last_stable_offset):
            for batch in iter_batches(data):
                header = batch.header
                offset = header.next_offset
                is_aborted = header.is_transactional and any(
                    entry.producer_id == header.producer_id
                    and entry.first_offset <= header.base_offset < entry.last_offset
                    for entry in aborted
                )
                if not (header.is_control or is_aborted):
                    found += batch.columns().offsets
        return found


def segment_bytes(storage: FileStorage, path: str) -> bytes:
    file = storage.open(path)
    try:
        return file.pread(0, file.size)
    finally:
        file.close()


@pytest.fixture
def lab(tmp_path, logs) -> Lab:
    return Lab(str(tmp_path), logs)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("lost", [(0,), (3,), (4,), (5, 6), (8, 9), (2, 7), (9,)])
def test_only_what_is_damaged_is_lost(lab, lost, header):
    for _ in range(10):
        lab.put()
    end_offset = lab.close()
    cut = {path: data for path, data in ((path, segment_bytes(lab.storage, path)) for path in lab.paths())}
    lab.damage(*lost, header=header)
    partition = lab.repair()
    assert partition.lost_offsets == len(lost)
    assert lab.readable(lab.reopen(end_offset)) == [offset for offset in range(10) if offset not in lost]
    kept = {
        name: segment_bytes(lab.storage, f"{lab.side}/orders-0/{name}")
        for name in lab.storage.listdir(f"{lab.side}/orders-0")
    }
    assert sum(map(len, kept.values())) == partition.cut_bytes == sum(lab_size(cut, hole) for hole in partition.holes)


def lab_size(files: dict[str, bytes], hole) -> int:
    return len(files[hole.path][hole.position : hole.end_position])


def test_offsets_of_a_missing_segment_or_tail_are_not_given_out_again(lab):
    for _ in range(10):
        lab.put()
    end_offset = lab.close()
    bases = [segment.base_offset for segment in lab.log.segments]
    lab.storage.remove(lab.log.segments[1].path)
    last = lab.storage.open(lab.log.segments[-1].path)
    last.truncate(0)
    last.close()
    partition = lab.repair()
    left = [*range(bases[1]), *range(bases[2], bases[-1])]
    assert partition.lost_offsets == 10 - len(left)
    log = lab.reopen(end_offset)
    assert lab.readable(log) == left
    assert lab.logs.append(log).base_offset == 10


def test_a_partition_without_any_segment_goes_on_at_its_end(lab):
    for _ in range(4):
        lab.put()
    end_offset = lab.close()
    for path in lab.paths():
        lab.storage.remove(path)
    assert lab.repair().lost_offsets == 4
    assert lab.readable(lab.reopen(end_offset)) == []


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("committed", [True, False])
def test_the_outcome_of_a_transaction_whose_marker_is_lost_stays(lab, committed, header):
    first = lab.put(P)
    other = lab.put()
    marker = lab.end(P, ControlType(committed))
    lab.put(Q)
    lab.commit(Q)
    end_offset = lab.close()
    lab.damage(marker, header=header)
    partition = lab.repair({P: KnownTransaction("tx-p", 0, "committed" if committed else "aborted")})
    assert lab.readable(lab.reopen(end_offset)) == [first, other, 3] if committed else [other, 3]
    [text] = partition.transactions
    assert text.startswith("the transaction of 'tx-p', open in orders-0 since offset 0, has lost its marker")


def test_a_commit_that_is_lost_is_not_taken_for_the_abort_after_it(lab):
    """The marker and the first batch of the producer's next transaction are lost; that one was aborted."""
    committed = [lab.put(P), lab.put(P)]
    lost = [lab.commit(P), lab.put(P)]
    lab.put(P)
    lab.abort(P)
    end_offset = lab.close()
    lab.damage(*lost, header=True)
    lab.repair()
    assert lab.readable(lab.reopen(end_offset)) == committed


def test_a_transaction_that_goes_on_after_the_damage_ends_as_its_marker_says(lab):
    first, lost, after = lab.put(P), lab.put(P), lab.put(P)
    lab.commit(P)
    end_offset = lab.close()
    lab.damage(lost)
    partition = lab.repair({P: KnownTransaction("tx-p", 1, "committed")})
    assert lab.readable(lab.reopen(end_offset)) == [first, after]
    assert partition.transactions == [
        "the transaction of 'tx-p': 1 record(s) at offsets 1 to 1 of orders-0 are lost; its other records stay as they "
        "are"
    ]


def test_a_transaction_that_is_open_stays_open(lab):
    lab.put(P)
    lost = lab.put()
    end_offset = lab.close()
    lab.damage(lost, header=True)
    partition = lab.repair({P: KnownTransaction("tx-p", 0, "open")})
    assert "is still open" in partition.transactions[0]
    log = lab.reopen(end_offset)
    assert log.last_stable_offset == 0


def test_an_outcome_that_nothing_tells_is_named_and_hides_nothing(lab):
    first = lab.put(P)
    lost = lab.commit(P)
    end_offset = lab.close()
    lab.damage(lost, header=True)
    partition = lab.repair()
    assert "Its outcome is not known" in partition.transactions[0]
    assert lab.readable(lab.reopen(end_offset)) == [first]


def test_a_swap_file_that_replaces_nothing_is_set_aside(lab):
    lab.put()
    end_offset = lab.close()
    lab.storage.open(f"orders-0/{0:020d}.swap.log", create=True).close()
    assert lab.repair().leftovers == [f"orders-0/{0:020d}.swap.log"]
    assert lab.readable(lab.reopen(end_offset)) == [0]


def test_the_bytes_of_a_batch_in_a_record_are_not_taken_for_one(lab):
    lab.put()
    builder = BatchBuilder()
    builder.append(None, b"inner", (), 0)
    inner = builder.build()
    inner[0:8] = (1).to_bytes(8, "big")
    lost = lab.put(value=bytes(inner))
    lab.put()
    end_offset = lab.close()
    lab.damage(lost)
    assert lab.repair().lost_offsets == 1
    assert lab.readable(lab.reopen(end_offset)) == [0, 2]


def test_files_that_hold_no_records_are_set_aside(lab):
    lab.put()
    lab.close()
    checkpoints.load_or_create_meta(lab.storage, "cluster")
    file = lab.storage.open(checkpoints.META_PROPERTIES)
    file.pwrite(0, b"\0" * file.size)
    file.close()
    done, side = execute(lab.storage, {})
    assert list(done.files) == [checkpoints.META_PROPERTIES]
    assert lab.storage.exists(f"{side}/{checkpoints.META_PROPERTIES}")
    assert not lab.storage.exists(checkpoints.META_PROPERTIES)
