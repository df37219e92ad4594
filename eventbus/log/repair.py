"""Repair a damaged log: give up the bytes that are lost, and nothing else.

Lost records keep their offsets: a batch without records takes their place, as after compaction. So everything before
and after the damage stays readable, no offset is used twice, and committed offsets of groups stay right.

Markers of transactions may be among what is lost. A transaction without its marker would stay open, or be aborted at
the next start, and committed records would disappear. So repair determines the outcome and writes the marker again,
where the lost bytes were. These sources are used, in this order:

1. ``.txnindex`` has an entry for every marker that aborted a transaction.
2. The next marker of the producer after the damage ends the transaction, unless (1) shows that it ended a later one.
3. The coordinator (``__transaction_state``) has recorded the last transaction of every transactional id.
4. Unknown: it is committed. Repair must not hide committed records, and the plan names the transaction.

`plan` reads, `execute` writes. What is cut is copied to a side folder first, durably. A segment is replaced by a single
rename, so a crash leaves the damaged segment or the repaired one, and repair can be started again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from eventbus.errors import CorruptRecord
from eventbus.log import checkpoints
from eventbus.log.journal import JOURNAL, replay_good
from eventbus.log.leftovers import SIDE_FOLDER
from eventbus.log.metadata import parse_directory
from eventbus.log.producer_state import ProducerStates
from eventbus.log.producers import replay
from eventbus.log.segment import Segment
from eventbus.log.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from eventbus.log.storage import File, Storage, read_whole
from eventbus.log.swap import SWAP, examine_swap, recover_swaps, stem_of
from eventbus.log.transaction_index import ENTRY_BYTES, TransactionIndex, decode_entries
from eventbus.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX
from eventbus.records.batch import HEADER_BYTES, BatchHeader, RecordBatch, check_crc, patch_offsets, read_header
from eventbus.records.control import ControlType, EndTransactionMarker, build_marker, marker_of
from eventbus.records.rewrite import empty_batch
from eventbus.types import NO_TIMESTAMP, TopicPartition

_CHUNK_BYTES = 1 << 20
_INTERVAL_BYTES = 4096
_NEVER = 1 << 62


class KnownTransaction(NamedTuple):
    """The coordinator's last record for a producer id."""

    transactional_id: str
    producer_epoch: int
    state: Literal["open", "committed", "aborted", "none"]


class MarkerAgain(msgspec.Struct):
    """A marker to write where the bytes were lost."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


class Hole(msgspec.Struct):
    """Lost bytes of a segment, and the offsets lost with them."""

    path: str
    position: int
    end_position: int
    first_offset: int
    end_offset: int
    what: str
    timestamp_ms: int = NO_TIMESTAMP
    markers: list[MarkerAgain] = msgspec.field(default_factory=list[MarkerAgain])

    def filler(self) -> bytes:
        """Return the batches that take the place of the lost offsets."""
        parts: list[bytearray] = []
        offset = self.first_offset
        for marker in self.markers[: self.end_offset - self.first_offset]:
            kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
            batch = build_marker(
                EndTransactionMarker(kind, max(marker.coordinator_epoch, 0)),
                producer_id=marker.producer_id, producer_epoch=marker.producer_epoch,
                timestamp_ms=max(self.timestamp_ms, 0),
            )  # fmt: skip
            patch_offsets(batch, offset, 0)
            parts.append(batch)
            offset += 1
        if offset < self.end_offset:
            parts.append(empty_batch(offset, self.end_offset - 1, self.timestamp_ms))
        return b"".join(parts)


class PartitionPlan(msgspec.Struct):
    """The cost of repairing one partition."""

    topic_partition: TopicPartition
    holes: list[Hole] = msgspec.field(default_factory=list[Hole])
    transactions: list[str] = msgspec.field(default_factory=list[str])
    """One sentence for each transaction that has lost something."""
    leftovers: list[str] = msgspec.field(default_factory=list[str])
    """Swap files that replace no segment."""
    missing: str = ""
    """Offsets that are missing before the first segment; repair cannot restore them."""

    @property
    def lost_offsets(self) -> int:
        """The most records that can be lost: markers and batches without records take offsets too."""
        return sum(hole.end_offset - hole.first_offset for hole in self.holes)

    @property
    def cut_bytes(self) -> int:
        return sum(hole.end_position - hole.position for hole in self.holes)


class Plan(msgspec.Struct):
    """The changes that repair makes to a directory."""

    directory: str
    partitions: list[PartitionPlan] = msgspec.field(default_factory=list[PartitionPlan])
    files: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Damaged files that belong to no partition, and why each is moved to the side folder."""

    @property
    def is_empty(self) -> bool:
        return not (self.partitions or self.files)


