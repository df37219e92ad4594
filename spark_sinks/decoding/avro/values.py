"""Plan the columns of Avro values in the driver, from the schemas of the registry."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from eventbus.errors import SchemaUnavailable, SerializationError
from serdes.avro.catalog import Catalog
from serdes.avro.schema import Record, Schema
from serdes.avro.text import to_text
from serdes.errors import SchemaRegistryError
from serdes.registry import RegisteredSchema, SchemaClient
from spark_sinks.decoding.avro.compile import compiled
from spark_sinks.decoding.avro.decoder import AvroDecoder, Known
from spark_sinks.decoding.framing import Frame
from spark_sinks.decoding.unite import Columns, Conflict
from spark_sinks.decoding.values import Change, RowDecoder, ValueSettings

if TYPE_CHECKING:
    import pyarrow as pa

_LAST_ID = (1 << 31) - 1
_ASK_AGAIN_S = 10.0
"""An id that the registry did not know is looked up again after this time: it may have been registered since."""


class AvroPlan(NamedTuple):
    """The columns, and by schema id how values are decoded, or the reason why they are refused."""

    columns: pa.Schema
    payload: int
    schemas: dict[int, Known | str]
    frame: Frame

    def decoder(self) -> RowDecoder:
        return AvroDecoder(self.columns, self.payload, self.schemas, self.frame)


class _Met(NamedTuple):
    """A schema of the registry: its text, the fields that become columns with their types, and aliases of fields."""

    text: str
    fields: tuple[tuple[str, pa.DataType], ...]
    aliases: dict[str, tuple[str, ...]]

    def placed(self, columns: Columns) -> list[tuple[str, pa.DataType]]:
        """Return the fields with the names of their columns. A renamed field keeps its column, which an alias names."""
        own = {name for name, _ in self.fields}
        renamed = {
            name: old
            for name, aliases in self.aliases.items()
            for old in aliases
            if old in columns and name not in columns and old not in own
        }
        return [(renamed.get(name, name), kind) for name, kind in self.fields]


class AvroValues:
    """Plan columns from the table, then the schemas that tasks found, then all versions of the subject."""

    def __init__(self, settings: ValueSettings, client: SchemaClient) -> None:
        self._subject = f"{settings.topic}-value"
        self._change: Change = settings.on_incompatible
        self._frame = Frame(settings.key, settings.tombstones)
        self._lacks = settings.lacks
        self._names = settings.names
        self._client = client
        self._catalog = Catalog(client)
        self._asked = 0
        """All versions of the subject up to this one were read."""
        self._versions: dict[int, _Met | str] = {}
        """The schemas of the versions by id, in the order of versions, or the reason why one cannot be used."""
        self._learned: dict[int, _Met | str] = {}
        """The schemas by id, in the order in which tasks found them, or the reason why one cannot be used."""
        self._ask_again = math.inf

    def plan(self, table: pa.Schema | None) -> AvroPlan:
        with self._asking():
            self._ask_versions()
        if time.monotonic() >= self._ask_again:
            self._learned = {id: met for id, met in self._learned.items() if isinstance(met, _Met) or id > _LAST_ID}
            self._ask_again = math.inf
        # A task may have found a schema before it was registered as a version.
        everything = {**self._learned, **self._versions}
        own = {name for met in everything.values() if isinstance(met, _Met) for name, _ in met.fields}
        columns = Columns(self._frame.payload(table, [*own]), self._lacks, rule=self._names)
        schemas: dict[int, Known | str] = {}
        for id, met in everything.items():
            if isinstance(met, str):
                schemas[id] = met
                continue
            names = columns.add(met.placed(columns), new_column=self._change == "new_column")
            if not isinstance(names, Conflict):
                schemas[id] = Known(met.text, names)
            elif id in self._learned:
                schemas[id] = self._refused(id, names)
            # Otherwise: perhaps a version that is no longer written. Tasks report it if they find a record with it.
        payload = columns.fields()
        return AvroPlan(self._frame.columns(payload), len(payload), schemas, self._frame)

    def learn(self, ids: AbstractSet[int]) -> None:
        with self._asking():
            for id in sorted(ids):
                if id > _LAST_ID:  # outside the range that the registry accepts: never look it up
                    self._learned[id] = "a schema id has at most 31 bits"
                elif id not in self._learned:
                    self._learned[id] = self._versions.get(id) or self._fetched(id)
        self._ask_again = time.monotonic() + _ASK_AGAIN_S

    def close(self) -> None:
        self._client.close()

    def _refused(self, id: int, conflict: Conflict) -> str:
        if self._change == "fail":
            raise SerializationError(
                f"schema id {id} of {self._subject} does not fit the table: {conflict}. Nothing of this batch was "
                "landed. Keep the type that the field had; or land with on_incompatible='new_column', which gives it "
                "another column, or 'quarantine'"
            )
        return f"it does not fit the table: {conflict}"

    # the registry ----------------------------------------------------------------------------------------------------

    def _ask_versions(self) -> None:
        """Read the versions since the last call, deleted ones included: the topic may still hold their records."""
        try:
            latest = self._client.latest(self._subject).version or 0
        except SchemaRegistryError as error:
            if not error.is_final:
                raise
            return  # unknown subject: the producer uses another naming strategy, and tasks will report its ids
        for version in range(self._asked + 1, latest + 1):
            try:
                registered = self._client.version(self._subject, version, deleted=True)
            except SchemaRegistryError as error:
                if not error.is_final:
                    raise
            else:
                self._versions.setdefault(registered.id, self._parsed(registered))
            self._asked = version

    def _parsed(self, registered: RegisteredSchema) -> _Met | str:
        try:
            return _met(self._catalog.parsed(registered))
        except SchemaRegistryError as error:
            return self._said(error)

    def _fetched(self, id: int) -> _Met | str:
        schema = self._catalog.fetch(id, self._subject)
        if schema is not None:
            return _met(schema)
        try:
            self._catalog.known(id, self._subject)
        except SchemaRegistryError as error:
            return self._said(error)
        return "the registry does not know it"

    def _said(self, error: SchemaRegistryError) -> str:
        """Return why a schema cannot be used. Raises the error if it is not final."""
        if not error.is_final:
            raise error
        return f"the registry does not know it: {error.message}" if error.is_missing else error.message

    @contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except SchemaRegistryError as error:
            raise SchemaUnavailable(
                f"the schemas of {self._subject} cannot be asked for ({error.message}). Nothing of this batch was "
                "landed; landing again goes on from here"
            ) from error


def _met(schema: Schema) -> _Met:
    fields = schema.fields if isinstance(schema, Record) else ()
    aliases = {field.name: tuple(field.aliases) for field in fields if field.aliases}
    return _Met(to_text(schema), tuple(_columns(schema)), aliases)


def _columns(schema: Schema) -> Iterator[tuple[str, pa.DataType]]:
    for name, node in compiled(schema).shown:
        yield name, node.type
