"""The GUID of a schema: a digest of its content, which is equal in every registry."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from schema_registry.entities import Metadata, RuleSet
from serdes.avro.text import guid_bytes
from serdes.registry import Reference


def digest(
    text: str, references: Sequence[Reference] = (), metadata: Metadata | None = None, rule_set: RuleSet | None = None
) -> bytes:
    """Return the sixteen bytes of the GUID, as Confluent computes them."""
    with_metadata = None if metadata is None else msgspec.to_builtins(metadata)
    with_rules = None if rule_set is None else msgspec.to_builtins(rule_set)
    return guid_bytes(text, references, with_metadata, with_rules)


def as_text(guid: bytes) -> str:
    return str(UUID(bytes=guid))


def as_bytes(guid: str) -> bytes | None:
    """Return the bytes of a GUID, or None if the text is not a GUID."""
    try:
        return UUID(guid).bytes
    except ValueError:
        return None
