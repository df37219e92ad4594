"""How the console consumer prints a record: Kafka's formatters, their properties, its deserializers' names."""

from __future__ import annotations

import argparse
import struct
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from eventbus.cli.output import text_or_base64
from eventbus.cli.parser import UsageError
from eventbus.types import ConsumerRecord, TimestampType

PROPERTIES = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.epoch": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\\t",
    "line.separator": "\\n",
    "headers.separator": ",",
    "null.literal": "null",
    "key.deserializer": "",
    "value.deserializer": "",
    "headers.deserializer": "",
}
"""The properties of Kafka's default formatter with their defaults."""

Reader = Callable[[bytes], bytes]


def _number(format: str) -> Reader:
    def read(data: bytes) -> bytes:
        try:
            return str(struct.unpack(format, data)[0]).encode()
        except struct.error:
            raise UsageError(
                f"{data[:40]!r} is {len(data)} bytes long, and a number of {struct.calcsize(format)} was said to stand "
                "there: another deserializer?"
            ) from None

    return read


DESERIALIZERS: dict[str, Reader] = {
    "String": lambda data: data,
    "ByteArray": lambda data: data,
    "Bytes": lambda data: data,
    "ByteBuffer": lambda data: data,
    "Integer": _number(">i"),
    "Long": _number(">q"),
    "Short": _number(">h"),
    "Float": _number(">f"),
    "Double": _number(">d"),
    "Boolean": lambda data: b"false" if data == b"\0" else b"true",
    "UUID": lambda data: str(uuid.UUID(data.decode())).encode(),
}
"""Kafka's, by what stands before ``Deserializer``."""


def deserializer(text: str) -> Reader:
    """Return the reader a class's name stands for, with or without its package. Raises UsageError."""
    name = text.rpartition(".")[2].removesuffix("Deserializer")
    if name not in DESERIALIZERS:
        raise UsageError(f"{text!r} is a class of Java's; here there are {', '.join(DESERIALIZERS)} (Deserializer)")
    return DESERIALIZERS[name]


class RecordFormatter(Protocol):
    """Turns a record into what is printed of it."""

    def format(self, record: ConsumerRecord) -> bytes: ...


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
        self._read_key, self._read_value, self._read_header = (
            deserializer(given[f"{part}.deserializer"].decode() or "String") for part in ("key", "value", "headers")
        )
        plain = self._read_value is DESERIALIZERS["String"]
        self._value_only = plain and self._wanted["print.value"] and sum(self._wanted.values()) == 1

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
        if wanted["print.epoch"]:
            parts.append(b"Epoch:0")
        if wanted["print.headers"]:
            parts.append(self._headers(record) or b"NO_HEADERS")
        if wanted["print.key"]:
            parts.append(self._null if record.key is None else self._read_key(record.key))
        if wanted["print.value"]:
            parts.append(self._null if record.value is None else self._read_value(record.value))
        return self._key_separator.join(parts) + self._line_separator

    def _headers(self, record: ConsumerRecord) -> bytes:
        return self._headers_separator.join(
            name.encode() + b":" + (self._null if value is None else self._read_header(value))
            for name, value in record.headers
        )


class LoggingFormatter(Formatter):
    """Kafka's LoggingMessageFormatter: each record as a line that tells all of it."""

    def format(self, record: ConsumerRecord) -> bytes:
        key = b"null" if record.key is None else self._read_key(record.key)
        value = b"null" if record.value is None else self._read_value(record.value)
        kind = "CreateTime" if record.timestamp_type == TimestampType.CREATE_TIME else "LogAppendTime"
        return f"{kind}:{record.timestamp_ms}, ".encode() + b"key:" + key + b", value:" + value + self._line_separator


class NoOpFormatter:
    """Kafka's NoOpMessageFormatter: prints nothing."""

    def format(self, record: ConsumerRecord) -> bytes:
        return b""


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


def formatter_name(text: str) -> str:
    """Return an argparse type: one of Kafka's formatters, by its class with or without the package."""
    name = text.rpartition(".")[2].rpartition("$")[2]
    if name not in FORMATTERS:
        raise argparse.ArgumentTypeError(f"{text!r} is a class of Java's; here there are {', '.join(FORMATTERS)}")
    return name


FORMATTERS: dict[str, Callable[[dict[str, str]], RecordFormatter]] = {
    "DefaultMessageFormatter": Formatter,
    "LoggingMessageFormatter": LoggingFormatter,
    "NoOpMessageFormatter": lambda properties: NoOpFormatter(),
}
