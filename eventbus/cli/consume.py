"""``eventbus consume TOPIC``: print records as Kafka's console consumer does; follows until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from eventbus.cli.avro_files import ToFile
from eventbus.cli.formatters import (
    FORMATTERS,
    PROPERTIES,
    JsonFormatter,
    NoOpFormatter,
    RecordFormatter,
    formatter_name,
)
from eventbus.cli.output import Output
from eventbus.cli.parser import (
    Subcommands,
    UsageError,
    add_topic,
    key_values,
    natural,
    positive,
    read_properties,
    topic_of,
)
from eventbus.cli.properties import properties_of
from eventbus.cli.schema_values import AsJson, add_schema, avro_of, parts_of
from eventbus.cli.shell import open_bus, own_keywords, until_signal
from eventbus.cli.topics import matching
from eventbus.format import format_count
from eventbus.types import ConsumerRecord, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import anyio

    from eventbus import Consumer, EventBus
    from eventbus.backends.base import Start
    from eventbus.middleware.claim_check import ClaimCheck

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
    add_topic(parser, required=False)
    parser.add_argument("--include", "--whitelist", metavar="PATTERN", help="all topics whose names match, instead")
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
    parser.add_argument("--formatter-config", metavar="FILE", help="the same, from a properties file")
    parser.add_argument("--formatter", type=formatter_name, default="DefaultMessageFormatter", help=argparse.SUPPRESS)
    parser.add_argument("--key-deserializer", metavar="CLASS", help="how keys are printed: as Integer, Long, ...")
    parser.add_argument("--value-deserializer", metavar="CLASS", help="how values are printed")
    add_schema(parser, "printed as JSON")
    parser.add_argument("--output", metavar="FILE.avro", help="write the values there, as an Avro file; with --schema")
    parser.add_argument(
        "--claims",
        metavar="DIR",
        help="the directory of a claim check: print values, not their names in it",
    )
    parser.add_argument(
        "--consumer-property", action="append", metavar="KEY=VALUE", help="a setting of the consumer; repeatable"
    )
    parser.add_argument("--consumer.config", dest="consumer_config", metavar="FILE", help="the same, from a file")
    parser.add_argument("--enable-systest-events", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip-message-on-error", action="store_true", help="leave out what cannot be printed")
    parser.add_argument(
        "--isolation-level",
        choices=["read_committed", "read_uncommitted"],
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


async def consume(args: argparse.Namespace) -> int:
    topic, out = topic_of(args), Output.of(args)
    if (topic is None) == (args.include is None):
        raise UsageError(f"{args.program}: which topic? Give its name, or --include PATTERN, one of the two")
    properties = properties_of(args, ["consumer_config"], ["consumer_property"])
    args.group = args.group or properties.pop("group.id", None)
    args.from_beginning |= properties.get("auto.offset.reset") == "earliest" and args.offset is None
    _check(args)
    reading = {} if args.formatter_config is None else read_properties(args.formatter_config)
    reading |= key_values(args.property, "--property")
    for part in ("key", "value"):
        name: str | None = getattr(args, f"{part}_deserializer")
        reading |= {} if name is None else {f"{part}.deserializer": name}
    formatter = FORMATTERS[args.formatter](reading)
    keys, values = avro_of(args.key_schema, "--key-schema"), avro_of(args.schema, "--schema")
    file = None if args.output is None else ToFile(args.output, values, topic)
    if file is not None:
        formatter = NoOpFormatter()
    elif out.json:
        formatter = JsonFormatter()
    printing = _Printing(
        formatter, sys.stdout.buffer, args.max_messages, args.skip_message_on_error,
        file or (None if keys is None and values is None else AsJson(keys, values)),
    )  # fmt: skip

    with contextlib.nullcontext() if file is None else contextlib.closing(file):
        bus = open_bus(args, properties=properties)
        bus.include(*parts_of(keys, values))
        if args.claims is not None:
            bus.include(_claims_in(args.claims))
        async with bus, until_signal() as scope:
            await printing.run(bus, topic, args, own_keywords(properties), scope)
        if printing.references:
            out.note(
                f"{printing.references:,} values are in the store of a claim check. Their names in it were printed. "
                "Give --claims DIR to print the values."
            )
        if file is not None and file.tombstones:
            out.note(f"{file.tombstones:,} tombstones are not in {args.output}: an Avro file holds values only.")
        if args.enable_systest_events:
            out.line("shutdown_complete")  # what Kafka's system tests wait for
        out.note(f"Processed a total of {format_count(printing.count, 'message')}")
        return 0


def _claims_in(path: str) -> ClaimCheck:
    from eventbus.middleware.claim_check import ClaimCheck, Directory

    if not Path(path).is_dir():
        raise UsageError(f"eventbus consume: --claims {path} is not a directory. Give the one of Directory(...).")
    return ClaimCheck(Directory(path))


def _check(args: argparse.Namespace) -> None:
    if args.from_beginning and args.offset is not None:
        raise UsageError("eventbus consume: --from-beginning and --offset both say where to start: give one")
    if isinstance(args.offset, int) and args.partition is None:
        raise UsageError("eventbus consume: --offset N needs --partition: offsets are numbered per partition")
    if args.group is not None and args.partition is not None:
        raise UsageError("eventbus consume: --group shares partitions out itself: leave out --partition")
    if args.include is not None and args.partition is not None:
        raise UsageError("eventbus consume: --include is for all partitions of its topics: leave out --partition")


def _start(args: argparse.Namespace) -> Start:
    """Return where to start if the group has no committed offset."""
    if args.offset == "earliest" or args.offset == "latest":
        return args.offset
    return "earliest" if args.from_beginning else "latest"


class _Printing:
    """Poll records, print them, and commit the offsets of printed records if there is a group."""

    def __init__(
        self,
        formatter: RecordFormatter,
        stream: BinaryIO,
        max_messages: int | None,
        lenient: bool,
        as_json: AsJson | None = None,
    ) -> None:
        """``lenient``: a record that cannot be printed is left out. ``as_json``: reads what is in Avro."""
        self.formatter = formatter
        self.stream = stream
        self.max_messages = max_messages
        self.lenient = lenient
        self.as_json = as_json
        self.count = 0
        self.references = 0
        """Values of which the name in a claim check's store was printed."""
        self._printed: dict[TopicPartition, OffsetAndMetadata] = {}

    async def run(
        self,
        bus: EventBus,
        topic: str | None,
        args: argparse.Namespace,
        config: dict[str, Any],
        scope: anyio.CancelScope,
    ) -> None:
        import anyio

        wait_ms = _FOREVER_MS if args.timeout_ms is None else args.timeout_ms
        assigned = await self._partitions(bus, topic, args)
        settings: dict[str, Any] = {**config, "start": _start(args)}
        reset = settings.pop("auto_offset_reset", None)
        if reset is not None and not args.from_beginning and args.offset is None:
            settings["start"] = reset
        if args.isolation_level is not None:
            settings["isolation_level"] = args.isolation_level
        topics = (topic,) if topic is not None and not assigned else ()
        pattern = args.include.replace(",", "|") if args.include is not None and not assigned else None
        async with bus.new_consumer(*topics, pattern=pattern, group=args.group, **settings) as consumer:
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
                    await self._print(records)
                    await self._commit(consumer, args.group)
            finally:
                with anyio.CancelScope(shield=True):  # Ctrl-C between printing and committing
                    await self._commit(consumer, args.group)

    async def _partitions(self, bus: EventBus, topic: str | None, args: argparse.Namespace) -> list[TopicPartition]:
        """Return the partitions to assign; none: the group has them. A wrong name fails here, with the nearest one."""
        if topic is None:
            chosen = matching(args.include, await bus.admin.list_topics(), required=args.group is None)
        else:
            chosen = [topic]
        found: list[TopicPartition] = []
        for description in await bus.admin.describe_topics(chosen):
            numbers = [part.partition for part in description.partitions]
            if args.partition is not None and args.partition not in numbers:
                raise UsageError(
                    f"eventbus consume: {topic!r} has partitions {numbers[0]} to {numbers[-1]}, no {args.partition}"
                )
            wanted = numbers if args.partition is None else [args.partition]
            found += [TopicPartition(description.name, number) for number in wanted]
        return found if args.group is None else []

    async def _print(self, records: list[ConsumerRecord]) -> None:
        from eventbus.client.consuming.restoring import CLAIM_CHECK

        wrong = None
        if self.as_json is not None:
            from anyio.to_thread import run_sync

            records, wrong = await run_sync(self.as_json, records, self.lenient)
        if self.lenient:
            self._print_what_can_be(records)
        else:
            self.stream.write(b"".join(map(self.formatter.format, records)))
        self.stream.flush()
        self.count += len(records)
        self.references += sum(record.header(CLAIM_CHECK) is not None for record in records if record.headers)
        for record in records:
            self._printed[record.topic_partition] = OffsetAndMetadata(record.next_offset)
        if wrong is not None:
            raise wrong

    def _print_what_can_be(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            with contextlib.suppress(UsageError, ValueError):
                self.stream.write(self.formatter.format(record))

    async def _commit(self, consumer: Consumer, group: str | None) -> None:
        printed, self._printed = self._printed, {}
        if group is not None and printed:
            await consumer.commit(printed)
