"""``eventbus log dump FILE``, ``log verify DIR`` and ``log repair DIR``: a log's files, without opening the log."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from eventbus.cli.formatters import deserializer
from eventbus.cli.output import Output, text_or_base64
from eventbus.cli.parser import Subcommands, UsageError, positive
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
    from eventbus.records.batch import BatchHeader


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("log", help="dump a segment file, verify or repair a directory")
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
    dump.add_argument("--deep-iteration", action="store_true", dest="records", help=argparse.SUPPRESS)
    for flag, (topic, _) in _DECODERS.items():
        dump.add_argument(f"--{flag}", action="store_const", dest="decoder", const=flag, help=f"as records of {topic}")
    for flag in _ABSENT:
        dump.add_argument(f"--{flag}", action="store_const", dest="decoder", const=flag, help=argparse.SUPPRESS)
    for part in ("key", "value"):
        dump.add_argument(
            f"--{part}-decoder-class",
            type=decoder_name,
            metavar="CLASS",
            help=f"how {part}s are shown: String, Long, ...",
        )
    dump.add_argument("--skip-record-metadata", action="store_true", help="records without what stands before the key")
    dump.add_argument("--verify-index-only", action="store_true", help="check an index, print none of it")
    dump.add_argument("--index-sanity-check", action="store_true", dest="verify_index_only", help=argparse.SUPPRESS)
    dump.add_argument("--max-bytes", type=positive, metavar="BYTES", help="stop after so much of a .log file")
    dump.add_argument("--max-message-size", type=positive, metavar="BYTES", help=argparse.SUPPRESS)  # there is no limit
    dump.set_defaults(run=dump_files)

    verify = actions.add_parser(
        "verify",
        help="read every byte: CRCs, offsets, indexes",
        description="Check every batch of every partition. Exit code 1 when something that was on disk is damaged; a\n"
        "torn tail, as a crash leaves it, is cut by the next start and is no damage. Changes nothing.",
    )
    verify.add_argument("directory", nargs="?", metavar="DIR", help="default: the directory of --url")
    verify.set_defaults(run=verify_directory)

    repair = actions.add_parser(
        "repair",
        help="give up what is damaged, and nothing else",
        description="Show what giving up the damaged bytes of a log costs, per partition and per transaction; with\n"
        "--execute do it. The lost offsets stay empty, everything before and after them stays readable, and what is\n"
        "cut is kept in a side folder of DIR. Restore the files from a backup instead, if there is one. Exit code 1\n"
        "when there is damage and nothing was changed.",
    )
    repair.add_argument("directory", nargs="?", metavar="DIR", help="default: the directory of --url")
    repair.add_argument("--execute", action="store_true", help="repair the log; without it nothing is changed")
    repair.set_defaults(run=repair_directory)


# dump -----------------------------------------------------------------------------------------------------------------

_DECODERS = {
    "offsets-decoder": ("__consumer_offsets", "offsets_decoder"),
    "transaction-log-decoder": ("__transaction_state", "transactions_decoder"),
    "cluster-metadata-decoder": ("__cluster_metadata", "metadata_decoder"),
}
"""Flags, the topics they are for, and the functions of `eventbus.cli.dump_decoders`."""
_ABSENT = ("remote-log-metadata-decoder", "share-group-state-decoder")
"""For topics of Kafka's that this log does not have."""


def decoder_name(text: str) -> str:
    """Return an argparse type: a decoder of Kafka's by its class's name, with or without the package."""
    name = text.rpartition(".")[2].removesuffix("Decoder")
    if name == "Default":
        return "ByteArray"
    try:
        deserializer(name)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


class _Shown(NamedTuple):
    """What of the records is shown, and how."""

    decoder: Callable[[ConsumerRecord], tuple[str, str]] | None
    read_key: Callable[[bytes], bytes]
    read_value: Callable[[bytes], bytes]
    without_metadata: bool


