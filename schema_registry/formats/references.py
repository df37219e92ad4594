"""References to other subjects' schemas, followed through the function given and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from schema_registry.formats.errors import InvalidSchema
from serdes.registry import Reference, SchemaText

Resolve = Callable[[Reference], SchemaText]

MAX_CHARACTERS: Final = 1024 * 1024
"""The maximum length of one schema."""
MAX_REFERENCES: Final = 1_000
MAX_REFERENCE_DEPTH: Final = 16
MAX_TOTAL_CHARACTERS: Final = 8 * 1024 * 1024
"""The maximum length of a schema and all schemas that it refers to."""


def closure(text: SchemaText, resolve: Resolve) -> list[tuple[Reference, SchemaText]]:
    """Return all that ``text`` refers to, directly or not, each version once, dependencies first.

    Raises `InvalidSchema` for a circle, for too much of it, and for one name that means two schemas.
    """
    return _Closure(text, resolve).found


class _Closure:
    def __init__(self, text: SchemaText, resolve: Resolve) -> None:
        self.resolve = resolve
        self.schema_type = text.schema_type
        self.found: list[tuple[Reference, SchemaText]] = []
        self.versions: dict[tuple[str, int], SchemaText] = {}
        self.names: dict[str, Reference] = {}
        self.characters = self.measured(text, "")
        self.follow(text.references, ())

    def follow(self, references: Sequence[Reference], way: tuple[tuple[str, int], ...]) -> None:
        seen: set[str] = set()
        for reference in references:
            if reference.name in seen:
                raise self.invalid(f"the reference {reference.name!r} is given twice; give each name once", reference)
            seen.add(reference.name)
            self.follow_one(reference, way)

    def follow_one(self, reference: Reference, way: tuple[tuple[str, int], ...]) -> None:
        version = (reference.subject, reference.version)
        if version in way:
            raise self.invalid("it refers back to itself; a schema cannot need its own versions", reference)
        first = self.names.setdefault(reference.name, reference)
        if (first.subject, first.version) != version:
            raise self.invalid(
                f"{reference.name!r} already means version {first.version} of {first.subject!r}; "
                "use the same version everywhere",
                reference,
            )
        if version in self.versions:
            return
        if len(way) >= MAX_REFERENCE_DEPTH:
            raise self.invalid(f"references are more than {MAX_REFERENCE_DEPTH} deep", reference)
        if len(self.versions) >= MAX_REFERENCES:
            raise self.invalid(f"more than {MAX_REFERENCES:,} schemas are referred to", reference)
        text = self.versions[version] = self.resolve(reference)
        if text.schema_type != self.schema_type:
            raise self.invalid(f"it is of type {text.schema_type}, not {self.schema_type}", reference)
        self.characters += self.measured(text, reference.name)
        if self.characters > MAX_TOTAL_CHARACTERS:
            raise self.invalid(
                f"the schema and what it refers to are over {MAX_TOTAL_CHARACTERS:,} characters", reference
            )
        self.follow(text.references, (*way, version))
        self.found.append((reference, text))

    def measured(self, text: SchemaText, name: str) -> int:
        size = len(text.schema)
        if size > MAX_CHARACTERS:
            raise InvalidSchema(
                f"it has {size:,} characters; at most {MAX_CHARACTERS:,} are taken", name, text.schema_type
            )
        return size

    def invalid(self, reason: str, reference: Reference) -> InvalidSchema:
        where = f"references: {reference.name} ({reference.subject!r} version {reference.version})"
        return InvalidSchema(reason, where, self.schema_type)


def in_order(text: SchemaText, schema: str) -> SchemaText:
    """``text`` with a normalized schema, and its references each once, sorted by subject and version."""
    references = dict.fromkeys(sorted(text.references, key=lambda one: (one.subject, one.version)))
    return msgspec.structs.replace(text, schema=schema, references=tuple(references))
