"""``eventbus log dump FILE`` and ``eventbus log verify DIR``: looking at a log's files, without opening the log."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from eventbus.cli.output import Output, text_or_base64
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.records import BatchHeader
from eventbus.types import ConsumerRecord, TimestampType

if TYPE_CHECKING:
    from eventbus.log.inspect import (
        BatchLine,
        OffsetIndexLine,
        PartitionReport,
        ProducerLine,
        Report,
        TimeIndexLine,
        TransactionIndexLine,
    )


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("log", help="dump a segment file, verify a directory")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    dump = actions.add_parser(
        "dump",
        help="the batches of a segment, the entries of an index or a snapshot",
        description="Print a .log, .index, .timeindex, .txnindex or .snapshot file in the words of Kafka's dump tool.\n"
        "Damage ends the dump with exit code 1. The log may be in use.",
    )
    dump.add_argument("files", nargs="*", metavar="FILE", help="as data/orders-0/00000000000000000000.log")
    dump.add_argument("--files", dest="file_list", metavar="FILE,FILE", help=argparse.SUPPRESS)
    dump.add_argument("--print-data-log", "--records", action="store_true", dest="records", help="print records too")
    dump.set_defaults(run=dump_files)

    verify = actions.add_parser(
        "verify",
        help="read every byte: CRCs, offsets, indexes",
        description="Check every batch of every partition. Exit code 1 when something that was on disk is damaged; a\n"
        "torn tail, as a crash leaves it, is cut by the next start and is no damage. Changes nothing.",
    )
    verify.add_argument("directory", nargs="?", metavar="DIR", help="default: the directory of --url")
    verify.set_defaults(run=verify_directory)


# dump -----------------------------------------------------------------------------------------------------------------


def dump_files(args: argparse.Namespace) -> int:
    from eventbus.log.inspect import BatchLine, DamageLine, dump_segment

    files: list[str] = [*args.files, *(args.file_list.split(",") if args.file_list else [])]
    if not files:
        raise UsageError(f"{args.program}: which file? As in: {args.program} data/orders-0/00000000000000000000.log")
    out, damaged = Output.of(args), False
    for file in files:
        if not out.json:
            out.line(f"Dumping {file}")
        for line in dump_segment(file, records=args.records):
            if isinstance(line, DamageLine):
                damaged = True
                out.note(f"error: {file} at position {line.position}: {line.what}")
            elif isinstance(line, BatchLine):
                damaged |= not line.crc_is_valid
                _show_batch(out, file, line)
            else:
                fields = _entry_fields(line)
                out.answer({"file": file, **fields}, _words(fields))
    return 1 if damaged else 0


def _entry_fields(line: OffsetIndexLine | TimeIndexLine | TransactionIndexLine | ProducerLine) -> dict[str, Any]:
    """An entry of an index or a snapshot."""
    from eventbus.log.inspect import OffsetIndexLine, TimeIndexLine, TransactionIndexLine

    if isinstance(line, OffsetIndexLine):
        return {"offset": line.offset, "position": line.position}
    if isinstance(line, TimeIndexLine):
        return {"timestamp": line.timestamp_ms, "offset": line.offset}
    if isinstance(line, TransactionIndexLine):
        return {
            "producerId": line.producer_id,
            "firstOffset": line.first_offset,
            "lastOffset": line.last_offset,
            "lastStableOffset": line.last_stable_offset,
        }
    return {
        "producerId": line.producer_id,
        "producerEpoch": line.producer_epoch,
        "coordinatorEpoch": line.coordinator_epoch,
        "currentTxnFirstOffset": line.transaction_start_offset,
        "lastTimestamp": line.last_timestamp_ms,
        "batches": " ".join(f"{first}..{last}@{offset}" for first, last, offset in line.batches),
    }


def _show_batch(out: Output, file: str, line: BatchLine) -> None:
    header, records = line.header, line.records or []
    fields = _batch_fields(header, line)
    if out.json:
        shown = [_record_fields(header, record) for record in records]
        out.data({"file": file, **fields, **({"records": shown} if line.records is not None else {})})
        return
    out.line(_words(fields))
    for record in records:
        out.line(f"| {_words(_kafka_record(header, record))}")


def _batch_fields(header: BatchHeader, line: BatchLine) -> dict[str, Any]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.records_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "position": line.position,
        _timestamp_word(header): header.max_timestamp_ms,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": header.compression.name.lower(),
        "crc": header.crc,
        "isvalid": line.crc_is_valid,
    }


def _timestamp_word(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type == TimestampType.LOG_APPEND_TIME else "CreateTime"


def _kafka_record(header: BatchHeader, record: ConsumerRecord) -> dict[str, Any]:
    """One record in the words of Kafka's tool."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        _timestamp_word(header): record.timestamp_ms,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "headerKeys": f"[{','.join(name for name, _ in record.headers)}]",
    }
    if header.is_control:
        return fields | _marker(record)
    if record.key is not None:
        fields["key"] = record.key.decode(errors="replace")
    if record.value is not None:
        fields["payload"] = record.value.decode(errors="replace")
    return fields