def plan(storage: Storage, transactions: Mapping[int, KnownTransaction]) -> Plan:
    """Find all damage and what giving it up costs. Changes nothing. ``transactions``: by producer id."""
    result = Plan(storage.describe())
    recovery_points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS) or {}
    starts = checkpoints.read_offsets(storage, checkpoints.LOG_START_OFFSETS) or {}
    found = {where for where in map(parse_directory, storage.listdir("")) if where is not None}
    for where in sorted(found | {where for where, offset in recovery_points.items() if offset > 0}):
        task = _Analysis(storage, where, recovery_points.get(where, 0), starts.get(where, 0), transactions)
        partition = task.run()
        if partition.holes or partition.leftovers or partition.missing:
            result.partitions.append(partition)
    meta_fault = checkpoints.meta_fault(storage)
    if meta_fault and storage.exists(checkpoints.META_PROPERTIES):
        result.files[checkpoints.META_PROPERTIES] = f"{meta_fault}. The next start writes one with a new cluster id"
    if storage.durable and storage.exists(JOURNAL):
        try:
            replay_good(storage, dry_run=True)
        except CorruptRecord as error:
            result.files[JOURNAL] = f"{error}. What it holds before the damage is written to the logs first"
    return result


def execute(storage: Storage, transactions: Mapping[int, KnownTransaction]) -> tuple[Plan, str]:
    """Repair a directory that is locked; returns what was done, and the side folder (empty: there was nothing to do).

    Raises `OSError`. Nothing is lost then, and the call can be made again.
    """
    for name in storage.listdir(""):
        if parse_directory(name) is not None:
            _finish_swaps(storage, name)
    side = f"{SIDE_FOLDER}.{storage.unique_id()}"
    # Write the journal's good frames to the logs first: batches that look lost may be in there, and the plan must not
    # give them up. A damaged rest of the journal is part of the plan.
    with contextlib.suppress(CorruptRecord):
        replay_good(storage, dry_run=False)
    result = plan(storage, transactions)
    if result.is_empty:
        return result, ""
    storage.makedirs(side)
    # The plan is durable before the first byte is cut, so that a crash half way leaves a record of what was intended.
    report = storage.open(f"{side}/plan.json", create=True)
    report.append(msgspec.json.format(msgspec.json.encode(result)))
    report.sync()
    report.close()
    for name in result.files:
        _set_aside(storage, name, f"{side}/{name}")
    for partition in result.partitions:
        _repair_partition(storage, partition, side)
    storage.sync_dir(side)
    storage.sync_dir("")
    return result, side


class _Open(NamedTuple):
    """A transaction that was open where a hole begins."""

    first_offset: int
    producer_epoch: int
    coordinator_epoch: int


