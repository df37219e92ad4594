"""Converters between connectors' values and the bytes in the log, under Kafka Connect's names."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import msgspec

from eventbus.connect.settings import Key, Properties, read
from eventbus.connect.values import BYTES, STRING, Schema, plain, schema_of
from eventbus.errors import ConfigError, SerializationError
from eventbus.suggest import nearest
from serdes.nesting import shallow


class SchemaAndValue(NamedTuple):
    schema: Schema | None
    value: Any


class Converter(Protocol):
    """Encodes and decodes; called in worker threads. Raises SerializationError for invalid data."""

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None: ...

    def from_bytes(self, topic: str, data: bytes | None) -> SchemaAndValue: ...


class StringConverter:
    """Text in UTF-8; other values as they would be printed, and structs as JSON."""

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, (dict, list)):
            return _json(cast("Any", value))
        if isinstance(value, bool):
            return b"true" if value else b"false"
        return str(value).encode("utf-8", "surrogateescape")

    def from_bytes(self, topic: str, data: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(STRING, None if data is None else data.decode("utf-8", "surrogateescape"))


class ByteArrayConverter:
    """Passes bytes on unchanged."""

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        match value:
            case None | bytes():
                return value
            case bytearray():
                return bytes(value)
            case str():
                return value.encode("utf-8", "surrogateescape")
            case _:
                raise SerializationError(
                    f"ByteArrayConverter takes bytes or text, not {type(value).__name__}: choose JsonConverter"
                )

    def from_bytes(self, topic: str, data: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(BYTES, data)


class JsonConverter:
    """JSON; with ``schemas.enable`` each record includes its schema, as with Connect's own converter."""

    def __init__(self, *, schemas: bool, numeric_decimals: bool) -> None:
        self._schemas = schemas
        self._numeric = numeric_decimals
        self._encoder = msgspec.json.Encoder(decimal_format="number")
        self._envelopes: dict[Schema, bytes] = {}

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        try:
            if not self._schemas:
                return None if value is None else self._encoder.encode(value)
            if value is None and schema is None:
                return None
            schema = schema or schema_of(value)
            payload = plain(value, schema, numeric_decimals=self._numeric)
            return self._envelope(schema) + self._encoder.encode(payload) + b"}"
        except (msgspec.MsgspecError, TypeError, ValueError, UnicodeEncodeError) as error:
            raise SerializationError(f"no JSON can be made of {value!r:.80}: {error}") from None

    def _envelope(self, schema: Schema) -> bytes:
        found = self._envelopes.get(schema)
        if found is None:
            if len(self._envelopes) > 1000:  # schemas made from values may all differ
                self._envelopes.clear()
            found = b'{"schema":' + msgspec.json.encode(schema.described()) + b',"payload":'
            self._envelopes[schema] = found
        return found

    def from_bytes(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return SchemaAndValue(None, None)
        try:
            value: Any = msgspec.json.decode(shallow(data))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SerializationError(f"no JSON: {error}") from None
        if not self._schemas:
            return SchemaAndValue(None, value)
        if not isinstance(value, dict) or cast("dict[str, Any]", value).keys() != {"schema", "payload"}:
            raise SerializationError(
                "JsonConverter with schemas.enable=true reads records of {schema, payload} alone; for plain JSON set "
                "value.converter.schemas.enable=false"
            )
        return SchemaAndValue(None, cast("dict[str, Any]", value)["payload"])


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SerializationError(f"no JSON can be made of {value!r:.80}: {error}") from None


_JSON_KEYS = (
    Key("schemas.enable", "bool", None),
    Key("schemas.cache.size", ignored="all are kept"),
    Key("decimal.format", choices=("BASE64", "NUMERIC"), default="BASE64"),
    Key("replace.null.with.default", ignored="schemas have no defaults here"),
)
_NAMES = {
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
}
_SHORT = {name.rpartition(".")[2]: kind for name, kind in _NAMES.items()}


def make_converter(worker: Properties, connector: Properties, which: str, notes: list[str]) -> Converter:
    """Return the ``key.converter`` or ``value.converter`` of the connector, else of the worker, with its settings.

    The default is text for keys, and JSON without schemas for values. Raises ConfigError.
    """
    place = connector if which in connector.values else worker
    given = place.get(which)
    if given is None:
        if which == "key.converter":
            return StringConverter()
        return JsonConverter(schemas=False, numeric_decimals=True)
    own = place.below(f"{which}.")
    chosen = _NAMES.get(given) or _SHORT.get(given) or {"json": "json", "string": "string"}.get(given)
    match chosen:
        case "string":
            read(
                own,
                (
                    Key("encoding", choices=("UTF-8", "UTF8"), default="UTF-8"),
                    Key("converter.type", ignored="the key tells"),
                    Key("schemas.enable", ignored="text has none"),
                ),
                which,
                notes,
            )
            return StringConverter()
        case "bytes":
            read(own, (Key("schemas.enable", ignored="bytes have none"),), which, notes)
            return ByteArrayConverter()
        case "json":
            found = read(own, _JSON_KEYS, which, notes)
            schemas: bool = True if found["schemas.enable"] is None else found["schemas.enable"]
            return JsonConverter(schemas=schemas, numeric_decimals=found["decimal.format"] == "NUMERIC")
        case _:
            raise ConfigError(
                f"{place.place(which)}: there is no converter {given!r}{nearest(given, [*_SHORT, *_NAMES])}; there are "
                f"{', '.join(_SHORT)}. For Avro let a handler write a second topic, with its type as the schema"
            )