def _marker(record: ConsumerRecord) -> dict[str, Any]:
    from eventbus.records.control import read_marker

    marker = read_marker(record.key, record.value)
    if marker is None:
        return {"controlType": "unknown"}
    return {"endTxnMarker": marker.control_type.name, "coordinatorEpoch": marker.coordinator_epoch}


def _record_fields(header: BatchHeader, record: ConsumerRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    if header.is_control:
        return fields | _marker(record)
    headers = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return fields | {**text_or_base64("key", record.key), **text_or_base64("value", record.value), "headers": headers}


def _words(fields: dict[str, Any]) -> str:
    return " ".join(
        f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
    )


# verify ---------------------------------------------------------------------------------------------------------------


def verify_directory(args: argparse.Namespace) -> int:
    from eventbus.log.inspect import verify

    out = Output.of(args)
    report = verify(_directory(args))
    if out.json:
        out.data(
            {
                "directory": report.directory,
                "ok": report.ok,
                "warnings": report.warnings,
                "partitions": [_partition_fields(partition) for partition in report.partitions],
            }
        )
    else:
        _show_report(out, report)
    return 0 if report.ok else 1


def _directory(args: argparse.Namespace) -> str:
    given: str = args.directory or args.url
    if "://" not in given:
        return given
    from eventbus.backends.urls import split_url

    scheme, rest, _ = split_url(given)
    if scheme != "file":
        raise UsageError(f"{args.program}: {given} has no files here; name a directory, as in: {args.program} ./data")
    return str(Path(unquote(rest)).expanduser())


def _partition_fields(partition: PartitionReport) -> dict[str, Any]:
    topic, number = partition.topic_partition
    return {
        "topic": topic,
        "partition": number,
        "segments": partition.segments_count,
        "batches": partition.batches_count,
        "records": partition.records_count,
        "bytes": partition.size_bytes,
        "log_start_offset": partition.log_start_offset,
        "log_end_offset": partition.log_end_offset,
        "recovery_point": partition.recovery_point,
        "state": _state(partition),
        "damage": partition.damage or None,
        "torn": partition.torn or None,
        "index_damage": partition.index_damage,
    }


def _state(partition: PartitionReport) -> str:
    if partition.damage:
        return "DAMAGED"
    if partition.torn:
        return "torn tail"
    return "index" if partition.index_damage else "ok"


def _show_report(out: Output, report: Report) -> None:
    # The thousand empty partitions of an internal topic say nothing.
    shown = [each for each in report.partitions if each.segments_count or each.damage]
    out.table(
        ["partition", "segments", "batches", "records", "bytes", "start", "end", "state"],
        [
            (
                str(each.topic_partition),
                each.segments_count,
                each.batches_count,
                each.records_count,
                each.size_bytes,
                each.log_start_offset,
                each.log_end_offset,
                _state(each),
            )
            for each in sorted(shown, key=lambda each: each.topic_partition)
        ],
    )
    for text in _remarks(report):
        out.note(text)
    if report.ok:
        out.line(f"{report.directory}: {sum(each.records_count for each in shown):,} records, no damage")
    else:
        out.note("error: what is named above was on disk and is damaged: restore the files from a copy of the log")


def _remarks(report: Report) -> Iterable[str]:
    for warning in report.warnings:
        yield f"warning: {warning}"
    for partition in report.partitions:
        if partition.damage:
            yield f"damage: {partition.damage}"
        if partition.torn:
            yield f"torn tail: {partition.torn}; the next start cuts it"
        for text in partition.index_damage:
            yield f"index: {text}; it is rebuilt when used"