class _Analysis:
    """One partition, read from its first byte to its last."""

    def __init__(
        self,
        storage: Storage,
        where: TopicPartition,
        recovery_point: int,
        start_offset: int,
        transactions: Mapping[int, KnownTransaction],
    ) -> None:
        self._storage = storage
        self._directory = str(where)
        self._recovery_point = recovery_point
        self._start_offset = start_offset
        self._transactions = transactions
        self._plan = PartitionPlan(where)
        self._states = ProducerStates(self._directory)
        self._aborted: dict[tuple[int, int], int] = {}
        """First offsets of aborted transactions by producer id and offset of the marker, read from ``.txnindex``."""
        self._pending: list[tuple[Hole, dict[int, _Open]]] = []
        self._timestamp_ms = NO_TIMESTAMP

    def run(self) -> PartitionPlan:
        self._read_aborted()
        segments = self._segments()
        offset = segments[0].base_offset if segments else self._start_offset
        if segments and segments[0].base_offset > self._start_offset and self._start_offset:
            first = segments[0].base_offset
            self._plan.missing = f"offsets {self._start_offset} to {first - 1} are missing before the first segment"
        for number, segment in enumerate(segments):
            is_last = number == len(segments) - 1
            end_offset = None if is_last else segments[number + 1].base_offset
            offset = self._scan(segment, offset, end_offset)
            segment.close()
        if not segments and offset < self._recovery_point:
            path = stem_of(self._directory, offset) + ".log"
            self._add_hole(Hole(path, 0, 0, offset, self._recovery_point, "no segment is left"), None)
        self._decide_rest()
        return self._plan

    def _segments(self) -> list[Segment]:
        """Return the segments by offset, without those that an unfinished compaction has replaced, and without empty
        ones."""
        storage, directory = self._storage, self._directory
        names = storage.listdir(directory) if storage.exists(directory) else []
        stems = {int(name[:-4]): name[:-4] for name in names if name.endswith(".log") and name[:-4].isdecimal()}
        for name in names:
            stem, _, suffix = name.partition(".")
            if suffix != "swap.log" or not stem.isdecimal():
                continue
            swap = examine_swap(storage, directory, int(stem), names)
            if swap.damage:
                self._plan.leftovers.append(f"{directory}/{name}")
                continue
            stems = {base: old for base, old in stems.items() if not int(stem) <= base < swap.end_offset}
            stems[int(stem)] = stem + SWAP
        segments = [
            Segment(storage, f"{directory}/{stem}", base, 0, _INTERVAL_BYTES, create=False)
            for base, stem in sorted(stems.items())
        ]
        return [segment for segment in segments if segment.size_bytes]

    def _read_aborted(self) -> None:
        storage, directory = self._storage, self._directory
        for name in storage.listdir(directory) if storage.exists(directory) else ():
            if name.endswith(TXNINDEX_SUFFIX):
                data = read_whole(storage, f"{directory}/{name}") or b""
                for entry in decode_entries(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]) or ():
                    self._aborted[entry.producer_id, entry.last_offset] = entry.first_offset

    # -- the batches --------------------------------------------------------------------------------------------------

    def _scan(self, segment: Segment, offset: int, end_offset: int | None) -> int:
        """Scan a segment that should hold the offsets from ``offset`` to before ``end_offset`` (None: the last
        segment)."""
        file, position = segment.file, 0
        limit = _NEVER if end_offset is None else end_offset
        while position < file.size:
            found = _batch_at(file, position)
            if found is not None and found[0].base_offset == offset and found[0].last_offset < limit:
                self._keep(*found)
                offset, position = found[0].next_offset, position + found[0].size_bytes
                continue
            lost = _header_at(file, position)
            following = _next_batch(file, position, offset, limit)
            next_position, next_offset = (file.size, None) if following is None else following
            if next_offset is None:
                # No valid batch follows. In the last segment, offsets up to the recovery point were acknowledged and
                # must not be assigned again; what lay beyond was never promised.
                next_offset = max(offset, self._recovery_point) if end_offset is None else end_offset
            hole = Hole(segment.path, position, next_position, offset, next_offset, "the bytes are not a valid batch")
            is_one_batch = (
                lost is not None
                and lost.base_offset == offset
                and lost.next_offset == next_offset
                and position + lost.size_bytes == next_position
            )
            self._add_hole(hole, lost if is_one_batch else None)
            offset, position = next_offset, next_position
        wanted = max(offset, self._recovery_point) if end_offset is None else end_offset
        if offset < wanted:
            what = "the file ends too early" if end_offset is None else "the segment that follows does not join"
            self._add_hole(Hole(segment.path, file.size, file.size, offset, wanted, what), None)
        return max(offset, wanted)

    def _keep(self, header: BatchHeader, data: bytes) -> None:
        self._timestamp_ms = max(self._timestamp_ms, header.max_timestamp_ms)
        producer_id = header.producer_id
        if producer_id >= 0 and self._pending:
            for hole, open_there in self._pending:
                transaction = open_there.get(producer_id)
                if transaction is not None and self._decides(hole, producer_id, transaction, header, data):
                    del open_there[producer_id]
        replay(data, self._states, TransactionIndex())

    def _decides(self, hole: Hole, producer_id: int, transaction: _Open, header: BatchHeader, data: bytes) -> bool:
        """Return whether a batch after the hole settles the outcome of a transaction that was open before the hole."""
        if not header.is_control:
            if header.producer_epoch <= transaction.producer_epoch:
                return False
            # Every end raises the epoch, so the marker was lost; ``.txnindex`` would know of an abort.
            self._write_again(hole, producer_id, transaction, committed=True)
            return True
        marker = marker_of(RecordBatch(data, 0, header))
        # The marker may end a later transaction of this producer. Only aborted transactions have an entry with their
        # first offset, so a later start proves that the lost marker committed the earlier transaction: an abort in
        # between would have its own entry.
        began = self._aborted.get((producer_id, header.base_offset), transaction.first_offset)
        if marker is not None and marker.control_type is ControlType.ABORT and began > transaction.first_offset:
            self._write_again(hole, producer_id, transaction, committed=True)
        return True

    # -- what is lost -------------------------------------------------------------------------------------------------

    def _add_hole(self, hole: Hole, lost: BatchHeader | None) -> None:
        """``lost`` is the header of the one batch that the hole consists of, where it can still be read."""
        hole.timestamp_ms = self._timestamp_ms
        self._plan.holes.append(hole)
        if lost is not None and lost.is_transactional and not lost.is_control:
            self._plan.transactions.append(
                f"{self._name(lost.producer_id)}: {lost.records_count} record(s) at offsets {lost.base_offset} to "
                f"{lost.last_offset} of {self._directory} are lost; its other records stay as they are"
            )
        if hole.end_offset == hole.first_offset or (lost is not None and not lost.is_control):
            return  # no marker is lost
        open_there: dict[int, _Open] = {}
        for producer_id, state in [*self._states.producers.items()]:
            if not state.in_transaction or (lost is not None and lost.producer_id != producer_id):
                continue
            transaction = _Open(state.transaction_start_offset, state.producer_epoch, state.coordinator_epoch)
            if any(
                pid == producer_id and began == transaction.first_offset and hole.first_offset <= end < hole.end_offset
                for (pid, end), began in self._aborted.items()
            ):
                self._write_again(hole, producer_id, transaction, committed=False)
            else:
                open_there[producer_id] = transaction
        if open_there:
            self._pending.append((hole, open_there))

    def _decide_rest(self) -> None:
        """Settle the transactions that no batch after the hole has settled, by the coordinator's records."""
        for hole, open_there in self._pending:
            for producer_id, transaction in open_there.items():
                known = self._transactions.get(producer_id)
                is_this = known is not None and transaction.producer_epoch in (
                    known.producer_epoch, known.producer_epoch - 1,
                )  # fmt: skip
                if known is not None and is_this and known.state == "open":
                    self._plan.transactions.append(
                        f"{self._name(producer_id)} is still open in {self._directory}: its coordinator ends it"
                    )
                elif known is not None and is_this and known.state != "none":
                    self._write_again(hole, producer_id, transaction, committed=known.state == "committed")
                else:
                    self._write_again(hole, producer_id, transaction, committed=True, is_certain=False)

    def _write_again(
        self, hole: Hole, producer_id: int, transaction: _Open, *, committed: bool, is_certain: bool = True
    ) -> None:
        marker = MarkerAgain(producer_id, transaction.producer_epoch, transaction.coordinator_epoch, committed)
        hole.markers.append(marker)
        self._states.append_marker(
            producer_id, transaction.producer_epoch,
            EndTransactionMarker(
                ControlType.COMMIT if committed else ControlType.ABORT, max(transaction.coordinator_epoch, 0)
            ),
            hole.first_offset, hole.timestamp_ms,
        )  # fmt: skip
        outcome = "committed" if committed else "aborted"
        why = "" if is_certain else ". Its outcome is not known: check its records, and delete them if it was aborted"
        self._plan.transactions.append(
            f"{self._name(producer_id)}, open in {self._directory} since offset {transaction.first_offset}, has lost "
            f"its marker, and is marked {outcome} again{why}"
        )

    def _name(self, producer_id: int) -> str:
        known = self._transactions.get(producer_id)
        return f"the transaction of {f'producer {producer_id}' if known is None else repr(known.transactional_id)}"


