"""Convert keys and values between JSON on the console and Avro in the log, by the schemas of a registry."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.cli.parser import UsageError
from eventbus.errors import EventBusError, SerializationError
from serdes import SchemaRegistryError

if TYPE_CHECKING:
    from eventbus.types import ConsumerRecord
    from serdes import Avro


def add_schema(parser: argparse.ArgumentParser, values: str) -> None:
    """The options that say where the schemas are."""
    parser.add_argument(
        "--schema",
        metavar="REGISTRY",
        help=f"values are Avro, {values}: 'log' (the registry in this log) or http://HOST:PORT",
    )
    parser.add_argument("--key-schema", metavar="REGISTRY", help="the same of keys")


def avro_of(registry: str | None, option: str, **options: Any) -> Avro | None:
    """Return the serde of an option. Raises UsageError."""
    from serdes import Avro

    try:
        return None if registry is None else Avro(registry, **options)
    except (ValueError, SchemaRegistryError) as error:
        raise UsageError(f"{option}: {error}") from error


def parts_of(*serdes: Avro | None) -> list[Any]:
    """What of them lives with the bus: the registry in its log."""
    from eventbus.client.host import Part

    return [one.source for one in serdes if one is not None and isinstance(one.source, Part)]


class AsJson:
    """Records with Avro in them, as records with JSON in its place. Asks the registry: for worker threads."""

    def __init__(self, keys: Avro | None, values: Avro | None) -> None:
        self._keys = None if keys is None else keys.for_keys()
        self._values = values

    def __call__(
        self, records: list[ConsumerRecord], lenient: bool
    ) -> tuple[list[ConsumerRecord], SerializationError | None]:
        """Those before the first that cannot be read, and what is wrong with it. ``lenient``: all that can be read.

        Raises SchemaRegistryError when the registry does not answer.
        """
        found: list[ConsumerRecord] = []
        for record in records:
            try:
                self.convert(record)
            except (ValueError, TypeError, SchemaRegistryError) as error:
                if isinstance(error, SchemaRegistryError) and error.is_retriable:
                    raise  # the record may be fine
                if not lenient:
                    return found, SerializationError(
                        f"{record.topic}-{record.partition} offset {record.offset}: {error}\n"
                        "  leave out --schema to see its bytes, or pass such records over: --skip-message-on-error"
                    )
            else:
                found.append(record)
        return found, None

    def convert(self, record: ConsumerRecord) -> None:
        """Replace the Avro of a record."""
        if self._keys is not None:
            record.key = self._json(self._keys, record, record.key)
        if self._values is not None:
            record.value = self._json(self._values, record, record.value)

    def _json(self, serde: Avro, record: ConsumerRecord, data: bytes | None) -> bytes | None:
        value = serde.deserialize(record.topic, data, record.headers)
        return None if data is None else msgspec.json.encode(value, enc_hook=str)


class FromJson:
    """Lines of JSON as Avro, in the subject's latest schema. Asks the registry: for worker threads."""

    def __init__(self, topic: str, keys: Avro | None, values: Avro | None) -> None:
        self._topic = topic
        self._keys = None if keys is None else keys.for_keys()
        self._values = values

    def __call__(self, key: bytes | None, value: bytes | None, number: int) -> tuple[bytes | None, bytes | None]:
        """Key and value of a line. Raises EventBusError, which names the line."""
        try:
            return self._avro(self._keys, key), self._avro(self._values, value)
        except (ValueError, TypeError, SchemaRegistryError) as error:
            raise EventBusError(f"line {number}: {error}") from error

    def _avro(self, serde: Avro | None, data: bytes | None) -> bytes | None:
        if serde is None or data is None:
            return data
        return serde.serialize(self._topic, msgspec.json.decode(data))
