"""``eventbus produce TOPIC``: one record per line of stdin, with the properties of Kafka's console producer."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from eventbus.cli.avro_files import FromFile
from eventbus.cli.output import Output
from eventbus.cli.parser import (
    Subcommands,
    UsageError,
    add_topic,
    key_values,
    natural,
    positive,
    read_properties,
    required_topic,
)
from eventbus.cli.properties import properties_of
from eventbus.cli.schema_values import FromJson, add_schema, avro_of, parts_of
from eventbus.cli.shell import open_bus, own_keywords, until_signal
from eventbus.errors import BufferExhausted, EventBusError
from eventbus.format import format_count
from eventbus.types import Headers

if TYPE_CHECKING:
    from eventbus import Delivery, Producer

PROPERTIES = {
    "parse.key": "false",
    "key.separator": "\\t",
    "parse.headers": "false",
    "headers.delimiter": "\\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": "",
    "ignore.error": "false",
}
"""Kafka's reader properties with their defaults; ``\\t`` and ``\\n`` may be written as two characters."""

_CHUNK_BYTES = 65_536


def register(subcommands: Subcommands) -> None:
    known = "\n".join(f"  {name}={value}" for name, value in PROPERTIES.items())
    parser = subcommands.add_parser(
        "produce",
        help="console producer: one record per line of stdin",
        description="Publish each line of stdin as one record. On a terminal every line is acknowledged before the\n"
        "next prompt; Ctrl-D ends.",
        epilog=f"properties (with their defaults):\n{known}\n\n"
        "  eventbus produce orders --property parse.key=true --property key.separator=:\n"
        "  >o-1:ten euros",
    )
    add_topic(parser)
    parser.add_argument("--property", "--reader-property", action="append", metavar="KEY=VALUE", help="see below")
    parser.add_argument("--reader-config", metavar="FILE", help="the same, from a properties file")
    parser.add_argument("--key", metavar="TEXT", help="the key of every record")
    add_schema(parser, "and lines are JSON, written in the subject's latest schema")
    parser.add_argument("--input", metavar="FILE.avro", help="send the values of an Avro file; with --schema")
    parser.add_argument("--header", action="append", metavar="NAME=VALUE", help="a header of every record; repeatable")
    parser.add_argument("--partition", type=natural, metavar="N", help="the partition of every record")
    parser.add_argument(
        "--compression-type",
        "--compression-codec",
        nargs="?",
        const="gzip",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        metavar="CODEC",
        help="none (default), gzip, snappy, lz4 or zstd",
    )
    parser.add_argument(
        "--acks",
        "--request-required-acks",
        choices=["0", "1", "all", "-1"],
        metavar="ACKS",
        help="all (default): on disk; 1: written; 0: not waited for",
    )
    parser.add_argument("--batch-size", type=positive, metavar="BYTES", help="a batch leaves at this size")
    parser.add_argument(
        "--linger-ms", "--timeout", type=natural, metavar="MS", help="how long a batch waits for company"
    )
    parser.add_argument("--sync", action="store_true", help="wait for each record before the next one is sent")
    parser.add_argument(
        "--producer-property", action="append", metavar="KEY=VALUE", help="a setting of the producer; repeatable"
    )
    parser.add_argument("--producer.config", dest="producer_config", metavar="FILE", help="the same, from a file")
    parser.add_argument(
        "--line-reader", type=_line_reader, metavar="CLASS", help=argparse.SUPPRESS
    )  # Kafka's own is the one there is
    for flag, key in _OLD_FLAGS.items():
        parser.add_argument(f"--{flag}", type=int, metavar="N", help=argparse.SUPPRESS, dest=key)
    parser.set_defaults(run=produce)


_OLD_FLAGS = {
    "max-block-ms": "max.block.ms",
    "max-memory-bytes": "buffer.memory",
    "max-partition-memory-bytes": "batch.size",
    "message-send-max-retries": "retries",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "request-timeout-ms": "request.timeout.ms",
    "retry-backoff-ms": "retry.backoff.ms",
    "socket-buffer-size": "send.buffer.bytes",
}
"""Flags of Kafka's console producer, and the producer's settings that they are."""

_FLAGS = {"acks": "acks", "compression_type": "compression.type", "batch_size": "batch.size", "linger_ms": "linger.ms"}


