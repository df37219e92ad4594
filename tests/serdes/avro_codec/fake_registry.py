"""A schema registry in memory: ids in order, no compatibility, and it can be made to fail."""

from __future__ import annotations

import uuid

from serdes.errors import SchemaRegistryError
from serdes.registry import Compatibility, RegisteredSchema, SchemaText


class FakeRegistry:
    """A `SchemaClient`. What was asked of it is in ``calls``; ``down`` makes every call fail as an outage does."""

    def __init__(self, first_id: int = 1) -> None:
        self.schemas: dict[int, SchemaText] = {}
        self.subjects: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.down = False
        self.refuses: Exception | None = None
        self.is_closed = False
        self._fetched: set[int] = set()
        self._next = first_id

    def _asked(self, what: str) -> None:
        self.calls.append(what)
        if self.down:
            raise SchemaRegistryError("http://registry:8081 does not answer: connection refused")
        if self.refuses is not None:
            raise self.refuses

    def _found(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        if schema_id not in self.schemas:
            raise SchemaRegistryError(f"Schema {schema_id} not found", status=404, error_code=40403)
        version = self.subjects[subject].index(schema_id) + 1 if subject in self.subjects else None
        self._fetched.add(schema_id)
        return RegisteredSchema(schema_id, guid_of(schema_id), self.schemas[schema_id], subject, version)

    def add(self, text: str, subject: str | None = None) -> int:
        """Registered by somebody else."""
        return self._add(SchemaText(text), subject)

    def _add(self, text: SchemaText, subject: str | None) -> int:
        known = next((one for one, schema in self.schemas.items() if schema == text), None)
        if known is None:
            known, self._next = self._next, self._next + 1
            self.schemas[known] = text
        if subject is not None and known not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(known)
        return known

    def forget(self) -> None:
        """What was fetched is not known any more, as in a client that has just begun."""
        self._fetched.clear()

    # SchemaClient

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        return self._found(schema_id) if schema_id in self._fetched else None

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        self._asked(f"by_id {schema_id}")
        return self._found(schema_id)

    def by_guid(self, guid: str) -> RegisteredSchema:
        self._asked(f"by_guid {guid}")
        found = next((one for one in self.schemas if guid_of(one) == guid), None)
        if found is None:
            raise SchemaRegistryError(f"Schema {guid} not found", status=404, error_code=40403)
        return self._found(found)

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
        self._asked(f"register {subject}{' normalized' if normalize else ''}")
        return self._found(self._add(text, subject), subject)

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        self._asked(f"lookup {subject}")
        if subject not in self.subjects:
            raise SchemaRegistryError(f"Subject '{subject}' not found.", status=404, error_code=40401)
        for schema_id in self.subjects[subject]:
            if self.schemas[schema_id] == text:
                return self._found(schema_id, subject)
        raise SchemaRegistryError("Schema not found", status=404, error_code=40403)

    def latest(self, subject: str) -> RegisteredSchema:
        self._asked(f"latest {subject}")
        if subject not in self.subjects:
            raise SchemaRegistryError(f"Subject '{subject}' not found.", status=404, error_code=40401)
        return self._found(self.subjects[subject][-1], subject)

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        self._asked(f"version {subject} {version}")
        return self._found(self.subjects[subject][version - 1], subject)

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility:
        self._asked(f"is_compatible {subject}")
        return Compatibility(True)

    def close(self) -> None:
        self.is_closed = True


def guid_of(schema_id: int) -> str:
    return str(uuid.UUID(int=schema_id))
