"""A cache of the schemas that a program has used, each parsed once."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from serdes.avro.codec.fastavro_engine import fastavro, new_decoder, new_encoder
from serdes.avro.parse import parse
from serdes.avro.schema import Schema
from serdes.avro.text import to_text
from serdes.errors import SchemaRegistryError
from serdes.registry import RegisteredSchema, SchemaClient, SchemaText
from serdes.rules import Mode, refuse_rules

_MOST_REFERENCES = 1_000
_DEEPEST = 16
_ASK_AGAIN_SECONDS = 10.0
"""After which a schema that the registry does not have is asked for again."""

Name = int | str
"""The identifier of the schema in a message: an id, or a GUID."""
_Place = Name | tuple[str, int]
"""The same in all of a registry."""


class Catalog:
    """Schemas of one registry. What waits for the registry says so; all of it may be called from any thread."""

    def __init__(self, client: SchemaClient, *, ignore_rules: bool = False, engine: str = "compiled") -> None:
        """``engine`` decodes Avro: "compiled" or "fastavro".

        Raises ValueError for another name, ModuleNotFoundError if fastavro is not installed.
        """
        if engine not in ("compiled", "fastavro"):
            raise ValueError(f"engine={engine!r} does not exist. Use 'compiled', the default, or 'fastavro'")
        if engine == "fastavro":
            fastavro()
        self.client = client
        self._ignore_rules = ignore_rules
        self.decoder = partial(new_decoder, engine)
        self.encoder = partial(new_encoder, engine)
        self._parsed: dict[_Place, Schema] = {}
        self._refused: dict[_Place, tuple[float, SchemaRegistryError]] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """The registry is another one."""
        self._parsed.clear()
        self._refused.clear()

    def known(self, name: Name, subject: str | None) -> Schema | None:
        """A schema that is here; never waits. Raises SchemaRegistryError for one that the registry does not have."""
        place = _place(name, subject)
        found = self._parsed.get(place)
        if found is not None:
            return found
        if place in self._refused:
            raise self._refused[place][1]
        registered = self.client.known(name, subject) if isinstance(name, int) else None
        if registered is None or registered.text.references:
            return None
        return self._parse(place, registered)

    def is_refused(self, name: Name, subject: str | None) -> bool:
        """It was asked for a moment ago, and is not there."""
        refused = self._refused.get(_place(name, subject))
        return refused is not None and time.monotonic() - refused[0] < _ASK_AGAIN_SECONDS

    def fetch(self, name: Name, subject: str | None) -> Schema | None:
        """Waits. None: the registry does not have it. Raises SchemaRegistryError when it cannot be asked."""
        place = _place(name, subject)
        try:
            registered = self.client.by_guid(name) if isinstance(name, str) else self.client.by_id(name, subject)
            found = self._parse(place, registered)
        except SchemaRegistryError as error:
            if not error.is_final:
                raise
            self._refused[place] = (time.monotonic(), error)
            return None
        self._refused.pop(place, None)
        return found

    def check_rules(self, registered: RegisteredSchema, mode: Mode) -> None:
        """Raise SchemaRegistryError if the schema has a rule that would have to be executed."""
        if not self._ignore_rules:
            refuse_rules(registered, mode)

    def note(self, registered: RegisteredSchema, schema: Schema) -> None:
        """Remember a schema that was registered, so that a reader does not request it."""
        try:
            self.check_rules(registered, "READ")
        except SchemaRegistryError:  # a reader finds the same, and refuses it
            return
        self._parsed.setdefault(_place(registered.id, registered.subject), schema)
        if registered.guid is not None:
            self._parsed.setdefault(registered.guid, schema)

    def parsed(self, registered: RegisteredSchema) -> Schema:
        """Return the schema to read with. Waits for the schemas that it refers to."""
        place = _place(registered.id, registered.subject)
        return self._parsed.get(place) or self._parse(place, registered)

    def to_write(self, registered: RegisteredSchema) -> Schema:
        """Return the schema to write with. Waits for the schemas that it refers to."""
        place = _place(registered.id, registered.subject)
        schema = self._parsed.get(place) or self._schema(place, registered)
        self.note(registered, schema)
        return self._parsed.get(place, schema)

    def _parse(self, place: _Place, registered: RegisteredSchema) -> Schema:
        self.check_rules(registered, "READ")
        schema = self._schema(place, registered)
        with self._lock:  # one object for all: what is compiled for it is found again
            return self._parsed.setdefault(place, schema)

    def _schema(self, place: _Place, registered: RegisteredSchema) -> Schema:
        text, name = registered.text, place[1] if isinstance(place, tuple) else place
        if text.schema_type != "AVRO":
            raise SchemaRegistryError(f"schema {name} is {text.schema_type}, not Avro", status=422, error_code=42201)
        try:
            return parse(text.schema, references=self._references(text), validate_defaults=False)
        except ValueError as error:
            raise SchemaRegistryError(
                f"schema {name} of the registry is not an Avro schema: {error}", status=422, error_code=42201
            ) from error

    def _references(self, text: SchemaText) -> list[str]:
        """Return the texts of the referenced schemas, each after the schemas that it refers to."""
        found: dict[tuple[str, int], str] = {}
        self._collect(text, found, 0)
        return list(found.values())

    def _collect(self, text: SchemaText, found: dict[tuple[str, int], str], depth: int) -> None:
        if depth > _DEEPEST or len(found) > _MOST_REFERENCES:
            raise ValueError(f"its references go deeper than {_DEEPEST}, or are more than {_MOST_REFERENCES}")
        for reference in text.references:
            where = (reference.subject, reference.version)
            if where not in found:
                referred = self.client.version(*where, deleted=True).text
                self._collect(referred, found, depth + 1)
                found[where] = referred.schema

    @staticmethod
    def schema_of(annotation: Any) -> Schema | None:
        """Return a type's own schema; None: it says nothing of one (plain data)."""
        if annotation in _PLAIN:
            return None
        from serdes.avro.from_types import schema_of

        try:
            return schema_of(annotation)
        except ValueError as error:
            raise TypeError(str(error)) from error

    def text_of(self, schema: Schema) -> SchemaText:
        return SchemaText(to_text(schema))


def _place(name: Name, subject: str | None) -> _Place:
    """Ids are counted in each context, which ``:.context:subject`` begins with; a GUID is of the text alone."""
    if isinstance(name, str) or subject is None or not subject.startswith(":.") or subject.count(":") < 2:
        return name
    context = subject.split(":", 2)[1]
    return name if context == "." else (context, name)


_PLAIN: tuple[Any, ...] = (Any, object, dict, list, dict[str, Any])
