"""The schemas a program has met: parsed once, whoever needs them."""

from __future__ import annotations

import threading
import time
from typing import Any

from serdes.avro.parse import parse
from serdes.avro.schema import Schema
from serdes.avro.text import to_text
from serdes.registry import RegisteredSchema, SchemaClient, SchemaRegistryError, SchemaText

_MOST_REFERENCES = 1_000
_DEEPEST = 16
_ASK_AGAIN_SECONDS = 10.0
"""After which a schema that the registry does not have is asked for again."""

Name = int | str
"""What a message calls its schema: an id, or a GUID."""


class Catalog:
    """Schemas of one registry. What waits for the registry says so; all of it may be called from any thread."""

    def __init__(self, client: SchemaClient) -> None:
        self.client = client
        self._parsed: dict[Name, Schema] = {}
        self._refused: dict[Name, tuple[float, SchemaRegistryError]] = {}
        self._lock = threading.Lock()

    def known(self, name: Name, subject: str | None) -> Schema | None:
        """A schema that is here; never waits. Raises SchemaRegistryError for one that the registry does not have."""
        found = self._parsed.get(name)
        if found is not None:
            return found
        if name in self._refused:
            raise self._refused[name][1]
        registered = self.client.known(name, subject) if isinstance(name, int) else None
        if registered is None or registered.text.references:
            return None
        return self._parse(name, registered)

    def is_refused(self, name: Name) -> bool:
        """It was asked for a moment ago, and is not there."""
        refused = self._refused.get(name)
        return refused is not None and time.monotonic() - refused[0] < _ASK_AGAIN_SECONDS

    def fetch(self, name: Name, subject: str | None) -> Schema | None:
        """Waits. None: the registry does not have it. Raises SchemaRegistryError when it cannot be asked."""
        try:
            registered = self.client.by_guid(name) if isinstance(name, str) else self.client.by_id(name, subject)
            found = self._parse(name, registered)
        except SchemaRegistryError as error:
            if error.is_retriable:
                raise
            self._refused[name] = (time.monotonic(), error)
            return None
        self._refused.pop(name, None)
        return found

    def note(self, registered: RegisteredSchema, schema: Schema) -> None:
        """A schema of our own that was registered: it need not be asked for."""
        self._parsed.setdefault(registered.id, schema)
        if registered.guid is not None:
            self._parsed.setdefault(registered.guid, schema)

    def parsed(self, registered: RegisteredSchema) -> Schema:
        """Waits, for the schemas that it refers to."""
        return self._parsed.get(registered.id) or self._parse(registered.id, registered)

    def _parse(self, name: Name, registered: RegisteredSchema) -> Schema:
        text = registered.text
        if text.schema_type != "AVRO":
            raise SchemaRegistryError(f"schema {name} is {text.schema_type}, not Avro", status=422, error_code=42201)
        try:
            schema = parse(text.schema, references=self._references(text), validate_defaults=False)
        except ValueError as error:
            raise SchemaRegistryError(
                f"schema {name} of the registry is no Avro schema: {error}", status=422, error_code=42201
            ) from error
        with self._lock:  # one object for all: what is compiled for it is found again
            return self._parsed.setdefault(name, schema)

    def _references(self, text: SchemaText) -> list[str]:
        """The texts of what it refers to, each behind what it needs itself."""
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
        """A type's own schema; None: it says nothing of one (plain data)."""
        if annotation in _PLAIN:
            return None
        from serdes.avro.from_types import schema_of

        try:
            return schema_of(annotation)
        except ValueError as error:
            raise TypeError(str(error)) from error

    def text_of(self, schema: Schema) -> SchemaText:
        return SchemaText(to_text(schema))


_PLAIN: tuple[Any, ...] = (Any, object, dict, list, dict[str, Any])
