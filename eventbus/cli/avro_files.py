"""Avro's object container files: ``eventbus consume --output FILE.avro`` and ``eventbus produce --input FILE.avro``."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from eventbus.cli.parser import UsageError
from eventbus.cli.schema_values import AsJson, avro_of
from eventbus.errors import EventBusError, SerializationError
from serdes import SchemaRegistryError
from serdes.framing import VALUE_HEADER, prefix_size, schema_named, with_prefix

if TYPE_CHECKING:
    from eventbus.types import ConsumerRecord
    from serdes import Avro
    from serdes.avro.files import FileWriter

_BATCH: Final = 500


class ToFile(AsJson):
    """Writes the values of a topic's records to a file, in the latest schema of their subject."""

    def __init__(self, path: str, values: Avro | None, topic: str | None) -> None:
        """Raises UsageError. The file is created with the first value, because its schema precedes all values."""
        super().__init__(None, values)
        if values is None or topic is None or not path.endswith(".avro"):
            raise UsageError(
                f"--output {path}: values of one topic are written to an Avro file. Give TOPIC, --schema and FILE.avro."
            )
        _check_library()
        if Path(path).exists():
            raise UsageError(f"--output {path}: the file exists. Give another name, or remove the file.")
        self._path, self._registry, self._topic = path, values.source, topic
        self._file: FileWriter | None = None
        self.tombstones = 0
        """Records without a value, which the file cannot hold."""

    def __call__(
        self, records: list[ConsumerRecord], lenient: bool
    ) -> tuple[list[ConsumerRecord], SerializationError | None]:
        done = super().__call__(records, lenient)
        if self._file is not None:
            self._file.flush()  # before the group's offsets are committed
        return done

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def convert(self, record: ConsumerRecord) -> None:
        if record.value is None:
            self.tombstones += 1
            return
        file = self._file or self._opened()
        data = with_prefix(record.value, record.headers, VALUE_HEADER)
        value = self._reader.read(data)
        if schema_named(data) in self._names:
            file.write(data[prefix_size(data) :])
        else:
            file.write(self._encoder.encode(value, b""))

    def _opened(self) -> FileWriter:
        from serdes import Avro
        from serdes.avro.catalog import Catalog
        from serdes.avro.codec.reader import Decoder
        from serdes.avro.codec.writer import Encoder
        from serdes.avro.files import FileWriter
        from serdes.avro.messages import MessageReader

        subject, catalog = Avro(self._registry).subject(self._topic), Catalog(self._registry)
        latest = self._registry.latest(subject or "")
        schema = catalog.parsed(latest)
        catalog.check_rules(latest, "MIGRATION")  # older values are converted to this schema
        catalog.decoder = partial(Decoder, names_branches=True)  # so that they keep their branches of unions
        self._names = {latest.id, latest.guid}
        self._reader = MessageReader(catalog, subject, schema, Any)
        self._encoder = Encoder(schema, Any)
        self._file = FileWriter(Path(self._path).open("xb"), schema)  # noqa: SIM115 - see close
        return self._file


class FromFile:
    """Reads the values of a file, as messages in the schema of the file. The registry registers and checks it."""

    def __init__(self, path: str, registry: str | None, topic: str) -> None:
        """Open the file. Raises UsageError."""
        from serdes.avro.files import AvroFileError, FileReader
        from serdes.avro.text import to_text

        if registry is None:
            raise UsageError(f"--input {path}: values are written in the schema of the file. Give --schema REGISTRY.")
        _check_library()
        try:
            values = FileReader(Path(path).open("rb"))  # noqa: SIM115 - see close
        except OSError as error:
            raise UsageError(f"--input {path}: {error.strerror}.") from None
        except AvroFileError as error:
            raise UsageError(f"--input {path}: {error}. Give a file of 'eventbus consume --output'.") from None
        self.close = values.close
        self._path, self._topic = path, topic
        self.avro = cast("Avro", avro_of(registry, "--schema", type=dict, schema=to_text(values.schema)))
        self._values = iter(values)
        self._number = 0
        self._wrong: EventBusError | None = None

    def take(self) -> list[bytes | None]:
        """Return the next messages, none at the end. Waits for the registry. Raises EventBusError.

        The messages before a value that is wrong are returned first, so that they are sent as the lines of stdin are.
        """
        taken: list[bytes | None] = []
        if self._wrong is not None:
            raise self._wrong
        try:
            for value in islice(self._values, _BATCH):
                self._number += 1
                taken.append(self.avro.serialize(self._topic, value))
        except (ValueError, TypeError, SchemaRegistryError) as error:
            self._wrong = EventBusError(f"{self._path}, value {self._number:,}: {error}")
            if not taken:
                raise self._wrong from error
        return taken


def _check_library() -> None:
    from serdes.avro.codec.fastavro_engine import fastavro

    try:
        fastavro()
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from None
