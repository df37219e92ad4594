"""Converters between connectors' values and the bytes in the log, under Kafka Connect's names."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import quote

import msgspec

from eventbus.connect.settings import Key, Properties, read
from eventbus.connect.values import BYTES, STRING, Field, Schema, plain, schema_of
from eventbus.errors import ConfigError, SerializationError
from eventbus.suggest import nearest
from serdes.nesting import shallow

if TYPE_CHECKING:
    from serdes import Avro

_INCOMPATIBLE = 409
"""A registry's status for a schema that the subject's compatibility does not allow."""
_PRECISION = 38
"""The precision of decimals in Avro: Connect does not know it, and writes 64 by default."""


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


class AvroConverter:
    """Avro with a schema registry, in Confluent's wire format. ``registry``: a URL, or ``log`` for the bus's own."""

    def __init__(self, registry: str, *, is_key: bool, auto_register: bool, use_latest: bool) -> None:
        from serdes import Avro
        from serdes.registry import schema_client

        client = self.client = schema_client(registry)
        """Runs with the bus if it is a `Part`."""

        def make(schema: Any = None) -> Avro:
            return Avro(client, schema=schema, is_key=is_key, auto_register=auto_register, use_latest=use_latest)

        self._make = make
        self._reader = make()
        self._writers: dict[Schema, Avro] = {}

    def to_bytes(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        schema = schema or schema_of(value)
        with _schema_errors(f"no Avro can be made of {value!r:.80}"):
            return self._writer(schema).serialize(topic, in_avro(value, schema))

    def _writer(self, schema: Schema) -> Avro:
        found = self._writers.get(schema)
        if found is None:
            if len(self._writers) > 1000:  # schemas made from values may all differ
                self._writers.clear()
            found = self._writers[schema] = self._make(avro_of(schema))
        return found

    def from_bytes(self, topic: str, data: bytes | None) -> SchemaAndValue:
        with _schema_errors("no Avro"):
            return SchemaAndValue(None, self._reader.deserialize(topic, data))


@contextmanager
def _schema_errors(what: str) -> Generator[None]:
    """Convert errors of the record to SerializationError; temporary errors of the registry stay as they are."""
    from serdes.errors import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as error:
        if not error.is_final and error.status != _INCOMPATIBLE:
            raise
        raise SerializationError(f"{what}: {error.message}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SerializationError(f"{what}: {error}") from None


def avro_of(schema: Schema, name: str = "ConnectDefault") -> Any:
    """Return the schema as an Avro schema, as Connect's Avro converter makes it. ``name``: for a struct without one."""
    found = _avro_of(schema, name)
    return ["null", found] if schema.optional else found


def _avro_of(schema: Schema, name: str) -> Any:
    match schema.name:
        case "org.apache.kafka.connect.data.Decimal":
            precision = max(_PRECISION, schema.scale)
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": schema.scale}
        case "org.apache.kafka.connect.data.Date":
            return {"type": "int", "logicalType": "date"}
        case "org.apache.kafka.connect.data.Time":
            return {"type": "int", "logicalType": "time-millis"}
        case "org.apache.kafka.connect.data.Timestamp":
            return {"type": "long", "logicalType": "timestamp-millis"}
        case _:
            pass
    match schema.type:
        case "struct":
            own = _avro_name(schema.name or name)
            return {"type": "record", "name": own, "fields": [_avro_field(one, own) for one in schema.fields]}
        case "array":
            return {"type": "array", "items": avro_of(schema.items or STRING, name)}
        case "int8" | "int16" | "int32":
            return "int"
        case "int64":
            return "long"
        case "float32":
            return "float"
        case "float64":
            return "double"
        case other:
            return other


def in_avro(value: Any, schema: Schema) -> Any:
    """Convert a value for Avro's codec: times are instants in milliseconds; without a time zone they are UTC."""
    match value:
        case None:
            return None
        case datetime():
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return aware.replace(microsecond=value.microsecond // 1000 * 1000)
        case time():
            return value.replace(microsecond=value.microsecond // 1000 * 1000)
        case _:
            pass
    match schema.type:
        case "struct":
            return {one.name: in_avro(value.get(one.name), one.schema) for one in schema.fields}
        case "array":
            return [in_avro(one, schema.items or STRING) for one in value]
        case "string":
            return str(value)
        case _:
            return value


def _avro_field(field: Field, record: str) -> dict[str, Any]:
    name = _avro_name(field.name)
    # Avro refuses two records with the same name.
    found = {"name": name, "type": avro_of(field.schema, f"{record}_{name}")}
    return {**found, "default": None} if field.schema.optional else found


def _avro_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SerializationError(f"{name!r} is not a name in Avro (letters, digits, underscores): rename it in a query")
    return name


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
_AVRO_KEYS = (
    Key("schema.registry.url"),
    Key("basic.auth.credentials.source", choices=("URL", "USER_INFO"), default="URL"),
    Key("basic.auth.user.info"),
    Key("auto.register.schemas", "bool", True),
    Key("use.latest.version", "bool", False),
    Key("enhanced.avro.schema.support", ignored="names and types are kept as they are"),
    Key("schemas.enable", ignored="Avro always has schemas"),
)
_NAMES = {
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
    "io.confluent.connect.avro.AvroConverter": "avro",
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
    chosen = _NAMES.get(given) or _SHORT.get(given) or {"json": "json", "string": "string", "avro": "avro"}.get(given)
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
        case "avro":
            return _avro(read(own, _AVRO_KEYS, which, notes), place, which)
        case _:
            raise ConfigError(
                f"{place.place(which)}: there is no converter {given!r}{nearest(given, [*_SHORT, *_NAMES])}; there are "
                f"{', '.join(_SHORT)}"
            )


def _avro(found: Mapping[str, Any], place: Properties, which: str) -> AvroConverter:
    key = f"{which}.schema.registry.url"
    url: str | None = found["schema.registry.url"]
    if not url:
        raise ConfigError(
            f"{place.place(which)}: AvroConverter needs {key}=http://host:8081, or log: the registry in the log itself"
        )
    login = found["basic.auth.user.info"]
    if login:
        scheme, _, rest = url.partition("://")
        url = f"{scheme}://{quote(login, safe=':')}@{rest}" if rest else url
    try:
        return AvroConverter(
            url,
            is_key=which.startswith("key"),
            auto_register=found["auto.register.schemas"],
            use_latest=found["use.latest.version"],
        )
    except ModuleNotFoundError as error:
        raise ConfigError(f"{place.place(key)}: {error}") from None
    except ValueError as error:
        shown = found["schema.registry.url"].rpartition("@")[2]
        raise ConfigError(
            f"{place.place(key)}: {shown!r} is no URL of a registry: http://host:8081, or log, the one in the log "
            f"itself ({type(error).__name__})"
        ) from None