def _header_at(file: File, position: int) -> BatchHeader | None:
    """Return the header at a position, if it could be one and its batch ends within the file."""
    try:
        header = read_header(file.pread(position, HEADER_BYTES))
    except CorruptRecord:
        return None
    return header if position + header.size_bytes <= file.size else None


def _batch_at(file: File, position: int) -> tuple[BatchHeader, bytes] | None:
    """Return the batch at a position, if it is whole and valid."""
    header = _header_at(file, position)
    if header is None:
        return None
    data = file.pread(position, header.size_bytes)
    try:
        check_crc(data, header, 0)
    except CorruptRecord:
        return None
    return header, data


def _next_batch(file: File, position: int, offset: int, limit: int) -> tuple[int, int] | None:
    """Return (position, offset) of the next valid batch after the damage, with an offset of at least ``offset``.

    If the damaged batch still has its length, the search starts right after it: the value of a record may contain the
    bytes of a batch.
    """
    lost = _header_at(file, position)
    if lost is not None and lost.base_offset == offset:
        found = _batch_at(file, position + lost.size_bytes)
        if found is not None and lost.last_offset < found[0].base_offset <= found[0].last_offset < limit:
            return position + lost.size_bytes, found[0].base_offset
        if position + lost.size_bytes == file.size:
            return None
    data = file.pread(position + 1, file.size - position - 1)
    magic = data.find(2, 16)
    while magic >= 0:
        start = magic - 16
        with contextlib.suppress(CorruptRecord):
            header = read_header(data, start)
            if offset <= header.base_offset <= header.last_offset < limit:
                check_crc(data, header, start)
                return position + 1 + start, header.base_offset
        magic = data.find(2, magic + 1)
    return None


