"""The history of the code's subjects in a registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from schema_registry.cli.sources import Resolved
from schema_registry.tools.judge import Known
from serdes.errors import SchemaRegistryError
from serdes.registry import SchemaText

if TYPE_CHECKING:
    from schema_registry.cli.registry_access import RegistryAccess
    from schema_registry.formats import ParsedSchema


async def known_of(
    registry: RegistryAccess, subjects: Iterable[str], also: Iterable[SchemaText] = ()
) -> tuple[dict[str, Known], Resolved]:
    """Return the subjects as a registry has them; of those it has none of, nothing but their level.

    What ``also`` refers to is resolved with it.
    """
    resolved, known = Resolved(), dict[str, Known]()
    for text in also:
        await resolved.gather(registry, text)
    for subject in dict.fromkeys(subjects):
        versions: list[tuple[int, ParsedSchema]] = []
        for number in await numbers_of(registry, subject):
            text = (await registry.version(subject, number)).text()
            await resolved.gather(registry, text)
            versions.append((number, resolved.parse(text, is_new=False)))
        level = (await registry.config(subject)).compatibility_level or "BACKWARD"
        known[subject] = Known(level=level, versions=versions)
    return known, resolved


async def numbers_of(registry: RegistryAccess, subject: str) -> list[int]:
    """Return the versions of a subject; none if the subject does not exist."""
    try:
        return await registry.versions(subject)
    except SchemaRegistryError as error:
        if error.status == 404:
            return []
        raise