def dump_files(args: argparse.Namespace) -> int:
    from eventbus.log.inspect import BatchLine, DamageLine, dump_segment

    files: list[str] = [*args.files, *(args.file_list.split(",") if args.file_list else [])]
    if not files:
        raise UsageError(f"{args.program}: which file? As in: {args.program} data/orders-0/00000000000000000000.log")
    shown, out, damaged = _shown(args), Output.of(args), False
    records: bool = args.records or shown.decoder is not None or args.skip_record_metadata
    for file in files:
        if not out.json:
            out.line(f"Dumping {file}")
        for line in dump_segment(file, records=records):
            if isinstance(line, DamageLine):
                damaged = True
                out.note(f"error: {file} at position {line.position}: {line.what}")
            elif isinstance(line, BatchLine):
                if args.max_bytes is not None and line.position + line.header.size_bytes > args.max_bytes:
                    break
                damaged |= not line.crc_is_valid
                _show_batch(out, file, line, shown)
            elif not args.verify_index_only:
                fields = _entry_fields(line)
                out.answer({"file": file, **fields}, _words(fields))
        if args.verify_index_only and not damaged:
            out.answer({"file": file, "ok": True}, f"{file} passed sanity check.")
    return 1 if damaged else 0


def _shown(args: argparse.Namespace) -> _Shown:
    if args.decoder in _ABSENT:
        raise UsageError(f"{args.program}: --{args.decoder}: this log has no such topic, so no such file")
    decoder = None
    if args.decoder is not None:
        from eventbus.cli import dump_decoders

        decoder = getattr(dump_decoders, _DECODERS[args.decoder][1])
    key, value = (deserializer(name or "String") for name in (args.key_decoder_class, args.value_decoder_class))
    return _Shown(decoder, key, value, args.skip_record_metadata)


def _entry_fields(line: OffsetIndexLine | TimeIndexLine | TransactionIndexLine | ProducerLine) -> dict[str, Any]:
    """Return an entry of an index or a snapshot."""
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


def _show_batch(out: Output, file: str, line: BatchLine, shown: _Shown) -> None:
    header, records = line.header, line.records or []
    fields = _batch_fields(header, line)
    if out.json:
        told = [_record_fields(header, record) for record in records]
        out.data({"file": file, **fields, **({"records": told} if line.records is not None else {})})
        return
    out.line(_words(fields))
    for record in records:
        if header.is_control and shown.without_metadata:
            continue
        out.line(f"| {_words(_kafka_record(header, record, shown))}")


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


def _kafka_record(header: BatchHeader, record: ConsumerRecord, shown: _Shown) -> dict[str, Any]:
    """Return one record in the words of Kafka's tool."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        _timestamp_word(header): record.timestamp_ms,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "headerKeys": f"[{','.join(name for name, _ in record.headers)}]",
    }
    if header.is_control:
        return fields | _marker(record)
    if shown.without_metadata:
        fields = {}
    if shown.decoder is not None:
        from eventbus.protocol.source import MalformedMessage

        try:
            key, payload = shown.decoder(record)
        except MalformedMessage as error:
            return fields | {"error": str(error)}
        return fields | ({"key": key} if key else {}) | {"payload": payload}
    if record.key is not None:
        fields["key"] = shown.read_key(record.key).decode(errors="replace")
    if record.value is not None:
        fields["payload"] = shown.read_value(record.value).decode(errors="replace")
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
                "damage": report.damage,
                "partitions": [_partition_fields(partition) for partition in report.partitions],
            }
        )
    else:
        _show_report(out, report)
    return 0 if report.ok else 1


def repair_directory(args: argparse.Namespace) -> int:
    from eventbus.cli.repair import repair

    return repair(_directory(args), Output.of(args), execute=args.execute)


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
        out.note(
            "error: what is named above was on disk and is damaged. Restore the files from a copy of the log; if there "
            f"is none, see what giving them up costs: eventbus log repair {report.directory}"
        )


def _remarks(report: Report) -> Iterable[str]:
    for warning in report.warnings:
        yield f"warning: {warning}"
    for damage in report.damage:
        yield f"damage: {damage}"
    for partition in report.partitions:
        if partition.damage:
            yield f"damage: {partition.damage}"
        if partition.torn:
            yield f"torn tail: {partition.torn}; the next start cuts it"
        for text in partition.index_damage:
            yield f"index: {text}; it is rebuilt when used"
