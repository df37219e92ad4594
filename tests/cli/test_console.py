"""``eventbus produce`` and ``eventbus consume``."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.cli.formatters import Formatter
from eventbus.cli.produce import LineParser, ParsedLine
from eventbus.errors import EventBusError
from eventbus.types import ConsumerRecord, TimestampType

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]


def read_all(cli: Cli, topic: str, *properties: str, **options: Any) -> Any:
    flags = [flag for name in properties for flag in ("--property", name)]
    return cli("consume", topic, "--from-beginning", "--timeout-ms", "50", *flags, **options)


def test_round_trip_with_keys_and_headers(cli: Cli) -> None:
    cli("topics", "create", "orders")
    produced = cli(
        "produce",
        "orders",
        *("--property", "parse.key=true", "--property", "key.separator=:", "--property", "parse.headers=true"),
        stdin=b"trace:1,lang:en\to-1:ten euros\n\to-2:a:b\nempty:\t:\n",
    )
    assert produced == (0, "", "3 records to orders\n")
    shown = read_all(cli, "orders", "print.key=true", "print.headers=true", "print.offset=true", "print.partition=true")
    assert shown.lines == [
        "Partition:0\tOffset:0\ttrace:1,lang:en\to-1\tten euros",
        "Partition:0\tOffset:1\tNO_HEADERS\to-2\ta:b",
        "Partition:0\tOffset:2\tempty:\t\t",
    ]
    assert shown.code == 0
    assert shown.err == "Processed a total of 3 messages\n"


def test_values_of_a_claim_check_are_printed_from_their_directory(cli: Cli, tmp_path: Path) -> None:
    from eventbus.middleware import Directory

    cli("topics", "create", "orders")
    name = hashlib.sha256(b"ten euros").hexdigest()
    Directory(tmp_path / "claims").put(name, b"ten euros")
    cli("produce", "orders", "--header", "claim-check=9", stdin=name.encode())
    shown = read_all(cli, "orders")
    assert shown.lines == [name]
    assert "1 values are in the store of a claim check." in shown.err and "Give --claims DIR" in shown.err
    whole = cli("consume", "orders", "--from-beginning", "--timeout-ms", "50", "--claims", str(tmp_path / "claims"))
    assert (whole.lines, "claim check" in whole.err) == (["ten euros"], False)
    wrong = cli("consume", "orders", "--claims", str(tmp_path / "claim"))
    assert wrong.code != 0 and "is not a directory" in wrong.err


@pytest.mark.system
def test_fixed_key_headers_partition_and_every_codec(cli: Cli) -> None:
    cli("topics", "create", "orders", "--partitions", "3")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        flags = ("--key", "k", "--header", "by=hand", "--header", "n=1", "--partition", "2", "--acks", "1")
        assert cli("produce", "orders", *flags, "--compression-type", codec, stdin=codec.encode()).code == 0
    shown = read_all(cli, "orders", "print.key=true", "print.headers=true", "print.partition=true")
    assert shown.lines == [f"Partition:2\tby:hand,n:1\tk\t{name}" for name in ("none", "gzip", "snappy", "lz4", "zstd")]


@pytest.mark.parametrize("stdin", [b"a\nb\nc\n", b"a\r\nb\r\nc\r\n", b"a\nb\nc"])
def test_line_ends(cli: Cli, stdin: bytes) -> None:
    cli("topics", "create", "orders")
    assert cli("produce", "orders", stdin=stdin).err == "3 records to orders\n"
    assert read_all(cli, "orders").lines == ["a", "b", "c"]


@pytest.mark.system
def test_lines_longer_than_a_read_and_many_of_them_arrive_whole(cli: Cli) -> None:
    cli("topics", "create", "orders")
    lines = [b"%d " % number + b"x" * (number * 7 % 200_000) for number in range(0, 60_000, 997)]
    assert cli("produce", "orders", stdin=b"\n".join(lines)).code == 0
    assert read_all(cli, "orders").lines == [line.decode() for line in lines]


@pytest.mark.system
def test_nulls_and_empty_values_stay_apart(cli: Cli) -> None:
    cli("topics", "create", "orders")
    properties = [flag for p in ("parse.key=true", "key.separator=:", "null.marker=NULL") for flag in ("--property", p)]
    cli("produce", "orders", *properties, stdin=b"k:NULL\nNULL:v\n:\n")
    assert read_all(cli, "orders", "print.key=true").lines == ["k\tnull", "null\tv", "\t"]
    assert read_all(cli, "orders", "print.key=true", "null.literal=-", "key.separator=|").lines == ["k|-", "-|v", "|"]


def test_consume_json(cli: Cli) -> None:
    cli("topics", "create", "orders")
    cli("produce", "orders", "--key", "k", "--header", "h=1", stdin=b"text\n\xff\xfe\n")
    result = cli("consume", "orders", "--from-beginning", "--timeout-ms", "50", "--json")
    first, second = (json.loads(line) for line in result.lines)
    assert first["timestamp_ms"] > 1_600_000_000_000
    del first["timestamp_ms"]
    assert first == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "headers": [{"name": "h", "value": "1"}],
        "key": "k",
        "value": "text",
    }
    assert base64.b64decode(second["value_base64"]) == b"\xff\xfe" and "value" not in second


def test_produce_json(cli: Cli) -> None:
    cli("topics", "create", "orders")
    result = cli("produce", "orders", "--json", stdin=b"a\nb\n")
    assert result.json == {"topic": "orders", "records": 2, "interrupted": False}


@pytest.mark.system
def test_where_to_start(orders: Cli) -> None:
    everything = read_all(orders, "orders").lines
    assert sorted(everything) == [f"value {number}" for number in range(6)]
    assert orders("consume", "orders", "--timeout-ms", "50").lines == []  # from now on
    partition = next(number for number in range(3) if _count(orders, number) >= 2)
    part = ("consume", "orders", "--partition", str(partition), "--timeout-ms", "50")
    whole = orders(*part, "--offset", "earliest").lines
    assert orders(*part, "--offset", "1").lines == whole[1:]
    assert orders(*part, "--offset", "latest").lines == []
    assert orders(*part, "--from-beginning").lines == whole
    assert orders("consume", "orders", "--offset", "earliest", "--timeout-ms", "50").lines == everything


def _count(cli: Cli, partition: int) -> int:
    return cli("offsets", "orders", "--partitions", str(partition), "--json").json[0]["count"]


def test_max_messages(orders: Cli) -> None:
    result = orders("consume", "orders", "--from-beginning", "--max-messages", "4")
    assert len(result.lines) == 4
    assert result.err == "Processed a total of 4 messages\n"


@pytest.mark.system
def test_a_group_goes_on_where_it_stopped(orders: Cli) -> None:
    seen: list[str] = []
    for expected in (4, 2, 0):
        result = orders(
            "consume", "orders", "--from-beginning", "--group", "g", "--max-messages", "4", "--timeout-ms", "50"
        )
        assert len(result.lines) == expected
        seen += result.lines
    assert sorted(seen) == [f"value {number}" for number in range(6)]
    assert len(read_all(orders, "orders").lines) == 6  # no group: not disturbed


@pytest.mark.system
def test_timestamps(orders: Cli) -> None:
    for line in read_all(orders, "orders", "print.timestamp=true").lines:
        kind, _, rest = line.partition(":")
        assert kind == "CreateTime"
        assert abs(int(rest.split("\t")[0]) - time.time() * 1000) < 60_000
    orders("topics", "create", "stamped", "--config", "message.timestamp.type=LogAppendTime")
    orders("produce", "stamped", stdin=b"x")
    assert read_all(orders, "stamped", "print.timestamp=true").out.startswith("LogAppendTime:")


@pytest.mark.parametrize("command", ["produce", "consume", "offsets"])
def test_a_wrong_topic_suggests_the_nearest(orders: Cli, command: str) -> None:
    result = orders(command, "ordes", stdin=b"lost\n")
    assert result.code == 1
    assert "ordes" in result.err and "did you mean 'orders'" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(("command", "flag"), [("produce", "--partition"), ("consume", "--partition")])
def test_a_partition_that_is_not_there(orders: Cli, command: str, flag: str) -> None:
    result = orders(command, "orders", flag, "3", stdin=b"lost\n")
    assert result.code != 0
    assert "partitions 0 to 2" in result.err


def test_a_line_without_key_separator_names_the_line(orders: Cli) -> None:
    properties = ("--property", "parse.key=true", "--property", "key.separator=:")
    result = orders("produce", "orders", *properties, stdin=b"k:v\nno key here\n")
    assert result.code == 1
    assert "line 2 has no key.separator ':': 'no key here'" in result.err
    assert "1 record(s) before that are stored: do not give them again" in result.err
    assert orders("produce", "orders", *properties, "--property", "ignore.error=true", stdin=b"no key here\n").code == 0


def test_a_record_too_large_is_told_and_the_others_arrive(cli: Cli) -> None:
    cli("topics", "create", "orders", "--config", "max.message.bytes=1000")
    result = cli("produce", "orders", stdin=b"small\n" + b"x" * 5_000 + b"\n")
    assert result.code == 1
    assert "max.message.bytes" in result.err
    assert read_all(cli, "orders").lines == ["small"]


@pytest.mark.system
def test_produce_ends_on_ctrl_c_and_keeps_what_it_read(orders: Cli, spawn: Spawn) -> None:
    process = spawn("produce", "orders")
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    while _unread(process.stdin.fileno()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b"interrupted after 2 records to orders\n"
    assert orders("topics", "list", "--json").json[0]["records"] == 8


def _unread(descriptor: int) -> int:
    """Bytes in a pipe that the other side has not read yet."""
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_follows_until_a_signal_and_says_how_many(orders: Cli, spawn: Spawn, number: signal.Signals) -> None:
    process = spawn("consume", "orders", "--from-beginning", "--group", "follower")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(6)]
    assert sorted(lines) == [b"value %d\n" % n for n in range(6)]
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"", b"Processed a total of 6 messages\n")
    committed = orders("offsets", "orders", "--group", "follower", "--json").json
    assert sum(row["lag"] for row in committed) == 0


@pytest.mark.system
def test_the_prompt_on_a_terminal(orders: Cli, spawn: Spawn) -> None:
    """Each line is stored before the next prompt; a bad line is told and typing goes on; Ctrl-D ends."""
    master, slave = pty.openpty()
    try:
        process = spawn("produce", "orders", "--property", "parse.key=true", stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        screen = _until(master, b">")
        assert b"Ctrl-D ends" in screen
        os.write(master, b"k\tv\n")
        _until(master, b">")
        os.write(master, b"no tab\n")
        assert b"line 2 has no key.separator" in _until(master, b">")
        os.write(master, b"\x04")
        assert b"1 record to orders" in _until(master, b"to orders")
        assert process.wait(timeout=20) == 0
    finally:
        os.close(master)
    assert "k\tv" in read_all(orders, "orders", "print.key=true").lines


def _until(descriptor: int, wanted: bytes) -> bytes:
    screen, deadline = b"", time.monotonic() + 20
    while wanted not in screen:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"{wanted!r} did not come: {screen!r}"
        screen += os.read(descriptor, 4096)
    return screen


def test_the_formatter_without_value_and_with_every_part() -> None:
    record = ConsumerRecord("t", 1, 2, -1, TimestampType.CREATE_TIME, b"k", None, (("h", None), ("h", b"2")))
    every = {f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "headers", "key")}
    assert Formatter(every).format(record) == b"NO_TIMESTAMP\tPartition:1\tOffset:2\th:null,h:2\tk\tnull\n"
    assert Formatter({"print.key": "true", "print.value": "false", "line.separator": ";"}).format(record) == b"k;"


def test_the_line_parser() -> None:
    parser = LineParser(
        {"parse.key": "true", "parse.headers": "true", "headers.delimiter": "|", "null.marker": "~"},
        key=None,
        headers=(("fixed", b"1"),),
    )
    assert parser.parse(b"a:1,b:~|k\tv", 1) == ParsedLine(b"k", b"v", (("fixed", b"1"), ("a", b"1"), ("b", None)))
    assert parser.parse(b"~|~\t~", 2) == ParsedLine(None, None, (("fixed", b"1"),))
    with pytest.raises(EventBusError, match=r"line 3 has no headers\.delimiter"):
        parser.parse(b"k\tv", 3)
    with pytest.raises(EventBusError, match=r"line 4: header 'a'"):
        parser.parse(b"a|k\tv", 4)


def test_stdin_may_be_a_file_and_the_log_is_made_by_topics_create_only(cli: Cli) -> None:
    assert cli("produce", "orders", stdin=b"x").code == 1
    assert not Path("data").exists()


# every flag of Kafka's scripts ----------------------------------------------------------------------------------------


def test_the_producers_flags_properties_and_files(cli: Cli, tmp_path: Path) -> None:
    cli("topics", "create", "orders")
    reader, producer = tmp_path / "reader.properties", tmp_path / "producer.properties"
    reader.write_text("parse.key=true\nkey.separator=:\n")
    producer.write_text("acks=1\nclient.id=console\nsecurity.protocol=PLAINTEXT\n")
    produced = cli(
        "kafka-console-producer.sh", "--topic", "orders", "--sync", "--line-reader",
        "org.apache.kafka.tools.LineMessageReader", "--reader-config", str(reader), "--reader-property",
        "key.separator=;", "--producer.config", str(producer), "--producer-property", "linger.ms=1",
        "--command-property", "batch.size=100", "--max-block-ms", "1000", "--max-memory-bytes", "1000000",
        "--request-timeout-ms", "5000", "--message-send-max-retries", "3", "--retry-backoff-ms", "10",
        "--socket-buffer-size", "1000", "--metadata-expiry-ms", "1000", "--compression-codec", stdin=b"k;v\na:b;c\n",
    )  # fmt: skip
    assert produced == (0, "", "2 records to orders\n")
    assert read_all(cli, "orders", "print.key=true").lines == ["k\tv", "a:b\tc"]
    dumped = cli("log", "dump", "data/orders-0/00000000000000000000.log", "--json").lines
    assert {json.loads(line)["compresscodec"] for line in dumped} == {"gzip"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--line-reader", "com.example.Reader"), "is a class of Java's"),
        (("--producer-property", "linger.msec=1"), "linger_ms"),
        (("--producer.config", "nowhere"), "No such file"),
        (("--reader-config", "nowhere"), "No such file"),
    ],
)
def test_wrong_settings_of_the_producer_are_told(orders: Cli, flags: tuple[str, ...], told: str) -> None:
    result = orders("kafka-console-producer.sh", "--topic", "orders", *flags, stdin=b"x\n")
    assert result.code != 0 and told in result.err


def test_the_consumers_flags_properties_and_files(orders: Cli, tmp_path: Path) -> None:
    settings, formatter = tmp_path / "consumer.properties", tmp_path / "formatter.properties"
    settings.write_text("group.id=g\nclient.id=console\n")
    formatter.write_text("print.key=true\nkey.separator=|\n")
    script = ("kafka-console-consumer.sh", "--topic", "orders", "--timeout-ms", "50")
    shown = orders(
        *script, "--consumer.config", str(settings), "--formatter-config", str(formatter), "--consumer-property",
        "auto.offset.reset=earliest", "--command-property", "fetch.min.bytes=1", "--formatter",
        "org.apache.kafka.tools.consumer.DefaultMessageFormatter", "--isolation-level", "read_uncommitted",
    )  # fmt: skip
    assert sorted(shown.lines) == [f"key-{number % 3}|value {number}" for number in (0, 3, 1, 4, 2, 5)]
    assert orders("groups", "list").lines == ["g"]
    assert orders(*script, "--consumer-property", "fetch.min.byte=1").code != 0


@pytest.mark.system
def test_topics_by_pattern(cli: Cli) -> None:
    for name in ("a-1", "a-2", "b"):
        cli("topics", "create", name)
        cli("produce", name, stdin=name.encode())
    script = ("kafka-console-consumer.sh", "--from-beginning", "--timeout-ms", "50")
    assert sorted(cli(*script, "--include", "a-.").lines) == ["a-1", "a-2"]
    assert sorted(cli(*script, "--include", "a-1,b", "--group", "g").lines) == ["a-1", "b"]
    assert cli(*script, "--include", "c.*").code == 1
    assert cli(*script).code == cli(*script, "--include", "a-.", "--partition", "0").code == 2


@pytest.mark.system
def test_deserializers_by_their_names(cli: Cli, tmp_path: Path) -> None:
    async def main() -> None:
        async with EventBus(f"file://{tmp_path}/data") as bus:
            await bus.send("numbers", struct.pack(">q", 5), key=struct.pack(">i", 7), headers={"h": b"x"})
            await bus.send("numbers", b"short", key=None)

    cli("topics", "create", "numbers")
    anyio.run(main)
    package = "org.apache.kafka.common.serialization"
    script = ("kafka-console-consumer.sh", "--topic", "numbers", "--from-beginning", "--timeout-ms", "50")
    typed = ("--value-deserializer", f"{package}.LongDeserializer", "--key-deserializer", "Integer")
    shown = cli(*script, *typed, "--property", "print.key=true", "--skip-message-on-error")
    assert shown.lines == ["7\t5"]
    refused = cli(*script, *typed)
    assert refused.code == 2 and "is 5 bytes long" in refused.err
    assert "com.example.Own" in cli(*script, "--value-deserializer", "com.example.Own").err
    log = cli(*script, "--formatter", "kafka.tools.LoggingMessageFormatter", "--key-deserializer", "Integer")
    assert log.lines[1].endswith(", key:null, value:short")
    nothing = cli(*script, "--formatter", "kafka.tools.NoOpMessageFormatter")
    assert (nothing.out, nothing.err) == ("", "Processed a total of 2 messages\n")
    assert cli(*script, "--formatter", "com.example.Own").code == 2
