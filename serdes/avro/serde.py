"""`Avro`: values of any type in Avro's binary form, with their schemas in a registry."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable
from typing import Any, cast

from serdes.avro.catalog import Catalog
from serdes.avro.codec.shapes import key_of
from serdes.avro.messages import MessageReader, MessageWriter
from serdes.avro.parse import parse
from serdes.avro.schema import Schema
from serdes.avro.subjects import SubjectStrategy, strategy
from serdes.base import Decode, Encode, SchemaNeeded
from serdes.choose import split_optional
from serdes.framing import header_name, prefix_size, with_prefix
from serdes.registry import MovingClient, SchemaClient, schema_client

Headers = tuple[tuple[str, bytes | None], ...]


class Options:
    """State shared by all serdes that were created from one `Avro`."""

    def __init__(
        self,
        registry: str | SchemaClient,
        subject: str | SubjectStrategy,
        auto_register: bool,
        use_latest: bool,
        normalize: bool,
        id_in: str,
        ignore_rules: bool,
        engine: str,
    ) -> None:
        if id_in not in ("prefix", "header"):
            raise ValueError(f"id_in={id_in!r}: 'prefix' (before the message) or 'header'")
        self.catalog = Catalog(schema_client(registry), ignore_rules=ignore_rules, engine=engine)
        self.subject = strategy(subject)
        self.auto_register = auto_register and not use_latest
        self.use_latest = use_latest
        self.normalize = normalize
        self.in_header = id_in == "header"
        self.made: dict[Any, Avro] = {}
        """Codecs by annotation, schema and part, so that their caches are shared."""
        if isinstance(self.catalog.client, MovingClient):
            self.catalog.client.when_moved(self.forget)

    def forget(self) -> None:
        """The registry is another one."""
        self.catalog.forget()
        for one in list(self.made.values()):
            one.forget()


class Avro:
    """Avro with a schema registry, in Confluent's wire format.

    ``registry``: ``"http://user:password@host:8081"``; ``"log"``, the one in the bus's own log; or a `SchemaClient`.
    ``type``: what to read and write: msgspec.Struct, dataclass, TypedDict, pydantic, a union of them; its schema is
    derived from it, or is ``schema`` (text, or JSON data). Without either, values are dicts of the schema that they
    were written with; on a bus one `Avro` serves all types: annotations say which.

    ``subject``: "topic_name" (``<topic>-value``), "record_name", "topic_record_name", or a function
    ``(topic, is_key, record) -> subject``. ``auto_register``: a schema that is not there is registered; False: it is
    looked up, and refused when missing. ``use_latest``: values are written with the subject's latest schema.
    ``normalize``: have the registry do so. ``id_in``: "prefix", or "header" (the GUID); both are read.

    A schema with rules that are to be executed (ENCRYPT, CEL, migration) is refused before anything is written or read,
    because Avro executes none. ``ignore_rules``: skip them.

    ``engine``: "compiled", or "fastavro" for plain data where that gives the same values, see docs/how-to/schemas.md.
    """

    def __init__(
        self,
        registry: str | SchemaClient,
        type: Any = Any,
        *,
        schema: str | dict[str, Any] | list[Any] | None = None,
        subject: str | SubjectStrategy = "topic_name",
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        id_in: str = "prefix",
        is_key: bool = False,
        ignore_rules: bool = False,
        engine: str = "compiled",
    ) -> None:
        options = Options(registry, subject, auto_register, use_latest, normalize, id_in, ignore_rules, engine)
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        self._set_up(options, type, None if text is None else parse(text), is_key)

    def _set_up(self, options: Options, annotation: Any, given: Schema | None, is_key: bool) -> None:
        self._options = options
        self.type: Any = split_optional(annotation)[0]
        self.is_key = is_key
        self.schema: Schema | None = given if given is not None else options.catalog.schema_of(self.type)
        """The type that values are read as, or None for the type of the writer's schema."""
        self._given = given
        self._readers: dict[str, MessageReader] = {}
        self._writers: dict[str, MessageWriter] = {}
        options.made.setdefault((key_of(self.type), id(given), is_key), self)

    # what a bus asks for ---------------------------------------------------------------------------------------------

    def of(self, annotation: Any) -> Avro:
        """Return this serde for one type. Raises TypeError if the type has no Avro schema."""
        annotation = split_optional(annotation)[0]
        if _says_less(annotation, self.type):
            return self
        wanted = key_of(self.type if annotation is Any else annotation)
        found = self._options.made.get((wanted, id(self._given), self.is_key))
        return self._with(annotation, self.is_key) if found is None else found

    def for_keys(self) -> Avro:
        """Return this serde for keys."""
        if self.is_key:
            return self
        found = self._options.made.get((key_of(self.type), id(self._given), True))
        return self._with(self.type, True) if found is None else found

    def _with(self, annotation: Any, is_key: bool) -> Avro:
        made = object.__new__(Avro)
        made._set_up(self._options, annotation, self._given, is_key)
        return made

    @property
    def header(self) -> str:
        return header_name(self.is_key)

    @property
    def writes_header(self) -> bool:
        return self._options.in_header

    @property
    def source(self) -> SchemaClient:
        return self._options.catalog.client

    def subject(self, topic: str | None, schema: Schema | None = None) -> str | None:
        """Return the subject of a topic, or None if the topic or the record name is not known."""
        schema = schema or self.schema
        return self._options.subject(topic, self.is_key, "" if schema is None else schema.fullname) or None

    def prepare(self, topic: str | None, *, writes: bool) -> None:
        """Register or look up the schema for writing; for reading, see that the latest one can be read. Waits.

        Raises SchemaRegistryError, and TypeError when type and schema do not fit.
        """
        if writes and topic is not None and self.type is not Any:
            self._writer(topic).prepare()
        elif not writes:
            self._reader(topic or "").prepare(self.subject(topic))

    def forget(self) -> None:
        """Forget which schemas have which ids."""
        for one in (*self._readers.values(), *self._writers.values()):
            one.forget()

    def needed(self, topic: str, values: Iterable[bytes | None]) -> SchemaNeeded | None:
        return self._reader(topic).needed(values)

    def encoder(self, topic: str) -> Encode:
        return self._writer(topic).encode

    def decoder(self, topic: str) -> Decode:
        return self._reader(topic).decode

    def _reader(self, topic: str) -> MessageReader:
        found = self._readers.get(topic)
        if found is None:
            subject = self.subject(topic) if self.schema is not None or not self._by_record else None
            made = MessageReader(self._options.catalog, subject, self.schema, self.type)
            found = self._readers[topic] = made
        return found

    @property
    def _by_record(self) -> bool:
        """The subject depends on what kind of record it is."""
        return self._options.subject("", self.is_key, "a") != self._options.subject("", self.is_key, "b")

    def _writer(self, topic: str) -> MessageWriter:
        found = self._writers.get(topic)
        if found is None:
            found = self._writers[topic] = MessageWriter(self._options, self, topic)
        return found

    # alone, with any Kafka client ------------------------------------------------------------------------------------

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Return a message's bytes; a schema that is not known yet is registered, and waited for."""
        if value is None:
            return None
        data = _waiting(self._writer_of(topic, value).encode, value)
        return data[prefix_size(data) :] if self._options.in_header else data

    def serialize_with_headers(
        self, topic: str, value: Any, headers: Iterable[tuple[str, bytes | None]] = ()
    ) -> tuple[bytes | None, Headers]:
        """Return the same with the record's headers: with ``id_in="header"`` the schema's GUID is among them."""
        if value is None or not self._options.in_header:
            return self.serialize(topic, value), tuple(headers)
        data = _waiting(self._writer_of(topic, value).encode, value)
        at = prefix_size(data)
        return data[at:], (*headers, (self.header, data[:at]))

    def deserialize(
        self,
        topic: str,
        data: bytes | bytearray | memoryview | None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> Any:
        """Decode a message. ``headers`` of its record may contain the schema id instead of the message."""
        if headers:
            data = None if data is None else with_prefix(bytes(data), headers, self.header)
        return None if data is None else self._reader(topic).read(bytes(data))

    def close(self) -> None:
        """Close the registry's client."""
        self.source.close()

    def _writer_of(self, topic: str, value: Any) -> MessageWriter:
        return self.of(cast("Any", type(value)))._writer(topic) if self.type is Any else self._writer(topic)

    def __repr__(self) -> str:
        return f"serdes.Avro({getattr(self.type, '__name__', self.type)})"


def _waiting(do: Callable[[Any], Any], value: Any) -> Any:
    while True:
        try:
            return do(value)
        except SchemaNeeded as needed:
            needed.fetch()


def _says_less(annotation: Any, kind: Any) -> bool:
    """Return True if it is only the class of values of ``kind``: dict for a TypedDict, list for ``list[int]``."""
    if typing.get_origin(kind) is typing.Annotated:
        return _says_less(annotation, kind.__origin__)
    return annotation in (dict, list) and annotation is (dict if typing.is_typeddict(kind) else typing.get_origin(kind))
