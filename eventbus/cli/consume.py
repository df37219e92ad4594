"""``eventbus consume TOPIC``: print records as Kafka's console consumer does; follows until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from eventbus.cli.output import Output, text_or_base64
from eventbus.cli.parser import Subcommands, UsageError, add_topic, key_values, natural, positive, required_topic
from eventbus.cli.shell import open_bus, run_async, until_signal
from eventbus.types import ConsumerRecord, OffsetAndMetadata, TimestampType, TopicPartition

if TYPE_CHECKING:
    import anyio

    from eventbus import Consumer, EventBus
    from eventbus.backends.base import Start

PROPERTIES = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\\t",
    "line.separator": "\\n",
    "headers.separator": ",",
    "null.literal": "null",
}
"""The properties of Kafka's default formatter with their defaults."""

_POLL_RECORDS = 1_000
_FOREVER_MS = 3_600_000


def register(subcommands: Subcommands) -> None:
    known = "\n".join(f"  {name}={value}" for name, value in PROPERTIES.items())
    parser = subcommands.add_parser(
        "consume",
        help="console consumer: print records, follow until Ctrl-C",
        description="Print the values of a topic's records, one per line, and follow until Ctrl-C.\n"
        "Without a group, --from-beginning or --offset, only records written from now on are shown.",
        epilog=f"properties (with their defaults):\n{known}",
    )
    add_topic(parser)
    parser.add_argument("--from-beginning", action="store_true", help="start at the first record there is")
    parser.add_argument("--group", metavar="GROUP", help="go on where the group stopped, and commit what was printed")
    parser.add_argument("--partition", type=natural, metavar="N", help="this partition only")
    parser.add_argument(
        "--offset",
        type=_offset,
        metavar="WHERE",
        help="earliest, latest or a number (with --partition): the next to read",
    )
    parser.add_argument("--max-messages", type=positive, metavar="N", help="stop after N records")
    parser.add_argument("--timeout-ms", type=natural, metavar="MS", help="stop when nothing came for so long")
    parser.add_argument("--property", "--formatter-property", action="append", metavar="KEY=VALUE", help="see below")
    parser.add_argument(
        "--isolation-level",
        choices=["read_committed", "read_uncommitted"],
        default="read_committed",
        metavar="LEVEL",
        help="read_committed (default) or read_uncommitted",
    )
    parser.set_defaults(run=consume)


def _offset(text: str) -> int | str:
    if text in ("earliest", "latest"):
        return text
    try:
        return natural(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or an offset of at least 0") from None


class Formatter:
    """Kafka's DefaultMessageFormatter: parts in its order, its separators, bytes as they are."""

    def __init__(self, properties: dict[str, str]) -> None:
        unknown = [name for name in properties if name not in PROPERTIES]
        if unknown:
            raise UsageError(
                f"eventbus consume: there is no property {unknown[0]!r}; there are: {', '.join(PROPERTIES)}"
            )
        given = {
            name: value.replace("\\t", "\t").replace("\\n", "\n").encode()
            for name, value in (PROPERTIES | properties).items()
        }
        self._wanted = {name: value.lower() == b"true" for name, value in given.items() if name.startswith("print.")}
        self._key_separator = given["key.separator"]
        self._line_separator = given["line.separator"]
        self._headers_separator = given["headers.separator"]
        self._null = given["null.literal"]
        self._value_only = self._wanted["print.value"] and sum(self._wanted.values()) == 1

    def format(self, record: ConsumerRecord) -> bytes:
        if self._value_only:
            return (self._null if record.value is None else record.value) + self._line_separator
        wanted, parts = self._wanted, list[bytes]()
        if wanted["print.timestamp"]:
            kind = "CreateTime" if record.timestamp_type == TimestampType.CREATE_TIME else "LogAppendTime"
            parts.append(b"NO_TIMESTAMP" if record.timestamp_ms < 0 else f"{kind}:{record.timestamp_ms}".encode())
        if wanted["print.partition"]:
            parts.append(f"Partition:{record.partition}".encode())
        if wanted["print.offset"]:
            parts.append(f"Offset:{record.offset}".encode())
        if wanted["print.headers"]:
            parts.append(self._headers(record) or b"NO_HEADERS")
        if wanted["print.key"]:
            parts.append(self._null if record.key is None else record.key)
        if wanted["print.value"]:
            parts.append(self._null if record.value is None else record.value)
        return self._key_separator.join(parts) + self._line_separator

    def _headers(self, record: ConsumerRecord) -> bytes:
        return self._headers_separator.join(
            name.encode() + b":" + (self._null if value is None else value) for name, value in record.headers
        )


class JsonFormatter:
    """One JSON object per record; bytes that are no UTF-8 come as ``value_base64``."""

    def format(self, record: ConsumerRecord) -> bytes:
        headers: list[dict[str, Any]] = [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ]
        fields: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "headers": headers,
            **text_or_base64("key", record.key),
            **text_or_base64("value", record.value),
        }
        return msgspec.json.encode(fields) + b"\n"