# -- writing -----------------------------------------------------------------------------------------------------------


def _finish_swaps(storage: Storage, directory: str) -> None:
    """Finish interrupted swaps if possible; the rest becomes part of the plan."""
    names = storage.listdir(directory)
    swaps = [name for name in names if name.endswith(SWAP + ".log")]
    if swaps and not any(examine_swap(storage, directory, int(name[:20]), names).damage for name in swaps):
        recover_swaps(storage, directory)


def _repair_partition(storage: Storage, partition: PartitionPlan, side: str) -> None:
    directory = str(partition.topic_partition)
    if partition.holes or partition.leftovers:
        storage.makedirs(f"{side}/{directory}")
    for path in partition.leftovers:
        _set_aside(storage, path, f"{side}/{path}")
    by_path: dict[str, list[Hole]] = {}
    for hole in partition.holes:
        by_path.setdefault(hole.path, []).append(hole)
    for path, holes in by_path.items():
        for hole in holes:
            if hole.end_position > hole.position:
                source = storage.open(path)
                _copy(storage, source, hole.position, hole.end_position, f"{side}/{path}.{hole.position}")
                source.close()
    if by_path:
        storage.sync_dir(f"{side}/{directory}")
    for path, holes in by_path.items():
        _rewrite(storage, directory, path, holes)
    if not partition.holes:
        return
    checkpoints.forget_coordinator_state(storage, directory)
    first_offset = min(hole.first_offset for hole in partition.holes)
    for name in storage.listdir(directory):  # snapshots beyond may contain state that the log does not hold any more
        stem = name.removesuffix(SNAPSHOT_SUFFIX)
        if stem != name and stem.isdecimal() and int(stem) > first_offset:
            storage.remove(f"{directory}/{name}")
    storage.sync_dir(directory)


def _rewrite(storage: Storage, directory: str, path: str, holes: Sequence[Hole]) -> None:
    """Replace a segment by its valid batches, with fillers for what is between them."""
    if not storage.exists(directory):
        storage.makedirs(directory)
    source = storage.open(path, create=True)
    target = storage.open(f"{path}.tmp", create=True)
    try:
        if target.size:
            target.truncate(0)
        position = 0
        for hole in holes:
            _append(source, position, hole.position, target)
            target.append(hole.filler())
            position = hole.end_position
        _append(source, position, source.size, target)
        target.sync()
    finally:
        source.close()
        target.close()
    for suffix in (".index", ".timeindex"):
        with contextlib.suppress(FileNotFoundError):
            storage.remove(path.removesuffix(".log") + suffix)
    storage.rename(f"{path}.tmp", path)
    storage.sync_dir(directory)


def _set_aside(storage: Storage, path: str, target: str) -> None:
    source = storage.open(path)
    try:
        _copy(storage, source, 0, source.size, target)
    finally:
        source.close()
    storage.sync_dir(target.rpartition("/")[0])
    storage.remove(path)


def _copy(storage: Storage, source: File, start: int, end: int, target_path: str) -> None:
    target = storage.open(target_path, create=True)
    try:
        _append(source, start, end, target)
        target.sync()
    finally:
        target.close()


def _append(source: File, start: int, end: int, target: File) -> None:
    while start < end:
        data = source.pread(start, min(_CHUNK_BYTES, end - start))
        if not data:
            return
        target.append(data)
        start += len(data)
