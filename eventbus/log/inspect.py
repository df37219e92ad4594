"""Read-only inspection of a log: the lines of ``eventbus log dump``, and the report of ``eventbus log verify``.

Repairs are in `eventbus.log.repair`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from eventbus.errors import ConfigError, CorruptRecord
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.metadata import parse_directory, read_partition_metadata
from eventbus.log.producer_state import ProducerStates
from eventbus.log.producers import replay
from eventbus.log.recovery import missing_offsets
from eventbus.log.segment import Segment
from eventbus.log.snapshot import decode_snapshot
from eventbus.log.storage import FileStorage, Storage, read_whole
from eventbus.log.transaction_index import ENTRY_BYTES, TransactionIndex, decode_entries
from eventbus.records.batch import CRC_START, HEADER_BYTES, BatchHeader, RecordBatch, read_header
from eventbus.records.crc import crc32c
from eventbus.types import ConsumerRecord, TopicPartition

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_INTERVAL_BYTES = LogConfig().index_interval_bytes
_NEVER = 1 << 62


class BatchLine(NamedTuple):
    """One batch of a ``.log`` file."""

    position: int
    header: BatchHeader
    crc_is_valid: bool
    records: list[ConsumerRecord] | None
    """The decoded records, if requested and if the CRC is right."""


class OffsetIndexLine(NamedTuple):
    """One entry of an ``.index`` file."""

    offset: int
    position: int


class TimeIndexLine(NamedTuple):
    """One entry of a ``.timeindex`` file."""

    timestamp_ms: int
    offset: int


class DamageLine(NamedTuple):
    """The place from which on a file cannot be parsed."""

    position: int
    what: str


class TransactionIndexLine(NamedTuple):
    """One aborted transaction in a ``.txnindex`` file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerLine(NamedTuple):
    """One producer in a ``.snapshot`` file."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    transaction_start_offset: int
    last_timestamp_ms: int
    batches: tuple[tuple[int, int, int], ...]
    """The last five batches, oldest first: first sequence, last sequence, first offset."""


Line = BatchLine | OffsetIndexLine | TimeIndexLine | TransactionIndexLine | ProducerLine | DamageLine


class PartitionReport(msgspec.Struct):
    """The result of `verify` for a partition."""

    topic_partition: TopicPartition
    segments_count: int = 0
    batches_count: int = 0
    records_count: int = 0
    size_bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    """The durable watermark: below it, every byte has been on disk."""
    damage: str = ""
    """File, position, offset and cause of the first damage below the watermark; empty if there is none."""
    torn: str = ""
    """Damage beyond the watermark, as a crash leaves it: the next start cuts it off."""
    index_damage: list[str] = msgspec.field(default_factory=list[str])
    """Index files that do not agree with the log. They are rebuilt on use."""


class Report(msgspec.Struct):
    """The result of `verify` for a directory."""

    directory: str
    partitions: list[PartitionReport]
    warnings: list[str]
    damage: list[str] = msgspec.field(default_factory=list[str])
    """Damage in files that belong to no partition."""

    @property
    def ok(self) -> bool:
        """True if nothing that was durable is damaged."""
        return not (self.damage or any(partition.damage for partition in self.partitions))


def dump_segment(path: str, *, records: bool = False) -> Iterator[Line]:
    """Yield the entries of a ``.log``, an index or a snapshot, in order; a `DamageLine`, if any, comes last.

    ``records`` decodes the records of each batch too.
    """
    directory, _, name = path.replace("\\", "/").rpartition("/")
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("log", "index", "timeindex", "txnindex", "snapshot") or not stem.isdecimal():
        raise ConfigError(
            f"{path} is not a segment: name a file like 00000000000000000000.log, .index, .timeindex, .txnindex or "
            ".snapshot"
        )
    storage = FileStorage(directory or ".", read_only=True)
    if not storage.exists(name):
        raise ConfigError(f"there is no file {path}")
    if suffix == "log":
        where = parse_directory(storage.root.replace("\\", "/").rpartition("/")[2]) or TopicPartition("", -1)
        return _dump_log(storage, name, where, records)
    if suffix == "txnindex":
        return _dump_transactions(storage, name)
    return _dump_snapshot(storage, name) if suffix == "snapshot" else _dump_index(storage, name, int(stem), suffix)


def _dump_log(storage: Storage, name: str, where: TopicPartition, records: bool) -> Iterator[Line]:
    file = storage.open(name)
    position = 0
    try:
        while position < file.size:
            header_bytes = file.pread(position, HEADER_BYTES)
            try:
                header = read_header(header_bytes)
            except CorruptRecord as error:
                yield DamageLine(position, str(error))
                return
            data = file.pread(position, header.size_bytes)
            if len(data) < header.size_bytes:
                yield DamageLine(position, "the file ends inside a batch")
                return
            valid = crc32c(memoryview(data)[CRC_START:]) == header.crc
            yield BatchLine(position, header, valid, _records(data, header, where) if records and valid else None)
            position += header.size_bytes
    finally:
        file.close()


def _records(data: bytes, header: BatchHeader, where: TopicPartition) -> list[ConsumerRecord]:
    batch = RecordBatch(data, 0, header)
    return [
        ConsumerRecord(
            where.topic, where.partition, offset, record.timestamp_ms, header.timestamp_type,
            record.key, record.value, record.headers,
        )
        for offset, record in zip(batch.columns().offsets, batch.records(), strict=True)
    ]  # fmt: skip


def _dump_index(storage: Storage, name: str, base_offset: int, suffix: str) -> Iterator[Line]:
    file = storage.open(name)
    try:
        data = file.pread(0, file.size)
    finally:
        file.close()
    entry = _OFFSET_ENTRY if suffix == "index" else _TIME_ENTRY
    whole = len(data) // entry.size * entry.size
    for first, second in entry.iter_unpack(data[:whole]):
        if suffix == "index":
            yield OffsetIndexLine(base_offset + first, second)
        else:
            yield TimeIndexLine(first, base_offset + second)
    if whole < len(data):
        yield DamageLine(whole, "the file ends inside an entry")


def _dump_transactions(storage: Storage, name: str) -> Iterator[Line]:
    data = read_whole(storage, name) or b""
    whole = len(data) // ENTRY_BYTES * ENTRY_BYTES
    entries = decode_entries(data[:whole])
    yield from [TransactionIndexLine(*entry) for entry in entries or ()]
    if entries is None:
        yield DamageLine(0, "no aborted transactions in the order of their markers")
    elif whole < len(data):
        yield DamageLine(whole, "the file ends inside an entry")


def _dump_snapshot(storage: Storage, name: str) -> Iterator[Line]:
    decoded = decode_snapshot(read_whole(storage, name) or b"")
    if decoded is None:
        yield DamageLine(0, "the CRC does not match, or another program wrote the snapshot")
        return
    for producer_id, producer in sorted(decoded.producers.items()):
        yield ProducerLine(
            producer_id, producer.producer_epoch, producer.coordinator_epoch, producer.transaction_start_offset,
            producer.last_timestamp_ms, tuple(batch[:3] for batch in producer.batches),
        )  # fmt: skip


def verify(directory: str) -> Report:
    """Read every byte of every partition: headers, chain of offsets, CRCs, and whether the indexes agree."""
    storage = FileStorage(directory, read_only=True)
    if not storage.exists(""):
        raise ConfigError(f"there is no directory {storage.root}")
    warnings: list[str] = []
    recovery_points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS)
    if recovery_points is None:
        warnings.append(f"{checkpoints.RECOVERY_POINTS} is damaged; the next start reads everything to rebuild it")
    starts = checkpoints.read_offsets(storage, checkpoints.LOG_START_OFFSETS)
    lost = checkpoints.lost_starts(recovery_points, starts)
    damage: list[str] = []
    if lost:
        fault = f"{lost}; records that were deleted by request can be read again"
        (damage if starts is None else warnings).append(fault)
    reports: list[PartitionReport] = []
    for name in storage.listdir(""):
        where = parse_directory(name)
        if where is not None:
            published_start = (starts or {}).get(where)
            report = PartitionReport(where, log_start_offset=published_start or 0)
            report.recovery_point = (recovery_points or {}).get(where, 0)
            _verify_partition(storage, report, published_start)
            reports.append(report)
    meta_fault = checkpoints.meta_fault(storage)
    if meta_fault and reports:
        (damage if storage.exists(checkpoints.META_PROPERTIES) else warnings).append(meta_fault)
    return Report(storage.root, reports, warnings, damage)


def _verify_partition(storage: Storage, report: PartitionReport, published_start: int | None = None) -> None:
    segments = _segments(storage, report.topic_partition)
    report.damage = missing_offsets(segments, published_start)
    if segments and report.recovery_point and not read_partition_metadata(storage, str(report.topic_partition)):
        metadata = f"{report.topic_partition}/partition.metadata is damaged or missing: it should hold the topic's id"
        report.damage = f"{report.damage}; {metadata}" if report.damage else metadata
    report.segments_count = len(segments)
    report.size_bytes = sum(segment.size_bytes for segment in segments)
    report.log_end_offset = report.log_start_offset
    if segments:
        report.log_start_offset = max(report.log_start_offset, segments[0].base_offset)
        report.log_end_offset = segments[0].base_offset
    states = ProducerStates(str(report.topic_partition))
    for segment in segments:
        if segment.base_offset != report.log_end_offset:
            what = f"this segment does not join the one before it, which ends at offset {report.log_end_offset}"
            _note(report, segment, 0, segment.base_offset, what)
            break
        scan = segment.scan(0, segment.base_offset, check_crcs=True, index=False)
        report.batches_count += scan.batches_count
        report.records_count += scan.records_count
        report.log_end_offset = scan.next_offset
        if scan.damage:
            _note(report, segment, scan.position, scan.next_offset, scan.damage)
            break
        report.index_damage += segment.index_faults()
        _verify_transactions(storage, segment, report, states)
    report.index_damage += _unreadable_snapshots(storage, report.topic_partition)
    if not report.damage and report.log_end_offset < report.recovery_point:
        report.damage = (
            f"{report.topic_partition} ends at offset {report.log_end_offset}, but was on disk up to offset "
            f"{report.recovery_point}"
        )
    for segment in segments:
        segment.close()


def _verify_transactions(storage: Storage, segment: Segment, report: PartitionReport, states: ProducerStates) -> None:
    """Report a ``.txnindex`` that lacks a transaction which was aborted according to the log.

    It may have more than the log: compaction drops aborted records before it drops their markers.
    """
    aborted = TransactionIndex()
    for data in segment.windows(0, segment.base_offset):
        replay(data, states, aborted)
    path = f"{segment.stem}.txnindex"
    decoded = decode_entries(read_whole(storage, path) or b"")
    ended = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in decoded or ()}
    if decoded is None or any(ended.get((entry[0], entry[2]), _NEVER) > entry.first_offset for entry in aborted):
        report.index_damage.append(path)


def _unreadable_snapshots(storage: Storage, where: TopicPartition) -> list[str]:
    names = [f"{where}/{name}" for name in storage.listdir(str(where)) if name.endswith(".snapshot")]
    return [name for name in names if decode_snapshot(read_whole(storage, name) or b"") is None]


def _note(report: PartitionReport, segment: Segment, position: int, offset: int, what: str) -> None:
    text = f"{segment.path} at position {position} (offset {offset}): {what}"
    if offset < report.recovery_point:
        report.damage = f"{report.damage}; {text}" if report.damage else text
    else:
        report.torn = text


def _segments(storage: Storage, where: TopicPartition) -> list[Segment]:
    names = storage.listdir(str(where))
    base_offsets = sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())
    segments = [
        Segment(storage, f"{where}/{base:020d}", base, 0, _INTERVAL_BYTES, create=False) for base in base_offsets
    ]
    return [segment for segment in segments if segment.size_bytes or segment is segments[0]]