def consume(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    if args.from_beginning and args.offset is not None:
        raise UsageError("eventbus consume: --from-beginning and --offset both say where to start: give one")
    if isinstance(args.offset, int) and args.partition is None:
        raise UsageError("eventbus consume: --offset N needs --partition: offsets are numbered per partition")
    if args.group is not None and args.partition is not None:
        raise UsageError("eventbus consume: --group shares partitions out itself: leave out --partition")
    formatter = Formatter(key_values(args.property, "--property"))
    printing = _Printing(JsonFormatter() if out.json else formatter, sys.stdout.buffer, args.max_messages)

    async def main() -> int:
        async with open_bus(args) as bus, until_signal() as scope:
            await printing.run(bus, topic, args, scope)
        out.note(f"Processed a total of {printing.count:,} message{'' if printing.count == 1 else 's'}")
        return 0

    return run_async(main)


class _Printing:
    """Polls, prints, and commits what was printed (when there is a group)."""

    def __init__(self, formatter: Formatter | JsonFormatter, stream: BinaryIO, max_messages: int | None) -> None:
        self.formatter = formatter
        self.stream = stream
        self.max_messages = max_messages
        self.count = 0
        self._printed: dict[TopicPartition, OffsetAndMetadata] = {}

    async def run(self, bus: EventBus, topic: str, args: argparse.Namespace, scope: anyio.CancelScope) -> None:
        import anyio

        wait_ms = _FOREVER_MS if args.timeout_ms is None else args.timeout_ms
        assigned, start = await self._where(bus, topic, args)
        topics = () if assigned else (topic,)
        async with bus.new_consumer(
            *topics, group=args.group, start=start, isolation_level=args.isolation_level
        ) as consumer:
            if assigned:
                await consumer.assign(assigned)
            if isinstance(args.offset, int):
                consumer.seek(assigned[0], args.offset)
            try:
                while self.max_messages is None or self.count < self.max_messages:
                    room = _POLL_RECORDS if self.max_messages is None else self.max_messages - self.count
                    records = await consumer.poll(timeout_ms=wait_ms, max_records=min(room, _POLL_RECORDS))
                    if not records and args.timeout_ms is not None:
                        break
                    self._print(records)
                    await self._commit(consumer, args.group)
            finally:
                with anyio.CancelScope(shield=True):  # Ctrl-C between printing and committing
                    await self._commit(consumer, args.group)

    async def _where(self, bus: EventBus, topic: str, args: argparse.Namespace) -> tuple[list[TopicPartition], Start]:
        """The partitions to assign (none: the group has them) and where to begin without a committed offset."""
        [description] = await bus.admin.describe_topics([topic])  # a wrong name fails here, with the nearest one
        start: Start = "earliest" if args.from_beginning else "latest"
        if args.offset == "earliest" or args.offset == "latest":
            start = args.offset
        if args.group is not None:
            return [], start
        numbers = [part.partition for part in description.partitions]
        if args.partition is not None and args.partition not in numbers:
            raise UsageError(
                f"eventbus consume: {topic!r} has partitions {numbers[0]} to {numbers[-1]}, no {args.partition}"
            )
        chosen = numbers if args.partition is None else [args.partition]
        return [TopicPartition(topic, number) for number in chosen], start

    def _print(self, records: list[ConsumerRecord]) -> None:
        self.stream.write(b"".join(map(self.formatter.format, records)))
        self.stream.flush()
        self.count += len(records)
        for record in records:
            self._printed[record.topic_partition] = OffsetAndMetadata(record.next_offset)

    async def _commit(self, consumer: Consumer, group: str | None) -> None:
        printed, self._printed = self._printed, {}
        if group is not None and printed:
            await consumer.commit(printed)
