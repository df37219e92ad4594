"""What the code is compared with: the history of its subjects, out of a registry or a lock file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from schema_registry.cli.sources import Resolved
from schema_registry.formats import InvalidSchema, parse
from schema_registry.tools.judge import Known, Reader
from schema_registry.tools.lock import Lock, LockedSubject, LockError
from serdes.registry import SchemaRegistryError, SchemaText

if TYPE_CHECKING:
    from schema_registry.cli.doors import Door
    from schema_registry.formats import ParsedSchema


async def known_of(
    door: Door, subjects: Iterable[str], also: Iterable[SchemaText] = ()
) -> tuple[dict[str, Known], Resolved]:
    """The subjects as a registry has them; of those it has none of, nothing but their level.

    What ``also`` refers to is resolved with it.
    """
    resolved, known = Resolved(), dict[str, Known]()
    for text in also:
        await resolved.gather(door, text)
    for subject in dict.fromkeys(subjects):
        versions: list[tuple[int, ParsedSchema]] = []
        for number in await numbers_of(door, subject):
            text = (await door.version(subject, number)).text()
            await resolved.gather(door, text)
            versions.append((number, resolved.parse(text, is_new=False)))
        level = (await door.config(subject)).compatibility_level or "BACKWARD"
        known[subject] = Known(level=level, versions=versions)
    return known, resolved


async def numbers_of(door: Door, subject: str) -> list[int]:
    """The versions of a subject; none when there is no such subject."""
    try:
        return await door.versions(subject)
    except SchemaRegistryError as error:
        if error.status == 404:
            return []
        raise


def known_of_lock(lock: Lock, name: str) -> dict[str, Known]:
    """The subjects as a lock file has them. Raises LockError for a schema in it that is none."""
    return {subject: _known(entry, f"{name}, {subject}") for subject, entry in lock.subjects.items()}


def _known(entry: LockedSubject, where: str) -> Known:
    return Known(
        level=entry.compatibility,
        versions=[
            (number, _parsed(schema, f"{where}, version {number}")) for number, schema in enumerate(entry.versions, 1)
        ],
        readers=[
            Reader(
                reader.group, reader.handler, _parsed(entry.reads(reader), f"{where}, {reader.handler}")
            )
            for reader in entry.readers
        ],
    )  # fmt: skip


def _parsed(schema: Any, where: str) -> ParsedSchema:
    try:
        return parse(SchemaText(json.dumps(schema, ensure_ascii=False)), no_references, is_new=False)
    except InvalidSchema as error:
        raise LockError(f"{where}: {error}; restore the file, or write it anew with --update") from None


def no_references(reference: Any) -> SchemaText:
    """A lock file's schemas, and those of types, hold all they need."""
    raise InvalidSchema(f"reference {reference.name!r}: there are none here")
