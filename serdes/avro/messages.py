"""One topic's messages, read and written: schema ids to compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from serdes.avro.catalog import Catalog, Name
from serdes.avro.codec.errors import AvroDataError, AvroTypeError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.resolve import mismatch
from serdes.avro.schema import Schema
from serdes.base import SchemaNeeded
from serdes.errors import SchemaRegistryError
from serdes.framing import GUID_SIZE, ID_SIZE, guid_prefix, id_prefix, prefix_size, schema_named
from serdes.registry import RegisteredSchema

if TYPE_CHECKING:
    from serdes.avro.serde import Avro, Options

_Read = Callable[[bytes, int], Any]


class MessageReader:
    """Decode the messages of a topic as values of a type."""

    def __init__(self, catalog: Catalog, subject: str | None, schema: Schema | None, annotation: Any) -> None:
        """``schema``: what to read as; None: as each was written."""
        self._catalog = catalog
        self._subject = subject
        self._schema = schema
        self._annotation = annotation
        self._decoders: dict[bytes, Decoder] = {}
        self._reads: dict[bytes, _Read] = {}
        """Read functions by the first five bytes of a message: the magic byte and the schema id."""
        self._unfit: dict[bytes, AvroDataError] = {}
        """Schemas whose values the annotation cannot hold."""

    def decode(self, data: bytes) -> Any:
        """Raises SchemaNeeded, and AvroDataError naming the schema and the field."""
        try:
            return self._reads[data[:ID_SIZE]](data, ID_SIZE)
        except Exception as error:
            return self._again(data, error)

    def forget(self) -> None:
        """The registry is another one."""
        for known in (self._decoders, self._reads, self._unfit):
            known.clear()

    def _again(self, data: bytes, error: Exception) -> Any:
        """Decode a message with a GUID or with an id seen for the first time, or raise the error of the message."""
        name = schema_named(data)
        prefix = data[: prefix_size(data)]
        if prefix in self._reads:
            raise self._explained(name, self._decoders[prefix].explain(error)) from error
        decoder = self._decoders.get(prefix) or self._bound(prefix, name)
        try:
            return decoder.decode(data, len(prefix))
        except Exception as problem:
            raise self._explained(name, decoder.explain(problem)) from problem

    def _explained(self, name: Name, error: Exception) -> AvroDataError:
        subject = f" (subject {self._subject})" if self._subject else ""
        kind = "id" if isinstance(name, int) else "GUID"
        return AvroDataError(f"schema {kind} {name}{subject}: {error}")

    def _bound(self, prefix: bytes, name: Name) -> Decoder:
        if prefix in self._unfit:
            raise AvroDataError(str(self._unfit[prefix]))
        try:
            writer = self._catalog.known(name, self._subject)
        except SchemaRegistryError as error:
            raise self._explained(name, error) from error
        if writer is None:
            raise self._needing(prefix, name)
        return self._compiled(prefix, name, writer)

    def _needing(self, prefix: bytes, name: Name) -> SchemaNeeded:
        return SchemaNeeded(f"schema {name} has not been fetched yet", partial(self._fetch, prefix, name))

    def _fetch(self, prefix: bytes, name: Name) -> None:
        writer = self._catalog.fetch(name, self._subject)
        if writer is None or prefix in self._decoders:
            return
        with suppress(AvroDataError):  # decoding reports it for each record
            self._compiled(prefix, name, writer)

    def _compiled(self, prefix: bytes, name: Name, writer: Schema) -> Decoder:
        try:
            decoder = self._catalog.decoder(writer, self._schema or writer, self._annotation)
        except TypeError as error:
            self._unfit[prefix] = self._explained(name, error)
            raise self._unfit[prefix] from error
        self._decoders[prefix] = decoder
        if len(prefix) == ID_SIZE:
            self._reads[prefix] = decoder.decode
        return decoder

    def read(self, data: bytes) -> Any:
        """`decode`, which waits for the registry: also for one that did not know the schema a while ago."""
        try:
            return self.decode(data)
        except SchemaNeeded as needed:
            needed.fetch()
        except AvroDataError:
            needed = self.needed([data])
            if needed is None:
                raise
            needed.fetch()
        return self.decode(data)

    def needed(self, values: Iterable[bytes | None]) -> SchemaNeeded | None:
        """Return the first schema that must be fetched before all of these messages can be decoded, or None."""
        new = {value[:ID_SIZE] for value in values if value}.difference(self._reads)
        if not new:
            return None
        for value in values:
            if not value or value[:ID_SIZE] not in new:
                continue
            prefix = value[:GUID_SIZE] if value[0] == 1 else value[:ID_SIZE]
            if (
                prefix in self._decoders
                or prefix in self._unfit
                or len(prefix) != (GUID_SIZE if value[0] == 1 else ID_SIZE)
                or value[0] > 1
            ):
                continue  # known, or no message of ours: decoding says so
            name = schema_named(value)
            if not self._catalog.is_refused(name, self._subject):
                return self._needing(prefix, name)
        return None

    def prepare(self, subject: str | None) -> None:
        """See that what is written now can be read. Waits."""
        if subject is None or self._schema is None:
            return
        try:
            latest = self._catalog.client.latest(subject)
        except SchemaRegistryError as error:
            if error.is_missing:  # nothing was written yet
                return
            raise
        self._catalog.check_rules(latest, "MIGRATION")
        writer = self._catalog.parsed(latest)
        reason = mismatch(writer, self._schema)
        if reason is not None:
            raise AvroTypeError(f"the latest schema of {subject} (version {latest.version}) cannot be read: {reason}")
        self._compiled(id_prefix(latest.id), latest.id, writer)


class MessageWriter:
    """Encode values of a type for a topic, after the id of their schema."""

    def __init__(self, options: Options, serde: Avro, topic: str) -> None:
        self._options = options
        self._serde = serde
        self._topic = topic
        self._subject = ""
        self._encoder: Encoder | None = None
        self._prefix = b""
        self._write: Callable[[Any, bytes], bytes] = self._not_yet

    def encode(self, value: Any) -> bytes:
        """Raises SchemaNeeded, and AvroDataError naming the field."""
        try:
            return self._write(value, self._prefix)
        except Exception as error:
            if self._encoder is None or isinstance(error, SchemaNeeded):
                raise
            subject = f" (subject {self._subject})" if self._subject else ""
            problem = self._encoder.explain(error)
            raise AvroDataError(f"{self._named}{subject}: {problem}") from error

    def forget(self) -> None:
        """The registry is another one."""
        self._encoder, self._prefix, self._write = None, b"", self._not_yet

    @property
    def _named(self) -> str:
        return f"schema id {int.from_bytes(self._prefix[1:], 'big')}" if self._prefix[:1] == b"\0" else "schema"

    def _not_yet(self, value: Any, prefix: bytes) -> bytes:
        if self._serde.type is Any and self._serde.schema is None and not self._options.use_latest:
            return cast("bytes", self._serde.of(type(value)).encoder(self._topic)(value))
        raise SchemaNeeded(
            f"the schema of {self._serde!r} has not been registered for topic {self._topic!r} yet", self.prepare
        )

    def prepare(self) -> None:
        """Register the schema, or look it up, and compile the encoder for it. Waits."""
        if self._encoder is not None:
            return
        registered, schema = self._registered()
        encoder = self._options.catalog.encoder(schema, self._serde.type)
        if not self._options.in_header:
            prefix = id_prefix(registered.id)
        elif registered.guid:
            prefix = guid_prefix(registered.guid)
        else:
            raise SchemaRegistryError(
                f"the registry gives no GUID for schema {registered.id} (subject {self._subject}), and id_in='header' "
                "needs one: use id_in='prefix' with this registry",
                status=422,
            )
        self._encoder, self._prefix, self._write = encoder, prefix, encoder.encode

    def _registered(self) -> tuple[RegisteredSchema, Schema]:
        options, serde, client = self._options, self._serde, self._options.catalog.client
        subject = serde.subject(self._topic)
        if not subject:
            raise TypeError(
                f"{serde!r}: its subject in topic {self._topic!r} depends on a schema that it does not have"
            )
        self._subject = subject
        if options.use_latest:
            registered = client.latest(subject)
            options.catalog.check_rules(registered, "WRITE")
            return registered, options.catalog.to_write(registered)
        if serde.schema is None:
            raise TypeError(
                f"{serde!r}: it has no schema to write with: give schema=..., or use_latest=True, or values of a "
                "class that describes them"
            )
        text = options.catalog.text_of(serde.schema)
        ask = client.register if options.auto_register else client.lookup
        registered = ask(subject, text, normalize=options.normalize)
        options.catalog.check_rules(registered, "WRITE")
        options.catalog.note(registered, serde.schema)
        return registered, serde.schema