def _line_reader(text: str) -> str:
    """Return an argparse type: Kafka's reader, whose every property is known here."""
    if text.rpartition(".")[2].rpartition("$")[2] != "LineMessageReader":
        raise argparse.ArgumentTypeError(f"{text!r} is a class of Java's; LineMessageReader is what there is")
    return text


def producer_properties(args: argparse.Namespace, **defaults: str) -> dict[str, str]:
    """Settings of the producer, and of its connection: files, then properties, then the flags that have names."""
    given = defaults | properties_of(args, ["producer_config"], ["producer_property"])
    for name, key in {**{key: key for key in _OLD_FLAGS.values()}, **_FLAGS}.items():
        value = getattr(args, name, None)
        given |= {} if value is None else {key: str(value)}
    return given


class ParsedLine(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class LineParser:
    """Turns a line into key, value and headers, as Kafka's LineMessageReader does."""

    def __init__(self, properties: dict[str, str], *, key: str | None, headers: Headers) -> None:
        unknown = [name for name in properties if name not in PROPERTIES]
        if unknown:
            raise UsageError(
                f"eventbus produce: there is no property {unknown[0]!r}; there are: {', '.join(PROPERTIES)}"
            )
        given = {name: _unescape(value).encode() for name, value in (PROPERTIES | properties).items()}
        self.parse_key = given["parse.key"].lower() == b"true"
        self.parse_headers = given["parse.headers"].lower() == b"true"
        self.ignore_error = given["ignore.error"].lower() == b"true"
        self.key_separator = given["key.separator"]
        self.headers_delimiter = given["headers.delimiter"]
        self.headers_separator = given["headers.separator"]
        self.header_key_separator = given["headers.key.separator"]
        self.null_marker = given["null.marker"] or None
        if self.parse_key and key is not None:
            raise UsageError(
                "eventbus produce: --key and --property parse.key=true are two ways to give the key: use one"
            )
        if self.parse_headers and self.headers_delimiter == self.headers_separator:
            raise UsageError("eventbus produce: headers.delimiter and headers.separator must differ")
        self.key = None if key is None else key.encode()
        self.headers = headers
        self.in_avro: FromJson | None = None
        """What `read` makes of the lines; None: they are sent as they are."""

    def parse(self, line: bytes, number: int) -> ParsedLine:
        headers, key, rest = self.headers, self.key, line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers.delimiter", number)
            if text is not None:
                headers = (*headers, *self._headers(text, number))
        if self.parse_key:
            parsed, rest = self._split(rest, self.key_separator, "key.separator", number)
            key = None if parsed is None or parsed == self.null_marker else parsed
        return ParsedLine(key, None if rest == self.null_marker else rest, headers)

    async def read(self, line: bytes, number: int) -> ParsedLine:
        """As `parse`, in the registry's schemas."""
        parsed = self.parse(line, number)
        if self.in_avro is None:
            return parsed
        from anyio.to_thread import run_sync

        return ParsedLine(*await run_sync(self.in_avro, parsed.key, parsed.value, number), parsed.headers)

    def _split(self, text: bytes, separator: bytes, name: str, number: int) -> tuple[bytes | None, bytes]:
        before, found, after = text.partition(separator)
        if found:
            return (None if before == self.null_marker else before), after
        if self.ignore_error:
            return None, text
        raise EventBusError(
            f"line {number} has no {name} {separator.decode()!r}: {text[:60].decode(errors='replace')!r}; "
            "mend it, or let such lines pass without a key: --property ignore.error=true"
        )

    def _headers(self, text: bytes, number: int) -> Headers:
        result: list[tuple[str, bytes | None]] = []
        for pair in text.split(self.headers_separator) if text else ():
            name, found, value = pair.partition(self.header_key_separator)
            if not found and not self.ignore_error:
                raise EventBusError(
                    f"line {number}: header {pair.decode(errors='replace')!r} has no headers.key.separator "
                    f"{self.header_key_separator.decode()!r}"
                )
            result.append((name.decode(errors="replace"), None if value == self.null_marker else value))
        return tuple(result)


def _unescape(text: str) -> str:
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")


class _Tally:
    """What became of the records. A batch has one outcome, so one handle of each batch is enough to keep."""

    def __init__(self) -> None:
        self._firsts: list[Delivery] = []
        self._awaited = 0

    def add(self, delivery: Delivery) -> None:
        if delivery.index == 0:
            self._firsts.append(delivery)

    def add_stored(self) -> None:
        self._awaited += 1

    @property
    def stored(self) -> int:
        """Records known to be stored; ask after the producer is closed."""
        return self._awaited + sum(
            delivery.batch.count for delivery in self._firsts if delivery.done() and delivery.exception() is None
        )

    @property
    def first_error(self) -> EventBusError | None:
        errors = (delivery.exception() for delivery in self._firsts)
        return next((error for error in errors if error is not None), None)


async def produce(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    fixed = tuple((name, value.encode()) for name, value in key_values(args.header, "--header").items())
    reading = {} if args.reader_config is None else read_properties(args.reader_config)
    parser = LineParser(reading | key_values(args.property, "--property"), key=args.key, headers=fixed)
    properties = producer_properties(args)
    config = own_keywords(properties)
    keys = avro_of(args.key_schema, "--key-schema", use_latest=True)
    file = None if args.input is None else FromFile(args.input, args.schema, topic)
    values = avro_of(args.schema, "--schema", use_latest=True) if file is None else file.avro
    if keys is not None or values is not None:
        parser.in_avro = FromJson(topic, keys, values)

    with nullcontext() if file is None else closing(file):
        tally = _Tally()
        bus = open_bus(args, properties=properties)
        bus.include(*parts_of(keys, values))
        async with bus:
            await bus.admin.describe_topics([topic])  # a wrong name is told before anything is typed
            async with bus.new_producer(**config) as producer, until_signal() as scope:
                if file is None and sys.stdin.isatty():
                    await _interactive(producer, topic, args.partition, parser, tally, out)
                else:
                    try:
                        lines = _lines(parser) if file is None else _values(file, parser)
                        await _piped(producer, topic, args.partition, lines, tally, each=args.sync)
                    except EventBusError as error:
                        await producer.flush()
                        if stored := tally.stored:
                            error.add_note(f"{stored:,} record(s) before that are stored: do not give them again")
                        raise
        stored = tally.stored
        summary = f"{format_count(stored, 'record')} to {topic}"
        if tally.first_error is not None:
            out.note(f"{summary}, the others failed")
            raise tally.first_error
        if out.json:
            out.data({"topic": topic, "records": stored, "interrupted": scope.cancel_called})
        else:
            out.note(f"interrupted after {summary}" if scope.cancel_called else summary)
        return 130 if scope.cancel_called else 0


async def _piped(
    producer: Producer,
    topic: str,
    partition: int | None,
    lines: AsyncIterator[ParsedLine],
    tally: _Tally,
    *,
    each: bool,
) -> None:
    """``each``: wait for the record before, as ``--sync`` has it."""

    def send(line: ParsedLine) -> None:
        key, value, headers = line
        tally.add(producer.send_nowait(topic, value, key=key, headers=headers, partition=partition))

    async for line in lines:
        try:
            send(line)
        except BufferExhausted:
            await producer.wait_for_room()
            send(line)
        if each:
            await producer.flush()
    await producer.flush()


async def _lines(parser: LineParser) -> AsyncIterator[ParsedLine]:
    number = 0
    async for lines in read_lines(sys.stdin.fileno()):
        for text in lines:
            number += 1
            yield await parser.read(text, number)


async def _values(file: FromFile, parser: LineParser) -> AsyncIterator[ParsedLine]:
    from anyio.to_thread import run_sync

    while values := await run_sync(file.take):
        for value in values:
            yield ParsedLine(parser.key, value, parser.headers)


async def _interactive(
    producer: Producer, topic: str, partition: int | None, parser: LineParser, tally: _Tally, out: Output
) -> None:
    out.note(f"one record per line to {topic}; Ctrl-D ends")
    number = 0
    print(">", end="", flush=True)
    async for lines in read_lines(sys.stdin.fileno()):
        for line in lines:
            number += 1
            try:
                key, value, headers = await parser.read(line, number)
                await producer.send(topic, value, key=key, headers=headers, partition=partition)
                tally.add_stored()
            except EventBusError as error:
                out.note(f"error: {error}")
        print(">", end="", flush=True)
    print()


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of lines as they come, without their ends (LF or CRLF); a last line without one counts too.

    Pipes and terminals are waited for on the event loop, so a signal ends the wait; a regular file never blocks.
    """
    import anyio

    regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    rest = b""
    while True:
        if regular:
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]
